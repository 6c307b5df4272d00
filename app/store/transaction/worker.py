"""The rows of workers: one an incarnation of a process that executes. Whoever begins proves that no other one lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from app.store import tables as t
from app.store.dialect import database_ms, lock_places

LEASE_MS = 8_000
"""How long a worker that says nothing still counts as alive."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A process as its row names it. `boot_id` names the boot of its machine and its space of process ids."""

    id: str
    host: str
    pid: int
    boot_id: str


_insert = insert(t.worker)
_living = select(t.worker).where(t.worker.c.dead_at.is_(None), t.worker.c.id != bindparam("b_me"))
_dead = update(t.worker).where(t.worker.c.id == bindparam("b_id")).values(dead_at=bindparam("b_now"))
_forget = delete(t.worker).where(t.worker.c.dead_at.is_not(None), t.worker.c.dead_at < bindparam("b_before"))


def register_worker(
    conn: Connection,
    me: Incarnation,
    now_ms: int,
    is_gone: Callable[[Incarnation], bool],
    keep_dead_ms: int,
) -> list[Incarnation]:
    """Begin as the only worker, or return those that may still live; then nothing was changed.

    Another one is dead when its lease is over by the database's clock, or when `is_gone` knows.
    """
    lock_places(conn)
    now = database_ms(conn, now_ms)
    dead: list[str] = []
    living: list[Incarnation] = []
    for row in conn.execute(_living, {"b_me": me.id}).mappings():
        other = Incarnation(row["id"], row["host"], row["pid"], row["boot_id"])
        if row["lease_until"] < now or is_gone(other):
            dead.append(other.id)
        else:
            living.append(other)
    if living:
        return living
    for worker_id in dead:
        conn.execute(_dead, {"b_id": worker_id, "b_now": now})
    conn.execute(_forget, {"b_before": now - keep_dead_ms})
    row_of_mine: dict[str, Any] = {
        "id": me.id,
        "host": me.host,
        "pid": me.pid,
        "boot_id": me.boot_id,
        "started_at": now,
        "lease_until": now + LEASE_MS,
    }
    conn.execute(_insert, row_of_mine)
    return []


def retire_worker(conn: Connection, worker_id: str, now_ms: int) -> None:
    """The process ends by itself."""
    conn.execute(_dead, {"b_id": worker_id, "b_now": database_ms(conn, now_ms)})
