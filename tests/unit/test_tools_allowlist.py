"""What the allow list lets through means to the shell what it means to the list, and stays in the workspace."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.tools.allowlist import check
from app.tools.contract import ToolBlocked

ALLOWED = ("ls", "cat", "head", "tail", "wc", "echo", "true")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "out").symlink_to("/etc")
    (root / "file-out").symlink_to("/etc/passwd")
    return root.resolve()


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "ls -la",
        "cat a.txt",
        "cat 'a.txt' \"a.txt\"",
        "ls | wc -l",
        "ls; ls",
        "ls && cat a.txt || true",
        "head -n 5 sub/../a.txt",
        "cat *.txt",
        "cat sub/*",
        "ls --color=never",
        "echo a=b",
        "echo 'it costs $5; `x`'",
        'echo "a > b & c"',
        "echo Grüße",
        "  ls  ",
        "ls sub/",
        "echo 10%",
        "echo a,b:c@d^e",
    ],
)
def test_plain_commands_on_the_workspace_pass(place: Path, command: str) -> None:
    check(command, ALLOWED, place, place)


@pytest.mark.parametrize(
    "command",
    [
        "",
        " ",
        ";",
        "ls;",
        "| ls",
        "ls ||",
        "rm a.txt",
        "ls; rm a.txt",
        "ls | sh",
        "./ls",
        "/bin/ls",
        "ls > x",
        "ls >x",
        "cat < a.txt",
        "ls &",
        "ls & rm x",
        "ls $(rm x)",
        "ls `rm x`",
        "ls ${x}",
        "ls $x",
        'echo "$HOME"',
        'echo "`x`"',
        "ls\nrm x",
        "ls\r\nrm x",
        "ls # x",
        "(ls)",
        "{ ls; }",
        "! ls",
        "X=1 ls",
        "LD_PRELOAD=x ls",
        "ls 'x",
        'ls "x',
        "ls \\x",
        "'ls'",
        '"ls"',
        "l*",
        "eval ls",
        ". a.txt",
        "source a.txt",
        "exec ls",
        "cd /",
        "command ls",
        "export X=1",
        "ls <(cat x)",
        "cat /etc/passwd",
        "cat ../x",
        "cat sub/../../x",
        "cat ~/x",
        "cat ~root",
        "ls ..",
        "ls -- ..",
        "cat out/passwd",
        "cat file-out",
        "head -f/etc/passwd",
        "wc --files0-from=/etc/passwd",
        "wc --files0-from=../x",
        "cat */../../x",
        "cat ..*",
        "ls /",
        "cat '/etc/passwd'",
        'cat "../x"',
        "ls --x=~/y",
        "cat a.txt /etc/passwd",
        "ls \0",
        "ls \x1b[0m",
        "ls 'a\x1b[0m'",
        'echo "\x07"',
        "cat .?/x",
        "cat .[.]/x",
        "cat sub/.?/.?/x",
        "cat ''.?/x",
        "cat '.'?/x",
        "ls .*",
        "cat out*/passwd",
        "cat o*/passwd",
        "cat [o]ut/passwd",
        "cat file-o*",
        "cat ?ile-out",
        "cat 'file'*",
        "head -ffile-out",
        "cat @/etc/passwd",
        "cat a.txt:/etc/passwd",
        "cat file:///etc/passwd",
    ],
)
def test_everything_else_is_refused(place: Path, command: str) -> None:
    with pytest.raises(ToolBlocked):
        check(command, ALLOWED, place, place)


def test_a_pattern_that_would_look_at_too_many_files_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tools.allowlist.MATCHES_MAX", 5)
    (place / "sub" / "1").touch()
    check("cat sub/*", ALLOWED, place, place)
    for number in range(2, 9):
        (place / "sub" / str(number)).touch()
    with pytest.raises(ToolBlocked, match="more than 5"):
        check("cat sub/*", ALLOWED, place, place)


_STEPS = st.lists(
    st.sampled_from(
        [".", "..", "?", "*", "[.]", "[a-z]", "/", "s", "sub", "out", "'.'", "'*'", '""', "x", "[!x]", "~"]
    ),
    min_size=1,
    max_size=9,
)


@given(steps=_STEPS)
@settings(max_examples=800, deadline=None)
def test_the_shell_expands_nothing_to_what_lies_outside(steps: list[str]) -> None:
    """What a real shell makes of a word that was let through, each of it with all links followed."""
    word = "".join(steps)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made).resolve() / "workspace"
        (root / "sub" / "s").mkdir(parents=True)
        (root / "out").symlink_to(made)
        (root / "sub" / "x").write_text("x")
        (Path(made) / "x").write_text("x")
        try:
            check(f"cat {word}", ("cat",), root, root)
        except ToolBlocked:
            return
        done = subprocess.run(
            ["/bin/sh", "-c", f"printf '%s\\0' {word}"], cwd=root, env={}, capture_output=True, timeout=20, check=True
        )
        for path in done.stdout.decode().split("\0")[:-1]:
            assert (root / path).resolve().is_relative_to(root), (word, path)


def test_entries_are_names_or_places(place: Path) -> None:
    script = place / "tool.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    check("./tool.sh", (f"{place}/*.sh",), place, place)
    check("/bin/ls", ("/bin/*", "/usr/bin/*"), place, place)
    check("rm x", ("*",), place, place)
    for command, patterns in (
        ("./tool.sh", ("tool.sh", "./tool.sh")),
        ("tool.sh", ("tool.sh",)),
        ("ls", ("/bin/cat",)),
    ):
        with pytest.raises(ToolBlocked):
            check(command, patterns, place, place)


def test_paths_are_seen_from_the_folder_in_which_the_command_runs(place: Path) -> None:
    check("cat ../a.txt", ALLOWED, place, place / "sub")
    with pytest.raises(ToolBlocked):
        check("cat ../../a.txt", ALLOWED, place, place / "sub")


_PIECES = st.sampled_from(
    [
        "ls",
        "cat",
        "evil",
        "echo",
        " ",
        "  ",
        "a.txt",
        ";",
        "|",
        "||",
        "&&",
        "&",
        "\n",
        "\t",
        "'",
        '"',
        "\\",
        "$",
        "$(",
        ")",
        "(",
        "`",
        "{",
        "}",
        "!",
        "#",
        "*",
        "?",
        "[",
        "]",
        "~",
        "=",
        "X=1",
        ">",
        "<",
        "<<",
        "-",
        "/",
        "..",
        ":",
        "%",
        "é",
        "\x0b",
        "\x0c",
        "\xa0",
        "\u2028",
        "if",
        "then",
        "eval",
        ".",
        "^",
        ",",
        "+",
        "@",
        "\x1b",
        "\0",
        "$'",
        "${",
        "exec",
        "time",
    ]
)


@given(pieces=st.lists(_PIECES, min_size=1, max_size=10))
@settings(max_examples=1_500, deadline=None)
def test_the_shell_starts_nothing_but_what_is_allowed(pieces: list[str]) -> None:
    """Run by a real shell, in which everything but the allowed commands leaves a mark."""
    command = "".join(pieces)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made).resolve()
        (root / "a.txt").write_text("a")
        try:
            check(command, ("ls", "cat"), root, root)
        except ToolBlocked:
            return
        shims = root / ".shims"
        shims.mkdir()
        for name in ("evil", "echo", "sh", "rm", "X"):
            (shims / name).write_text(f"#!/bin/sh\n: > {root}/.mark\n")
        for name in ("ls", "cat"):
            (shims / name).write_text("#!/bin/sh\nexit 0\n")
        for shim in shims.iterdir():
            shim.chmod(0o755)
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=root, env={"PATH": str(shims)}, capture_output=True, timeout=20, check=False
        )
        assert not (root / ".mark").exists(), command
        assert done.returncode == 0, (command, done.stderr)
        assert {path.name for path in root.iterdir()} == {"a.txt", ".shims"}, f"{command!r} has made a file"
