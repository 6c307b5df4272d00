"""What an operator may rely on: which source wins, what is refused and in which words, and that secrets stay secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.errors import SettingsError
from app.settings import Loaded, Provider, Settings, describe, effective, load


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings file lies in the current folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def loaded(
    tmp_path: Path,
    toml: str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    secrets: bool = True,
) -> Loaded:
    path = None
    if toml is not None:
        path = tmp_path / "given.toml"
        path.write_text(toml, encoding="utf-8")
    return load(path, {"HOME": str(tmp_path), **(environ or {})}, overrides or {}, secrets=secrets)


def refusal(tmp_path: Path, toml: str | None = None, environ: Mapping[str, str] | None = None, **more: Any) -> str:
    """The one line that stops the start."""
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, toml, environ, **more)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_nothing_set_gives_defaults_that_work(tmp_path: Path) -> None:
    result = loaded(tmp_path)
    settings = result.settings
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8420)
    assert settings.state_dir == tmp_path / ".local" / "state" / "laneway"
    assert settings.agent_ids() == ("main",)
    assert settings.max_concurrent_runs() >= 8
    assert set(result.sources.values()) == {"default", "picked: no provider key is set"}
    assert result.warnings == []


def test_precedence_is_command_line_environment_file_default(tmp_path: Path) -> None:
    toml = "[server]\nport = 1001\ndrain_seconds = 1\n[queue]\ncap = 7\n"
    environ = {"LANEWAY_SERVER__PORT": "1002", "LANEWAY_SERVER__DRAIN_SECONDS": "2"}
    result = loaded(tmp_path, toml, environ, {"server.port": 1003, "server.host": None})
    settings = result.settings
    assert (settings.server.port, settings.server.drain_seconds, settings.queue.cap) == (1003, 2.0, 7)
    assert result.sources["server.port"] == "command line"
    assert result.sources["server.drain_seconds"] == "environment LANEWAY_SERVER__DRAIN_SECONDS"
    assert result.sources["queue.cap"] == f"file {tmp_path / 'given.toml'}"
    assert result.sources["server.host"] == "default"


def test_settings_are_frozen(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        loaded(tmp_path).settings.server.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("[server]\nport = 65536", "server.port: 65536 is not allowed; allowed is a whole number from 0 to 65535"),
        ("[server]\nport = -1", "allowed is a whole number from 0 to 65535"),
        ("[server]\nport = true", "server.port: True is not a number; allowed is a whole number from 0 to 65535"),
        ("[server]\ndrain_seconds = nan", "server.drain_seconds: nan is not allowed"),
        ("[server]\nprot = 1", "server.prot: is not a setting; allowed here are host, port, drain_seconds"),
        ("[srever]\nport = 1", "srever.port: is not a setting; allowed here are server, store"),
        ("server = 1", "server: is a table, not a value"),
        ("[server.port]\nx = 1", "server.port.x: is not a setting"),
        ('[server]\nhost = "0.0.0.0"', "'0.0.0.0' is not a loopback address"),
        ('[store]\nsynchronous = "off"', "'off' is not allowed; allowed is full or normal"),
        ("[limits]\nevent_bytes = 1", "limits.event_bytes: 1 is not allowed"),
        ("state_dir = '/x'", "state_dir: is set by --state-dir or LANEWAY_STATE_DIR only"),
        ("[agents.main]\nstyle = 1", "allowed here are description, model, timeout_seconds, system_prompt"),
        ('[agents."A b"]\nmodel = "demo"', "'A b' is not an id; allowed are"),
        ('[agents.main]\nmodel = "nowhere:x"', "agents.main.model: no provider 'nowhere'; there are"),
        ('[agents.main]\nmodel = "openai"', "'openai' names no model; allowed is provider:model"),
        ('[providers.local]\nbase_url = "http://h"', "providers.local.kind: is missing; allowed are openai"),
        ('[providers.local]\nkind = ["openai"]', "providers.local.kind: ['openai'] is not allowed"),
        ('[providers.x]\nkind = "openai"\nbase_url = "h:1"', "'h:1' is not a web address"),
    ],
)
def test_what_is_wrong_is_one_line_with_source_key_and_what_is_allowed(
    tmp_path: Path, toml: str, expected: str
) -> None:
    line = refusal(tmp_path, toml)
    assert line.startswith(f"file {tmp_path / 'given.toml'}: ")
    assert expected in line


@pytest.mark.parametrize(
    "toml",
    [
        '[events]\nredis_url = ""',
        '[auth]\nmode = "keys"',
        "[queue]\ndebounce_ms = 5",
        '[queue]\ndrop = "old"',
        '[queue]\nmode = "steer"',
        '[queue]\nmode = "collect"',
        '[queue]\nmode = "interrupt"',
        '[tools.exec]\nask = "off"',
        '[sandbox]\nmode = "all"',
        "[plugins]\npaths = []",
        "[plugins.entries.one]\nenabled = true",
        "[diagnostics]\nenabled = true",
        "[workers]\nlease_seconds = 8",
        "[agents.defaults]\nmodel_fallbacks = []",
        "[agents.main]\nmodel_fallbacks = []",
    ],
)
def test_what_this_build_does_not_have_is_refused_not_ignored(tmp_path: Path, toml: str) -> None:
    assert "is not available in this build yet" in refusal(tmp_path, toml)


def test_the_write_lock_has_a_variable_of_two_names_and_the_usual_one_goes_first(tmp_path: Path) -> None:
    second, usual = "LANEWAY_SESSION_WRITE_LOCK_ACQUIRE_TIMEOUT_MS", "LANEWAY_SESSION__WRITE_LOCK__ACQUIRE_TIMEOUT_MS"
    toml = "[session.write_lock]\nacquire_timeout_ms = 1"
    for environ, value in (({}, 1), ({second: "2"}, 2), ({usual: "3"}, 3), ({usual: "3", second: "2"}, 3)):
        for given in (environ, dict(reversed(environ.items()))):
            assert loaded(tmp_path, toml, given).settings.session.write_lock.acquire_timeout_ms == value
    source = loaded(tmp_path, toml, {second: "2"}).sources["session.write_lock.acquire_timeout_ms"]
    assert source == f"environment {second}"
    line = refusal(tmp_path, environ={second: "soon"})
    assert second in line and "session.write_lock.acquire_timeout_ms" in line and "0 to 3600000" in line


@pytest.mark.parametrize("folder", ["state", ".", "state/..", "/"])
def test_a_workspace_that_holds_the_state_is_refused(tmp_path: Path, folder: str) -> None:
    overrides = {"state_dir": tmp_path / "state"}
    for table in ("agents.defaults", "agents.main"):
        line = refusal(tmp_path, f'[{table}]\nworkspace = "{folder}"', overrides=overrides)
        assert f"{table}.workspace" in line and "holds the state directory" in line
    inside = loaded(tmp_path, '[agents.main]\nworkspace = "state/work"', overrides=overrides).settings.agent("main")
    assert inside is not None and inside.workspace == tmp_path / "state" / "work"


@pytest.mark.parametrize("url", ["mysql://me:hush@h/d", "postgresql://me:hush@h:port/d", "hush", "postgresql://", ""])
def test_an_address_that_is_none_is_refused_without_printing_it(tmp_path: Path, url: str) -> None:
    line = refusal(tmp_path, f'[store]\nurl = "{url}"')
    assert "store.url" in line and "hush" not in line and "postgresql://USER" in line


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:h%40sh@db:5432/laneway", "postgresql://me:***@db:5432/laneway"),
        ("postgres://db/laneway?user=me&password=h%40sh", "postgres://db/laneway?user=me&password=***"),
        ("postgresql://me@/laneway?host=/run/postgresql", "postgresql://me@/laneway?host=/run/postgresql"),
    ],
)
def test_the_password_of_a_database_is_shown_nowhere(tmp_path: Path, url: str, shown: str) -> None:
    found = loaded(tmp_path, f'[store]\nurl = "{url}"')
    assert found.settings.store.url == url
    assert {key: value for key, value, _ in effective(found)}["store.url"] == shown
    has_password = "***" in shown
    assert any("written out" in warning for warning in found.warnings) is has_password
    if has_password:
        assert {"h%40sh", "h@sh"} & set(found.settings.secrets()), "it is masked wherever text is shown"


def test_a_database_may_be_named_by_a_reference(tmp_path: Path) -> None:
    url = "postgresql://me:hush@db/laneway"
    given = {"LANEWAY_STORE__URL": "env:DATABASE_URL", "DATABASE_URL": url}
    found = load(None, given, {"state_dir": tmp_path})
    assert found.settings.store.url == url and found.warnings == []
    plain = load(None, given, {"state_dir": tmp_path}, secrets=False)
    assert {key: value for key, value, _ in effective(plain)}["store.url"] == "env:DATABASE_URL"
    with pytest.raises(SettingsError, match="DATABASE_URL is not set"):
        load(None, {"LANEWAY_STORE__URL": "env:DATABASE_URL"}, {"state_dir": tmp_path})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("LANEWAY_SERVER__PORT", "many", "environment LANEWAY_SERVER__PORT: server.port: 'many' is not allowed"),
        ("LANEWAY_PORT", "9000", "environment LANEWAY_PORT: port: is not a setting"),
        ("LANEWAY_SERVER__PROT", "1", "environment LANEWAY_SERVER__PROT: server.prot: is not a setting"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, name: str, value: str, expected: str) -> None:
    assert expected in refusal(tmp_path, environ={name: value})


def test_a_wrong_option_is_named(tmp_path: Path) -> None:
    line = refusal(tmp_path, overrides={"server.port": 70000})
    assert line == "command line: server.port: 70000 is not allowed; allowed is a whole number from 0 to 65535"


def test_variables_with_other_readers_or_from_an_orchestrator_are_no_settings(tmp_path: Path) -> None:
    environ = {
        "LANEWAY_FAULTS": "CP-1=kill",
        "LANEWAY_SECRET_KEY": "k",
        "LANEWAY_URL": "http://h",
        "LANEWAY_SERVICE_HOST": "10.0.0.1",
        "LANEWAY_SERVICE_PORT_HTTP": "80",
        "LANEWAY_PORT": "tcp://10.0.0.1:80",
        "LANEWAY_PORT_80_TCP_ADDR": "10.0.0.1",
        "LANEWAY_SERVER__PORT": "",
    }
    assert loaded(tmp_path, environ=environ).settings.server.port == 8420


def test_lists_and_switches_in_the_environment(tmp_path: Path) -> None:
    environ = {"LANEWAY_SERVER__ALLOWED_HOSTS": "a.example, b.example", "LANEWAY_RECOVERY__RESUME": "false"}
    settings = loaded(tmp_path, environ=environ).settings
    assert settings.server.allowed_hosts == ("a.example", "b.example")
    assert settings.recovery.resume is False


def test_origins_are_brought_into_the_form_that_browsers_send(tmp_path: Path) -> None:
    given = "HTTP://LocalHost:8000, http://a.example:80,https://a.example:443, https://a.example, http://[0:0::1]:080"
    settings = loaded(tmp_path, environ={"LANEWAY_SERVER__ALLOWED_ORIGINS": given}).settings
    expected = ("http://localhost:8000", "http://a.example", "https://a.example", "http://[::1]")
    assert settings.server.allowed_origins == expected
    toml = '[server]\nallowed_origins = ["http://a.example:8080", "https://A.example:080"]'
    assert loaded(tmp_path, toml).settings.server.allowed_origins == ("http://a.example:8080", "https://a.example:80")
    assert loaded(tmp_path).settings.server.allowed_origins == ()


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "null", "a.example", "//a.example", "http://", "http://*", "http://*.a.example", "file:///x", "ws://a"),
        *(
            "http://a/",
            "http://a/x",
            "http://a?x",
            "http://a#x",
            "http://me@a",
            "http://a b",
            "http://[::1",
            "http://::1",
        ),
        *("http://a:", "http://a:0", "http://a:65536", "http://a:x", "http://[::g]", "http://münchen.example"),
    ],
)
def test_what_is_not_an_origin_is_named_among_others(tmp_path: Path, origin: str) -> None:
    line = refusal(tmp_path, f'[server]\nallowed_origins = ["http://fine.example", "{origin}"]')
    assert (
        f"server.allowed_origins: ['http://fine.example', {origin!r}] holds {origin!r}, which is not an origin" in line
    )
    assert line.endswith("; allowed are http://host[:port] and https://host[:port], without a path, `*` or `null`")


def test_the_state_directory_has_its_own_order(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": "/xdg", "LANEWAY_STATE_DIR": "rel"}
    assert loaded(tmp_path, environ=environ, overrides={"state_dir": "/o"}).settings.state_dir == Path("/o")
    assert loaded(tmp_path, environ=environ).settings.state_dir == tmp_path / "here" / "rel"
    assert loaded(tmp_path, environ={"XDG_STATE_HOME": "/xdg"}).settings.state_dir == Path("/xdg/laneway")
    assert loaded(tmp_path, environ={"XDG_STATE_HOME": "rel"}).settings.state_dir.is_relative_to(tmp_path)
    assert loaded(tmp_path, environ={"LANEWAY_STATE_DIR": "~/s"}).settings.state_dir == tmp_path / "s"


def test_where_a_settings_file_is_looked_for(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "laneway.toml").write_text("[server]\nport = 1\n")
    environ = {"LANEWAY_STATE_DIR": str(state)}
    assert loaded(tmp_path, environ=environ).settings.server.port == 1
    Path("laneway.toml").write_text("[server]\nport = 2\n")
    assert loaded(tmp_path, environ=environ).settings.server.port == 2
    (tmp_path / "named.toml").write_text("[server]\nport = 3\n")
    environ["LANEWAY_CONFIG"] = str(tmp_path / "named.toml")
    assert loaded(tmp_path, environ=environ).settings.server.port == 3
    assert loaded(tmp_path, "[server]\nport = 4\n", environ).settings.server.port == 4


def test_a_named_file_must_be_there_and_be_toml(tmp_path: Path) -> None:
    missing = {"LANEWAY_CONFIG": str(tmp_path / "no.toml")}
    assert refusal(tmp_path, environ=missing) == f"{tmp_path / 'no.toml'}: cannot be read: No such file or directory"
    assert f"{tmp_path / 'given.toml'}: is not valid TOML" in refusal(tmp_path, "port = \n")


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    assert loaded(tmp_path, "\ufeff[server]\nport = 5\n").settings.server.port == 5


def test_agents_take_from_the_defaults_what_they_do_not_say(tmp_path: Path) -> None:
    toml = """
    [agents.defaults]
    model = "demo"
    timeout_seconds = 60
    system_prompt = "Be brief."
    [agents.writer]
    description = "Writes."
    timeout_seconds = 0
    system_prompt = ""
    [agents.bare]
    """
    settings = loaded(tmp_path, toml, {"LANEWAY_AGENTS__BARE__MODEL": "openai:x"}).settings
    assert settings.agent_ids() == ("main", "bare", "writer")
    writer, bare, main = (settings.agent(name) for name in ("writer", "bare", "main"))
    assert writer and bare and main
    assert (writer.model, writer.timeout_seconds, writer.system_prompt) == ("demo", 0, "")
    assert (bare.model, bare.timeout_seconds, bare.system_prompt) == ("openai:x", 60, "Be brief.")
    assert main.description == ""
    assert settings.agent("nobody") is None
    assert settings.agent("defaults") is None


@pytest.mark.parametrize(
    ("environ", "model", "source"),
    [
        ({}, "demo", "picked: no provider key is set"),
        ({"ANTHROPIC_API_KEY": "a"}, "anthropic:claude-sonnet-5-5", "picked: ANTHROPIC_API_KEY is set"),
        ({"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}, "openai:gpt-5-mini", "picked: OPENAI_API_KEY is set"),
        ({"OPENAI_API_KEY": ""}, "demo", "picked: no provider key is set"),
    ],
)
def test_which_model_runs_with_nothing_configured(
    tmp_path: Path, environ: dict[str, str], model: str, source: str
) -> None:
    result = loaded(tmp_path, environ=environ)
    assert result.settings.agents.defaults.model == model
    assert result.sources["agents.defaults.model"] == source


def test_a_configured_model_is_never_replaced(tmp_path: Path) -> None:
    toml = '[agents.defaults]\nmodel = "anthropic:x"'
    assert loaded(tmp_path, toml, {"OPENAI_API_KEY": "o"}).settings.agents.defaults.model == "anthropic:x"


LOCAL = '[providers.local]\nkind = "openai"\nbase_url = "http://127.0.0.1:1/v1"\napi_key = "{}"\n'


def key_of(settings: Settings, provider_id: str) -> str:
    provider = settings.provider(provider_id)
    assert isinstance(provider, Provider)
    return provider.api_key.get_secret_value()


def test_secrets_are_taken_from_where_they_are_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from-file\n")
    assert key_of(loaded(tmp_path, LOCAL.format(f"file:{secret}")).settings, "local") == "from-file"
    assert key_of(loaded(tmp_path, LOCAL.format("env:K"), {"K": "from-env"}).settings, "local") == "from-env"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("env:NOPE", "providers.local.api_key: the environment variable NOPE is not set"),
        ("file:/nowhere/at/all", "providers.local.api_key: /nowhere/at/all cannot be read"),
        ("file:relative", "providers.local.api_key: file: needs an absolute path"),
    ],
)
def test_a_secret_that_is_not_there_stops_the_start(tmp_path: Path, reference: str, expected: str) -> None:
    assert expected in refusal(tmp_path, LOCAL.format(reference))
    assert loaded(tmp_path, LOCAL.format(reference), secrets=False).settings.provider("local")


def test_a_secret_written_out_works_with_a_warning_and_is_shown_nowhere(tmp_path: Path) -> None:
    result = loaded(tmp_path, LOCAL.format("hush-hush"))
    assert key_of(result.settings, "local") == "hush-hush"
    assert len(result.warnings) == 1 and "providers.local.api_key" in result.warnings[0]
    shown = {key: value for key, value, _ in effective(result)}
    assert shown["providers.local.api_key"] == "***"
    for text in (repr(result), str(shown), result.settings.model_dump_json(), result.warnings[0]):
        assert "hush" not in text


def test_a_secret_in_the_environment_needs_no_warning(tmp_path: Path) -> None:
    environ = {"LANEWAY_PROVIDERS__LOCAL__API_KEY": "hush", "LANEWAY_PROVIDERS__LOCAL__KIND": "openai"}
    result = loaded(tmp_path, environ=environ)
    assert (key_of(result.settings, "local"), result.warnings) == ("hush", [])


def test_a_wrong_secret_is_not_printed(tmp_path: Path) -> None:
    line = refusal(tmp_path, '[providers.openai]\napi_key = ["hush"]')
    assert "hush" not in line and "providers.openai.api_key" in line


def test_a_vendors_key_goes_to_the_vendor_only(tmp_path: Path) -> None:
    toml = '[providers.local]\nkind = "openai"\nbase_url = "http://127.0.0.1:1/v1"\n'
    result = loaded(tmp_path, toml, {"OPENAI_API_KEY": "vendor"})
    assert key_of(result.settings, "local") == ""
    assert key_of(result.settings, "openai") == "vendor"
    assert result.sources["providers.openai.api_key"] == "environment OPENAI_API_KEY"


def test_kinds_are_providers_without_being_configured(tmp_path: Path) -> None:
    settings = loaded(tmp_path).settings
    demo = settings.provider("demo")
    assert demo is not None and demo.kind == "demo"
    assert settings.provider("local") is None


def test_a_script_is_found_from_any_folder(tmp_path: Path) -> None:
    settings = loaded(tmp_path, '[providers.scripted]\nscript = "replies.json"').settings
    provider = settings.provider("scripted")
    assert provider is not None and provider.script == str(tmp_path / "replies.json")


def test_every_key_is_described_with_its_bounds() -> None:
    table = {".".join(row.key): row for row in describe()}
    assert table["server.port"].allowed == "a whole number from 0 to 65535"
    assert table["limits.request_body_bytes"].default == 20 * 1024 * 1024
    assert "providers.<id>.api_key" in table and "agents.<id>.model" in table
    for row in table.values():
        assert row.description.endswith("."), row.key
        assert row.section, row.key
