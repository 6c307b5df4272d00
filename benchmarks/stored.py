"""What a run leaves on disk, after it is folded, against what was said in it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import psycopg

from benchmarks.figures import Figure, Goal
from benchmarks.load import load
from benchmarks.plan import Plan
from benchmarks.stage import Stage, first_accept
from benchmarks.targets import prompt, session
from benchmarks.wire import now
from tests.kit.database import Database, PostgresDatabase, SqliteDatabase

SESSIONS = 50
CLIENTS = 8
RUNS_S_MAX = 60.0
FOLDED_S_MAX = 120.0
LOOK_AGAIN_S = 0.25
CONTENTS = {
    "answers of 8,000 deltas": ("d8000", 100),
    "answers of 200 deltas": ("d200", 400),
    "answers of one delta": ("d1", 400),
}
"""What is answered, and how often."""


async def stored(stage: Stage, plan: Plan) -> list[Figure]:
    """Growth of the database by run, packed (VACUUM), with all its indexes.

    Content is the bytes of text that were posted and answered, each counted once.
    """
    figures: list[Figure] = []
    for name, (spec, runs) in CONTENTS.items():
        each = Figure(f"bytes stored of a run, {name}", "B", compares=False)
        content = Figure(f"bytes of content of a run, {name}", "B", compares=False)
        ratio = Figure(f"stored, times the content, {name}", "x", Goal(1.5), compares=False)
        kept, said = await _one(stage, plan, spec, runs)
        each.add("laneway", kept)
        content.add("laneway", said)
        ratio.add("laneway", kept / said)
        figures += [each, content, ratio]
    return figures


async def _one(stage: Stage, plan: Plan, spec: str, runs: int) -> tuple[float, float]:
    """Bytes stored and bytes of content by run. What is stored of the first accept is within the noise."""
    total = plan.count(runs, 50)
    folder = stage.folder("stored")
    async with stage.started(folder) as laneway:
        await first_accept(laneway)
        database = stage.database(folder)
        await _folded(database)
        before = _packed_bytes(database)
        sessions = [session() for _ in range(SESSIONS)]
        done = await load(lambda n: laneway.run(sessions[n % SESSIONS], spec), total, CLIENTS, RUNS_S_MAX)
        plan.checked(f"stored, {spec}", done)
        await _folded(database)
        grown = _packed_bytes(database) - before
    said = sum(call.chars + len(prompt(spec)) for call in done.calls)
    return grown / len(done.calls), said / len(done.calls)


async def _folded(database: Database) -> None:
    """Until every run has ended and is folded. Raises TimeoutError."""
    begun = now()
    while now() - begun < FOLDED_S_MAX:
        with database.reading() as rows:
            if rows("SELECT count(*) AS n FROM run WHERE folded_at IS NULL")[0]["n"] == 0:
                return
        await asyncio.sleep(LOOK_AGAIN_S)  # folding tells nobody
    raise TimeoutError(f"not folded within {FOLDED_S_MAX:g} s")


def _packed_bytes(database: Database) -> int:
    """All of it, packed: the service's own file is copied for that, a server's tables are packed in place."""
    if isinstance(database, SqliteDatabase):
        return _copied_bytes(database.path)
    assert isinstance(database, PostgresDatabase)
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("VACUUM FULL")
        found = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        ).fetchone()
    assert found is not None
    return int(found[0])


def _copied_bytes(path: Path) -> int:
    copy = path.with_name("packed.db")
    copy.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    return copy.stat().st_size
