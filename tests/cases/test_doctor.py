"""`laneway doctor`: it says what is wrong with a set-up and what to do about it, and touches nothing."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.store.migrate import revisions
from tests.kit.database import PostgresDatabase
from tests.kit.gauges import until
from tests.kit.pg_pooler import Next, PgPooler
from tests.kit.pg_proxy import PgProxy
from tests.kit.postgres import PostgresServer
from tests.kit.service import Service, ServiceFactory
from tests.kit.starting import Ended, start

Report = dict[str, list[dict[str, Any]]]


def doctor(state_dir: Path, *, folder: Path | None = None, **environ: str) -> tuple[Ended, Report]:
    """How it ended, and its findings by subject."""
    settings = {"LANEWAY_SERVER__PORT": "0", **environ}
    ended = start(state_dir, "--json", command="doctor", environ=settings, folder=folder)
    assert ended.code in (0, 1) and "Traceback" not in ended.err, ended
    told = json.loads(ended.out)
    report: Report = {}
    for finding in told["findings"]:
        assert finding["level"] == "ok" or finding["hint"], finding
        report.setdefault(finding["subject"], []).append(finding)
    problems = [one for found in report.values() for one in found if one["level"] == "problem"]
    assert (len(problems), ended.code) == (told["problems"], 1 if problems else 0)
    return ended, report


def check(report: Report, subject: str, level: str, *words: str) -> None:
    """There is such a finding and its text and hint have these words."""
    texts = [f"{one['text']} {one['hint']}" for one in report[subject] if one["level"] == level]
    assert any(all(word in text for word in words) for text in texts), report[subject]


def contents(folder: Path) -> Mapping[str, tuple[int, bytes]]:
    """Every file with its mode; what readers of SQLite share in memory is left out."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in files}


def test_of_a_new_set_up_nothing_is_wrong_and_nothing_is_made(tmp_path: Path) -> None:
    ended, report = doctor(tmp_path / "state")
    assert ended.code == 0 and ended.err == ""
    check(report, "model", "warning", "demo", "offline")
    check(report, "database", "ok", "made at the first start")
    assert list(tmp_path.iterdir()) == []


async def test_of_a_running_service_it_says_who_serves_and_at_which_revision(service: ServiceFactory) -> None:
    async with service() as one:
        await one.ended(await one.run("hello", "a"))
        before = contents(one.state_dir)
        port = one.address.rpartition(":")[2]
        ended, report = doctor(one.state_dir, **_settings(one), LANEWAY_SERVER__PORT=port)
        assert ended.code == 0, report
        check(report, "state directory", "ok", f"process {one.pid}", one.address)
        check(report, "database", "ok", f"at revision {revisions()[-1]}")
        check(report, "port", "ok", "is ready")
        assert contents(one.state_dir).keys() == before.keys()
        await one.ended(await one.run("and on", "a"))


def _settings(one: Service) -> dict[str, str]:
    return {f"LANEWAY_{key.upper().replace('.', '__')}": str(value) for key, value in one.store.settings.items()}


def test_a_damaged_file_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "laneway.db").write_bytes(b"this is no database" * 1_000)
    (state / "secret.key").write_text("short")
    before = contents(state)
    _, report = doctor(state)
    check(report, "database", "problem", "corrupt or no SQLite database")
    check(report, "secret key", "problem", "is damaged", "delete it")
    assert contents(state) == before


