"""Attempts in hand: from the COMMIT of their take on they can be asked to stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.domain.run import Attempt
from app.runs.executor import Executor
from app.store.transaction.lane import Left, Taken
from tests.kit.inside import inside


async def test_an_abort_that_comes_right_behind_the_take_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its COMMIT may follow at once, before the drain has gone on; here the run would wait long for the write lock."""
    execute = Executor.execute

    async def late(executor: Executor, attempt: Attempt) -> Taken | Left:
        answer = await one.abort(attempt.run_id)
        assert answer["status"] == "running", answer
        return await execute(executor, attempt)

    monkeypatch.setattr(Executor, "execute", late)
    async with inside(tmp_path) as one:
        around = one.service.around
        first = await one.ended(await one.run("hello", "locked"))
        assert first["status"] == "cancelled"
        async with around.locks.hold(first["sessionKey"], "somebody else"):
            record = await one.ended(await one.run("hello", "locked"))
            assert record["status"] == "cancelled"
        assert one.service.executor.executing == 0
