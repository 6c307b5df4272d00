"""What `laneway doctor` looks at: one function a subject, each giving findings. Nothing is made, changed or locked."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sqlite3
import stat
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import httpx
import orjson

from app.clock import rfc3339
from app.errors import StartError, StoreUnusable
from app.settings import EMBEDDED, KEY_VARIABLES, Loaded, Settings
from app.settings.database import shown
from app.store.files import SECRET_BYTES, database_path, secret_key
from app.store.migrate import missing_revisions, unusable

FREE_BYTES_LOW = 1 << 30
FREE_BYTES_NONE = 64 << 20
WAL_BYTES_MUCH = 1 << 30
LOOK_S = 10.0
"""How long a look into the database, or at whoever answers on the port, may take."""

NETWORK_FILESYSTEMS = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "nfs", "nfs4", "smb3", "smbfs"}
)


T = TypeVar("T")

_DIRECT = "give the address of the server itself in store.url, or of a pooler in session mode"
_SETTINGS = "set them on the role in place of that (docs/postgresql.md), or give the address of the server itself"
_TAKEN = "another program has the port; stop it, or choose another one (server.port)"


class Level(StrEnum):
    """`problem`: the service does not start, or breaks a promise. `warning`: it works, but somebody should know."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `hint` is what to do about it, empty when all is well."""

    subject: str
    level: Level
    text: str
    hint: str = ""


def findings(loaded: Loaded) -> Iterator[Finding]:
    """All of them, in the order in which a start would meet them."""
    settings = loaded.settings
    yield from _settings(loaded)
    yield from _state_dir(settings.state_dir)
    yield from _secret_key(settings.state_dir)
    yield from _sqlite(settings) if settings.store.url == EMBEDDED else _postgresql(settings.store.url)
    yield from _models(loaded)
    yield from _workspaces(settings)
    yield from _commands(settings)
    yield from _port(settings)


def _settings(loaded: Loaded) -> Iterator[Finding]:
    files = sorted({source[5:] for source in loaded.sources.values() if source.startswith("file ")})
    yield Finding(
        "settings", Level.OK, f"read from {', '.join(files)}" if files else "no file, defaults and environment"
    )
    for warning in loaded.warnings:
        yield Finding("settings", Level.WARNING, warning, "anybody who reads the file has it")


def _state_dir(folder: Path) -> Iterator[Finding]:
    hint = "give the user of the service a folder that it can write (--state-dir or LANEWAY_STATE_DIR)"
    if not os.path.lexists(folder):
        above = next(place for place in folder.absolute().parents if place.exists())
        if _writable(above):
            yield Finding("state directory", Level.OK, f"{folder} is made at the first start")
        else:
            yield Finding("state directory", Level.PROBLEM, f"{folder} cannot be made in {above}", hint)
        return
    if not _writable(folder):
        yield Finding("state directory", Level.PROBLEM, f"{folder} cannot be written", hint)
        return
    served = _served_by(folder)
    yield Finding("state directory", Level.OK, f"{folder}, {served or 'nobody serves it now'}")
    if folder.stat().st_mode & 0o077:
        yield Finding("state directory", Level.WARNING, f"{folder} is open to other users", f"chmod 700 {folder}")
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES_LOW:
        level = Level.PROBLEM if free < FREE_BYTES_NONE else Level.WARNING
        hint = "make room: what cannot be written is refused, and runs stop"
        yield Finding("disk", level, f"{free >> 20} MiB are left beside {folder}", hint)


