"""The command line around the commands: help, exit codes, what is loaded, and the pages made from the code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from app.cli.output import json_text
from app.cli.reference import page
from app.settings import describe
from tests.kit.environment import clean_environ

ROOT = Path(__file__).resolve().parents[2]


def laneway(*args: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *args],
        cwd=cwd,
        env=clean_environ({"PATH": "/usr/bin:/bin", "HOME": str(cwd)}) | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_lists_the_commands(tmp_path: Path) -> None:
    result = laneway("--help", cwd=tmp_path)
    assert result.returncode == 0
    for command in ("serve", "agent", "config", "migrate"):
        assert f"\n  {command} " in result.stdout


def test_version(tmp_path: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert laneway("--version", cwd=tmp_path).stdout == f"laneway {declared}\n"


@pytest.mark.parametrize("args", [["nonsense"], ["--nonsense"], [], ["agent"]])
def test_wrong_usage_is_exit_code_2(tmp_path: Path, args: list[str]) -> None:
    assert laneway(*args, cwd=tmp_path).returncode == 2


def test_a_note_says_what_it_is_not_available_for(tmp_path: Path) -> None:
    remote = laneway("sessions", "note", "one", "text", cwd=tmp_path)
    assert remote.returncode == 2 and "not available in this build; use --local" in remote.stderr
    server = {"LANEWAY_STORE__URL": "postgresql://user:hidden@127.0.0.1:1/name"}
    refused = laneway("sessions", "note", "one", "text", "--local", cwd=tmp_path, **server)
    assert refused.returncode == 1 and "store.url names a server" in refused.stderr
    assert "hidden" not in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "code",
    [
        "from app.cli.main import app; app(['--help'], standalone_mode=False)",
        "from app.cli.main import app; app(['config', 'show'], standalone_mode=False)",
        "import app.cli.main, app.cli.agent",
    ],
)
def test_light_commands_load_nothing_heavy(tmp_path: Path, code: str) -> None:
    check = (
        f"import sys; {code}\n"
        "heavy = {'fastapi', 'starlette', 'uvicorn', 'sqlalchemy', 'sqlmodel', 'alembic', 'pydantic_ai', 'openai'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))"
    )
    environ = clean_environ({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    result = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.endswith("heavy: []\n")


def test_config_show_says_where_each_value_came_from(tmp_path: Path) -> None:
    (tmp_path / "laneway.toml").write_text(
        '[server]\nport = 9000\n[providers.local]\nkind = "openai"\napi_key = "hush"\n'
    )
    result = laneway("config", "show", cwd=tmp_path, LANEWAY_QUEUE__CAP="3")
    assert result.returncode == 0
    lines = dict(line.split(" = ", 1) for line in result.stdout.splitlines())
    assert lines["server.port"].split() == ["9000", "#", "file", "laneway.toml"]
    assert lines["queue.cap"].split() == ["3", "#", "environment", "LANEWAY_QUEUE__CAP"]
    assert lines["providers.local.api_key"].startswith('"***"')
    assert "hush" not in result.stdout + result.stderr
    assert "providers.local.api_key: a secret is written out" in result.stderr


def test_config_show_as_json(tmp_path: Path) -> None:
    result = laneway("config", "show", "--json", "--state-dir", "state", cwd=tmp_path)
    shown = json.loads(result.stdout)
    assert shown["server.port"] == {"value": 8420, "source": "default"}
    assert shown["state_dir"] == {"value": str(tmp_path / "state"), "source": "command line"}


def test_a_wrong_setting_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    result = laneway("config", "show", cwd=tmp_path, LANEWAY_SERVER__PORT="x")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "laneway: environment LANEWAY_SERVER__PORT: server.port: 'x' is not allowed; "
        "allowed is a whole number from 0 to 65535\n"
    )


def test_the_printed_reference_is_the_committed_page(tmp_path: Path) -> None:
    committed = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == page(describe()), "run: laneway config reference > docs/configuration.md"
    assert laneway("config", "reference", cwd=tmp_path).stdout == committed


BASH = """
source "$1"
COMP_WORDS=({words}); COMP_CWORD={at}; COMPREPLY=()
_laneway_completion laneway
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["laneway", "ru"], {"runs"}),
        (["laneway", "runs", ""], {"list", "show", "abort", "events"}),
        (["laneway", "doctor", "--st"], {"--state-dir"}),
    ],
)
def test_a_shell_completes_commands_and_options(tmp_path: Path, words: list[str], offered: set[str]) -> None:
    """With the script that `--show-completion` prints, in a real shell."""
    program = tmp_path / "laneway"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m app.cli "$@"\n')
    program.chmod(0o755)
    environ = clean_environ({"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)})
    script = subprocess.run(
        ["bash", "-c", "laneway --show-completion bash"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (tmp_path / "script").write_text(script.stdout)
    asked = BASH.format(words=" ".join(f"'{word}'" for word in words), at=len(words) - 1)
    done = subprocess.run(
        ["bash", "-c", asked, "bash", str(tmp_path / "script")],
        env=environ, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert set(done.stdout.split()) == offered, done


@pytest.mark.parametrize("args", [["config", "reference"], ["config", "show", "--json"], ["--help"], ["--version"]])
def test_nobody_reading_any_more_is_a_quiet_end(tmp_path: Path, args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = program(*args, cwd=tmp_path, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("args", [["config", "reference"], ["config", "show"], ["--help"]])
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = program(*args, cwd=tmp_path, stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr == "laneway: Standard output cannot be written: No space left on device\n"


def test_a_stream_that_holds_only_ascii_gets_text_and_json_that_it_holds(tmp_path: Path) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "LANEWAY_AGENTS__DEFAULTS__SYSTEM_PROMPT": "é日"}
    shown = program("config", "show", cwd=tmp_path, stdout=subprocess.PIPE, **ascii_only)
    assert (shown.returncode, shown.stderr) == (0, "") and '"??"' in shown.stdout
    as_json = program("config", "show", "--json", cwd=tmp_path, stdout=subprocess.PIPE, **ascii_only)
    assert json.loads(as_json.stdout)["agents.defaults.system_prompt"]["value"] == "é日"


def test_json_ends_no_line_and_rules_no_terminal_by_what_it_holds() -> None:
    text = json_text({"a": "\u2028\x9b31m\x7f", "b": "é"})
    assert "\u2028" not in text and "\x9b" not in text and "\x7f" not in text
    assert json.loads(text) == {"a": "\u2028\x9b31m\x7f", "b": "é"}


def program(*args: str, cwd: Path, stdout: int, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *args],
        cwd=cwd,
        env=clean_environ({"PATH": "/usr/bin:/bin", "HOME": str(cwd)}) | environ,
        stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
        text=True, timeout=60, check=False,
    )  # fmt: skip
