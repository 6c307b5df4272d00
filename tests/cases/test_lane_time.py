"""Waiting in line is no part of a run's time: neither of its limit nor of the model's silence."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.kit.gauges import until_quiet
from tests.kit.model_server import ModelServer, done, finish, hold, reply_text, role, text
from tests.kit.rules import check_case
from tests.kit.service import ServiceFactory

LIMIT_S = 2.0


async def test_time_in_the_queue_counts_neither_for_the_run_limit_nor_as_silence_of_the_model(
    service: ServiceFactory, model: ModelServer
) -> None:
    """LANE-07"""
    model.on("busy", [role(), text("busy"), hold("busy"), finish(), done()])
    model.on("in line", reply_text("it was my turn"))
    model.on("hangs", [role(), text("then nothing"), hold("for ever")])
    patient = {"providers.patient.kind": "openai", "providers.patient.base_url": model.base_url}
    async with service({"providers.test.timeout_seconds": LIMIT_S, **patient}) as one:
        busy = await one.run("busy [s:a]", "a", model="patient:x")
        waiting = await one.run("in line [s:a]", "a", timeoutSeconds=LIMIT_S)
        hanging = await one.run("hangs [s:a]", "a", timeoutSeconds=1)
        expired = await one.wait(waiting, int(LIMIT_S * 1000) + 500)
        assert expired["waitExpired"] is True and (await one.record(waiting))["status"] == "queued"
        model.release("busy")

        records = [await one.ended(run_id, 60_000) for run_id in (busy, waiting, hanging)]
        assert [record["status"] for record in records] == ["succeeded", "succeeded", "timed_out"]
        first, second, third = records
        assert first["endedAt"] <= second["startedAt"] and second["endedAt"] <= third["startedAt"]
        assert _time(second, "startedAt") - _time(second, "acceptedAt") >= timedelta(seconds=LIMIT_S)
        assert timedelta(seconds=1) <= _time(third, "endedAt") - _time(third, "startedAt") < timedelta(seconds=11)
        assert third["error"]["code"] == "timed-out"
        await check_case(one, [busy, waiting, hanging], sessions=["a"])
        await until_quiet(one)


def _time(record: dict[str, Any], name: str) -> datetime:
    return datetime.fromisoformat(record[name])