def _writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _served_by(folder: Path) -> str:
    """By the record of whoever serves it; the lock itself is left alone, since to try it could refuse a start."""
    try:
        owner = orjson.loads((folder / "laneway.owner").read_bytes())
        pid, url, since = int(owner["pid"]), str(owner["url"]), str(owner["since"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"served by process {pid}, {url}, since {since}"


def _secret_key(folder: Path) -> Iterator[Finding]:
    path = folder / "secret.key"
    given = os.environ.get("LANEWAY_SECRET_KEY", "")
    if given:
        try:
            secret_key(folder, given)
            yield Finding("secret key", Level.OK, "given by LANEWAY_SECRET_KEY")
        except StartError as problem:
            yield Finding("secret key", Level.PROBLEM, str(problem), "or unset it to have a key file made")
        return
    try:
        mode = path.stat().st_mode
        damaged = len(path.read_text().strip()) < SECRET_BYTES
    except FileNotFoundError:
        yield Finding("secret key", Level.OK, f"{path} is made at the first start")
        return
    except (OSError, ValueError):
        yield Finding(
            "secret key", Level.PROBLEM, f"{path} cannot be read", "give the user of the service the right to"
        )
        return
    if damaged:
        hint = "restore it from a backup, or delete it to have another one made"
        yield Finding("secret key", Level.PROBLEM, f"{path} is damaged", hint)
    elif stat.S_IMODE(mode) & 0o077:
        yield Finding("secret key", Level.WARNING, f"{path} can be read by other users", f"chmod 600 {path}")
    else:
        yield Finding("secret key", Level.OK, str(path))


def _sqlite(settings: Settings) -> Iterator[Finding]:
    path = database_path(settings.state_dir)
    kind = _filesystem(settings.state_dir)
    if kind in NETWORK_FILESYSTEMS:
        hint = "SQLite needs a local disk; put the state directory on one, or use PostgreSQL (store.url)"
        yield Finding("database", Level.PROBLEM, f"{path} lies on a network file system ({kind})", hint)
    locks = settings.state_dir / "locks"
    if os.path.lexists(locks) and (locks.is_symlink() or not _writable(locks)):
        hint = "move it away; the service makes a new one"
        yield Finding("database", Level.PROBLEM, f"{locks} is no folder that can be written", hint)
    if not path.exists():
        yield Finding("database", Level.OK, f"{path} is made at the first start")
        return
    if not os.access(path, os.W_OK):
        hint = "give the user of the service the right to write it and its folder"
        yield Finding("database", Level.PROBLEM, f"{path} is read-only", hint)
    try:
        yield from _sqlite_file(path)
    except sqlite3.Error as problem:
        yield Finding("database", Level.PROBLEM, str(unusable(path, problem)), "the service does not start with it")
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size > WAL_BYTES_MUCH:
        hint = "something has the file open since long; restart the service, and end what else reads the file"
        yield Finding("database", Level.WARNING, f"its log {wal} has {wal.stat().st_size >> 20} MiB", hint)


def _sqlite_file(path: Path) -> Iterator[Finding]:
    raw = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2)
    try:
        made = raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
        row = raw.execute("SELECT version_num FROM alembic_version").fetchone() if made else None
        yield _revision(None if row is None else str(row[0]), str(path), at_start=True)
        until_s = time.monotonic() + LOOK_S
        raw.set_progress_handler(lambda: time.monotonic() > until_s, 100_000)
        try:
            said = raw.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError as problem:
            if "interrupt" not in str(problem):
                raise
            yield Finding("database", Level.OK, f"it is large: no damage was found in the first {LOOK_S:.0f} s")
            return
        if said != "ok":
            hint = "stop the service, keep a copy of the file, and restore a backup"
            yield Finding("database", Level.PROBLEM, f"{path} is damaged: {said}", hint)
    finally:
        raw.close()


def _filesystem(folder: Path) -> str:
    """The type of the file system that a folder lies on, as the kernel tells it; empty where it does not."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    place, best, kind = folder.resolve(), -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = before.split()[4].replace("\\040", " ")
        if place.is_relative_to(mount) and len(mount) >= best:
            best, kind = len(mount), after.split()[0]
    return kind


def _revision(at: str | None, name: str, *, at_start: bool) -> Finding:
    try:
        missing = missing_revisions(at, name)
    except StoreUnusable as problem:
        return Finding("database", Level.PROBLEM, str(problem), "or restore a backup from before the newer version ran")
    if not missing:
        return Finding("database", Level.OK, f"{name}, at revision {at}")
    text = f"{name} is at revision {at}, this code needs {missing[-1]}" if at else f"{name} has no tables yet"
    if at_start:
        return Finding("database", Level.OK, f"{text}; the next start brings it up")
    return Finding("database", Level.PROBLEM, text, "laneway migrate")


def _postgresql(url: str) -> Iterator[Finding]:
    from app.store.postgres_begin import faults, look
    from app.store.postgres_outside import refuses_settings, shares

    name = shown(url)
    facts, problem = _asked(look(url))
    if facts is None:
        hint = "check store.url"
        if problem and (shares(problem) or refuses_settings(problem)):
            hint = _DIRECT if shares(problem) else _SETTINGS
        yield Finding("database", Level.PROBLEM, f"{name}: {_said(problem)}", hint)
        return
    for fault in faults(facts):
        yield Finding("database", Level.PROBLEM, f"{name}: {fault}", "the service does not start with it")
    if facts.fsync == "off":
        yield Finding("database", Level.WARNING, f"{name}: fsync is off", "a crash of the server may lose everything")
    revision = _revision(facts.revision, name, at_start=False)
    yield revision
    yield from _pooler(url)
    if revision.level is Level.OK:
        yield from _lease(url)


def _asked(question: Coroutine[Any, Any, T]) -> tuple[T | None, Exception | None]:
    """The answer of a database, or why there is none."""
    import asyncpg  # type: ignore[import-untyped]

    try:
        return asyncio.run(asyncio.wait_for(question, LOOK_S)), None
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
        return None, problem


def _said(problem: Exception | None) -> str:
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    return (str(problem).splitlines() or [""])[0] or type(problem).__name__


def _pooler(url: str) -> Iterator[Finding]:
    """What shows that somebody stands between; where nothing does, nothing is said, for that proves little."""
    from app.store.postgres_outside import lost_settings, pooled

    why, problem = _asked(pooled(url))
    lost, other = (None, problem) if why is None else _asked(lost_settings(url))
    if why:
        text = f"{shown(url)}: a pooler in transaction mode stands before it: {why}"
        yield Finding("database", Level.WARNING, text, _DIRECT)
    if lost:
        text = f"{shown(url)}: a pooler does not pass on the settings of a connection: {', '.join(lost)}"
        yield Finding("database", Level.WARNING, text, _SETTINGS)
    if problem or other:
        hint = "the service itself needs 2 x store.pool_size + 1 connections"
        yield Finding("database", Level.WARNING, f"{shown(url)}: {_said(problem or other)}", hint)


def _lease(url: str) -> Iterator[Finding]:
    from app.store.postgres_outside import holders

    found, problem = _asked(holders(url))
    if found is None:
        yield Finding("lease", Level.WARNING, f"who holds it is not told: {_said(problem)}", "ask again")
    elif not found:
        yield Finding("lease", Level.OK, "nobody works on the database now")
    for one in found or ():
        who = f"process {one.pid} on {one.host}, begun {rfc3339(one.started_at)}"
        if one.backend is None:
            connection = "its connection is not there"
        elif one.since is None:
            connection = f"its connection is {one.backend}, and this role may see no more of it"
        else:
            place = f"{one.address}:{one.client_port}" if one.address else "the machine of the server"
            connection = f"its connection is {one.backend}, of {one.usename} from {place} since {rfc3339(one.since)}"
        if one.held:
            yield Finding("lease", Level.OK, f"held by {who}; {connection}")
        elif one.backend is None:
            yield Finding("lease", Level.OK, f"over since {rfc3339(one.lease_until)}; it was that of {who}")
        else:
            text = f"over since {rfc3339(one.lease_until)}, though {who} is still connected; {connection}"
            yield Finding("lease", Level.WARNING, text, "it is paused or stuck; the next start takes its place")


def _models(loaded: Loaded) -> Iterator[Finding]:
    settings = loaded.settings
    for agent_id in settings.agent_ids():
        agent = settings.agent(agent_id)
        assert agent is not None, agent_id
        provider = settings.provider(agent.model.partition(":")[0])
        assert provider is not None, "checked when the settings were read"
        source = loaded.sources.get(f"agents.{agent_id}.model", loaded.sources["agents.defaults.model"])
        text = f"agent {agent_id}: {agent.model} ({source})"
        variable = KEY_VARIABLES.get(provider.kind)
        if provider.kind == "demo":
            hint = "it is offline and answers by rule; set a vendor's key or agents.defaults.model"
            yield Finding("model", Level.WARNING, text, hint)
        elif variable and not provider.base_url and not provider.api_key.get_secret_value():
            yield Finding("model", Level.PROBLEM, f"{text} has no key", f"set {variable}, or api_key of the provider")
        elif provider.script and not Path(provider.script).is_file():
            yield Finding("model", Level.PROBLEM, f"{text}: there is no script {provider.script}", "write it")
        else:
            yield Finding("model", Level.OK, text)


def _workspaces(settings: Settings) -> Iterator[Finding]:
    for agent_id in settings.agent_ids():
        agent = settings.agent(agent_id)
        assert agent is not None, agent_id
        place = agent.workspace
        if place.exists() and not _writable(place):
            text = f"{place} of agent {agent_id} cannot be written"
            yield Finding("workspace", Level.PROBLEM, text, "its runs fail; give the user of the service the right to")


def _commands(settings: Settings) -> Iterator[Finding]:
    rules = settings.tools.exec
    if rules.security == "full":
        hint = "models run any command as the user of the service; `allowlist` is the default"
        yield Finding("commands", Level.WARNING, "tools.exec.security is full", hint)
    if rules.security != "allowlist":
        return
    plain = [name for name in rules.allowlist if name and not set(name) & set("*?[/")]
    missing = [name for name in plain if shutil.which(name) is None]
    if missing:
        hint = "install them, or take them out of tools.exec.allowlist"
        yield Finding("commands", Level.WARNING, f"allowed but not on PATH: {', '.join(missing)}", hint)


def _port(settings: Settings) -> Iterator[Finding]:
    server = settings.server
    host = f"[{server.host}]" if ":" in server.host else server.host
    base = f"http://{host}:{server.port}"
    if server.port == 0:
        yield _bindable(server.host, 0, "a free one is taken at the start")
        return
    try:
        with httpx.Client(trust_env=False, timeout=LOOK_S) as client:
            answer = client.get(f"{base}/readyz")
    except httpx.ConnectError:
        yield _bindable(server.host, server.port, f"{base} is free")
        return
    except httpx.HTTPError as problem:
        yield Finding(
            "port", Level.PROBLEM, f"{base} does not answer as Laneway does ({type(problem).__name__})", _TAKEN
        )
        return
    yield _answering(base, answer)


def _bindable(host: str, port: int, text: str) -> Finding:
    """Tried as a start would, without listening: two that only bind with this option are in nobody's way."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as problem:
        hint = "choose another one (server.host, server.port)"
        return Finding("port", Level.PROBLEM, f"nothing can listen on {host}:{port}: {problem.strerror}", hint)
    return Finding("port", Level.OK, text)


def _answering(base: str, answer: httpx.Response) -> Finding:
    try:
        body = answer.json()
    except ValueError:
        body = None
    status = body.get("status") if isinstance(body, dict) else None
    if status not in ("ready", "not-ready"):
        return Finding("port", Level.PROBLEM, f"{base} is taken by something else", _TAKEN)
    if status == "ready":
        return Finding("port", Level.OK, f"a Laneway answers on {base} and is ready")
    return Finding("port", Level.WARNING, f"a Laneway answers on {base} and is not ready", f"curl {base}/readyz")