def test_a_page_that_is_broken_inside_is_found(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert start(state, command="migrate").code == 0
    path = state / "laneway.db"
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA journal_mode = DELETE")
        page, root = (
            raw.execute("PRAGMA page_size").fetchone()[0],
            raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ix_session_updated'").fetchone()[0],
        )
    with path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\xff" * page)
    _, report = doctor(state)
    check(report, "database", "problem", "damaged", "backup")


def test_open_rights_are_warned_of(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    (state / "secret.key").write_text("k" * 64)
    (state / "secret.key").chmod(0o644)
    ended, report = doctor(state)
    assert ended.code == 0
    check(report, "state directory", "warning", "open to other users", "chmod 700")
    check(report, "secret key", "warning", "read by other users", "chmod 600")


def test_a_wrong_setting_is_the_one_finding(tmp_path: Path) -> None:
    _, report = doctor(tmp_path / "state", LANEWAY_QUEUE__CAP="0")
    assert list(report) == ["settings"]
    check(report, "settings", "problem", "queue.cap")


def test_no_secret_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "laneway.toml"
    file.write_text(
        '[providers.openai]\napi_key = "sk-very-secret"\n[store]\nurl = "postgresql://u:hidden@127.0.0.1:1/x"\n'
    )
    ended, report = doctor(tmp_path / "state", LANEWAY_CONFIG=str(file))
    assert "sk-very-secret" not in ended.out + ended.err and "hidden" not in ended.out + ended.err
    check(report, "settings", "warning", "a secret is written out")
    check(report, "database", "problem", "127.0.0.1", "check store.url")


@pytest.mark.parametrize(
    ("environ", "subject", "level", "words"),
    [
        (
            {"LANEWAY_AGENTS__DEFAULTS__MODEL": "openai:gpt-5-mini"},
            "model", "problem", ("has no key", "OPENAI_API_KEY"),
        ),
        (
            {"LANEWAY_AGENTS__DEFAULTS__MODEL": "openai:gpt-5-mini", "OPENAI_API_KEY": "sk-1"},
            "model", "ok", ("openai:gpt-5-mini",),
        ),
        ({"LANEWAY_TOOLS__EXEC__ALLOWLIST": "ls,no-such-command"}, "commands", "warning", ("no-such-command",)),
        ({"LANEWAY_SECRET_KEY": "short"}, "secret key", "problem", ("too short",)),
        ({"LANEWAY_SECRET_KEY": "k" * 40}, "secret key", "ok", ("LANEWAY_SECRET_KEY",)),
        ({"LANEWAY_TOOLS__EXEC__SECURITY": "full"}, "commands", "warning", ("any command",)),
    ],
)  # fmt: skip
def test_a_model_without_a_key_and_commands_are_looked_at(
    tmp_path: Path, environ: dict[str, str], subject: str, level: str, words: tuple[str, ...]
) -> None:
    _, report = doctor(tmp_path / "state", **environ)
    check(report, subject, level, *words)


@pytest.mark.parametrize("broken", ["a file in its place", "a file above it", "locks"])
def test_what_a_start_refuses_is_a_problem(tmp_path: Path, broken: str) -> None:
    state = tmp_path / "state"
    if broken == "a file in its place":
        state.write_text("")
    elif broken == "a file above it":
        state.write_text("")
        state /= "below"
    else:
        state.mkdir(mode=0o700)
        (state / "locks").write_text("")
    refused = start(state, folder=tmp_path)
    assert refused.code == 1 and refused.err
    ended, _ = doctor(state, folder=tmp_path)
    assert ended.code == 1, ended.out


@contextlib.contextmanager
def somebody(body: bytes) -> Iterator[int]:
    """A server that is no Laneway; its port."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("body", [b"<html>", b'{"status": "fine"}', b"[]"])
def test_a_port_that_somebody_else_has_is_a_problem(tmp_path: Path, body: bytes) -> None:
    with somebody(body) as port:
        _, report = doctor(tmp_path / "state", LANEWAY_SERVER__PORT=str(port))
    check(report, "port", "problem", str(port), "another program has the port")


def test_a_server_without_tables_or_with_wrong_settings_is_a_problem(postgres: PostgresServer, tmp_path: Path) -> None:
    empty = PostgresDatabase(postgres, empty=True)
    _, report = doctor(tmp_path / "state", LANEWAY_STORE__URL=empty.url)
    check(report, "database", "problem", "has no tables yet", "laneway migrate")
    name = empty.url.partition("@/")[2].partition("?")[0]
    postgres.admin(f"ALTER DATABASE {name} SET synchronous_commit = off")
    _, report = doctor(tmp_path / "state", LANEWAY_STORE__URL=empty.url)
    check(report, "database", "problem", "synchronous_commit is off")
    check(report, "database", "warning", "fsync is off")
    empty.drop()
    newer = PostgresDatabase(postgres)
    postgres.run(newer.url, "UPDATE alembic_version SET version_num = '9999'")
    _, report = doctor(tmp_path / "state", LANEWAY_STORE__URL=newer.url)
    check(report, "database", "problem", "newer than this code")
    newer.drop()


def test_for_people_it_is_a_line_each_with_what_to_do(tmp_path: Path) -> None:
    environ = {"LANEWAY_SERVER__PORT": "0", "COLUMNS": "80", "LANEWAY_AGENTS__DEFAULTS__MODEL": "openai:gpt-5-mini"}
    ended = start(tmp_path / "state", "--state-dir", str(tmp_path / "other"), command="doctor", environ=environ)
    assert ended.code == 1 and ended.err == ""
    lines = ended.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("problem  model "))
    assert lines[at + 1].strip() == "-> set OPENAI_API_KEY, or api_key of the provider"
    assert f"{tmp_path / 'other'} is made at the first start" in ended.out
    assert list(tmp_path.iterdir()) == []


def _renewing(postgres: PostgresServer, url: str) -> list[int]:
    """Server processes of connections that renew a lease of this database."""
    ours = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    query = f"{ours} AND application_name LIKE 'laneway lease %'"
    return [pid for (pid,) in postgres.run(url, query)]


@pytest.mark.postgresql
async def test_who_holds_the_lease_of_a_database_is_told(service: ServiceFactory, postgres: PostgresServer) -> None:
    """With its connection at the server, or that there is none any more."""
    one = service()
    async with one:
        url = one.store.settings["store.url"]
        await until(lambda: _renewing(postgres, url), "its lease is renewed")
        (backend,) = _renewing(postgres, url)
        _, report = doctor(one.state_dir, **_settings(one))
        check(
            report, "lease", "ok", "held by", f"process {one.pid}", f"is {backend}, of laneway", "machine of the server"
        )
        assert [found["level"] for found in report["database"]] == ["warning", "ok"], report["database"]

        one.pause()
        postgres.run(url, "UPDATE worker SET lease_until = 0")  # as if it had been paused for longer
        _, report = doctor(one.state_dir, **_settings(one))
        check(report, "lease", "warning", "over since 1970", f"process {one.pid}", f"is {backend}", "paused or stuck")
        one.end()
        await until(lambda: not _renewing(postgres, url), "the server has seen its end")
        _, report = doctor(one.state_dir, **_settings(one))
        check(report, "lease", "ok", "over since 1970", f"process {one.pid}")
    async with one:
        one.terminate()
        assert await one.until_exit() == 0
    _, report = doctor(one.state_dir, **_settings(one))
    check(report, "lease", "ok", "nobody works on the database now")


@pytest.mark.postgresql
async def test_a_role_that_may_not_see_the_connections_of_others_is_told_what_it_may(
    service: ServiceFactory, postgres: PostgresServer
) -> None:
    async with service() as one:
        url = one.store.settings["store.url"]
        postgres.run(url, "CREATE ROLE watcher LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO watcher")
        try:
            await until(lambda: _renewing(postgres, url), "its lease is renewed")
            _, report = doctor(one.state_dir, LANEWAY_STORE__URL=url.replace("laneway@", "watcher@"))
            check(report, "lease", "ok", f"process {one.pid}", "this role may see no more")
        finally:
            postgres.run(url, "DROP OWNED BY watcher; DROP ROLE watcher")


@pytest.mark.parametrize(
    ("servers", "take", "why"),
    [
        (1, "last", "two connections were answered by one process"),
        (2, "last", "two connections were answered by one process"),
        (3, "longest", "one connection was answered by several processes"),
    ],
)
async def test_a_pooler_in_transaction_mode_is_warned_of(
    postgres: PostgresServer, tmp_path: Path, servers: int, take: Next, why: str
) -> None:
    database = PostgresDatabase(postgres)
    async with PgPooler(postgres.socket, servers=servers, take=take) as pooler:
        url = pooler.url(database.url)
        _, report = await asyncio.to_thread(doctor, tmp_path / "state", LANEWAY_STORE__URL=url)
    check(report, "database", "warning", "a pooler in transaction mode", why, "session mode")
    assert not [found for found in report["database"] if "settings" in found["text"]], report
    database.drop()


async def test_a_statement_that_a_pooler_kept_of_another_process_is_told_as_that(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    database = PostgresDatabase(postgres)
    async with PgPooler(postgres.socket, servers=1) as pooler:
        url = pooler.url(database.url)
        for _ in range(2):
            _, report = await asyncio.to_thread(doctor, tmp_path / "state", LANEWAY_STORE__URL=url)
    check(report, "database", "problem", "already exists", "session mode")
    database.drop()


@pytest.mark.parametrize("settings", [True, False])
async def test_one_that_passes_on_whole_connections_is_not_but_settings_that_are_lost_are(
    postgres: PostgresServer, tmp_path: Path, settings: bool
) -> None:
    database = PostgresDatabase(postgres)
    between = (
        PgProxy(postgres.socket, lambda: None) if settings else PgPooler(postgres.socket, servers=2, settings=False)
    )
    async with between:
        url = between.url(database.url)
        _, report = await asyncio.to_thread(doctor, tmp_path / "state", LANEWAY_STORE__URL=url)
    told = [
        found["text"] for found in report["database"] if found["level"] == "warning" and "fsync" not in found["text"]
    ]
    if settings:
        assert told == []
    else:
        check(
            report,
            "database",
            "warning",
            "does not pass on the settings",
            "lock_timeout, statement_timeout",
            "on the role",
        )
    database.drop()
