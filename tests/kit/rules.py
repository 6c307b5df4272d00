"""The rules that hold after every case: one truthful end, told alike; texts that agree; a session that goes on.

Rules R2 and R3 are checked by the model server itself, the tables by `invariants`; `check_case` does all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from tests.kit.invariants import check_invariants
from tests.kit.model_server import reply_text
from tests.kit.service import Service
from tests.kit.sse import Checked, check_stream

WAIT_WORDS = {"succeeded": "ok", "failed": "error", "timed_out": "timeout", "cancelled": "error", "dropped": "error"}
PLAIN = "plain-message-after-the-case"


async def check_run(service: Service, run_id: str, *, timeout_ms: int = 30_000) -> Checked:
    """R1, R4 and R5 of one run, after it has ended: record, wait, stream, ledger and transcript name the same."""
    waited = await service.wait(run_id, timeout_ms)
    assert waited["waitExpired"] is False, f"run {run_id} has not ended: {await service.record(run_id)}"
    record = await service.record(run_id)
    status = record["status"]
    assert waited["status"] == WAIT_WORDS.get(status, waited["status"]), f"wait {waited} and record {record} differ"
    assert (waited["startedAt"], waited["endedAt"]) == (record["startedAt"], record["endedAt"])
    async with await service.stream(run_id) as stream:
        checked = check_stream(await stream.collect_until_done())
        assert stream.violations == [], stream.violations
        assert await stream.expect_end() == []
    assert checked.terminal is not None and checked.terminal.seq == record["lastSeq"]
    _same_outcome(checked, record, waited)
    await _same_ledger(service, record, checked)
    await _same_texts(service, record, checked)
    return checked


async def check_plain(service: Service, session: str) -> None:
    """R6: the session takes a plain message and answers it."""
    service.model.on(PLAIN, reply_text("and a plain answer", deltas=3))
    run_id = await service.run(f"{PLAIN} [s:{session}]", session)
    record = await service.ended(run_id)
    assert record["status"] == "succeeded", f"session {session} does not answer any more: {record}"
    assert reply_texts(record) == ["and a plain answer"]


async def check_case(
    service: Service, run_ids: Iterable[str] = (), *, sessions: Iterable[str] = (), model: bool = True
) -> None:
    """All rules: these runs end and are told alike, these sessions answer, model requests and tables are sound."""
    listed = list(run_ids)
    await asyncio.gather(*(check_run(service, run_id) for run_id in listed))
    for session in sessions:
        await check_plain(service, session)
    if model:
        service.model.check()
    check_invariants(service, accepted=listed)


def reply_texts(record: dict[str, Any]) -> list[str]:
    """The texts of a record's or wait answer's reply."""
    payloads = (record.get("reply") or {}).get("payloads") or []
    return [payload["text"] for payload in payloads if payload["kind"] == "text"]


def transcript_text(item: dict[str, Any]) -> str:
    """The text of a transcript item."""
    return "".join(part["text"] for part in item["parts"] if part["type"] == "text")


def _same_outcome(checked: Checked, record: dict[str, Any], waited: dict[str, Any]) -> None:
    terminal = checked.terminal
    assert terminal is not None and checked.done is not None
    told = (terminal.payload.get("error") or {}).get("code")
    recorded = (record.get("error") or {}).get("code")
    if terminal.phase == "error":
        assert told == recorded == waited["error"]["code"], (terminal.payload, record, waited)
    else:
        assert terminal.payload["outcome"] == record["outcome"], (terminal.payload, record)
        assert recorded is None, record
        if record["status"] == "cancelled":
            assert waited["error"]["code"] == record["outcome"], waited
    done = checked.done.payload
    assert done["status"] in (waited["status"], record["status"]), (done, waited)


async def _same_ledger(service: Service, record: dict[str, Any], checked: Checked) -> None:
    rows = await service.audit(runId=record["runId"], kind="agent_run")
    ends = [row for row in rows if row["action"] == "run.end"]
    starts = [row for row in rows if row["action"] == "run.start"]
    assert len(ends) == 1 and len(starts) == (record["startedAt"] is not None), rows
    status = {"merged": "succeeded", "dropped": "cancelled"}.get(record["status"], record["status"])
    assert ends[0]["status"] == status, (ends, record)
    terminal = checked.terminal
    assert terminal is not None
    assert ends[0].get("code") in (checked.outcome, terminal.payload.get("stopReason")), (ends, terminal)


async def _same_texts(service: Service, record: dict[str, Any], checked: Checked) -> None:
    items = await service.transcript(record["sessionKey"])
    kept = {item["messageId"]: transcript_text(item) for item in items if item["role"] == "assistant"}
    ended = {name: message.text for name, message in checked.messages.items() if message.ended and message.text}
    for message_id, words in ended.items():
        assert kept.get(message_id) == words, f"{message_id}: told {words!r:.200}, kept {kept.get(message_id)!r:.200}"
    replied = reply_texts(record)
    if replied:
        assert "".join(replied) in ended.values(), f"the reply {replied!r:.200} was never told: {ended!r:.400}"
