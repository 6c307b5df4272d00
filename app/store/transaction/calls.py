"""T7 and T8: the calls of an assistant entry, from planned to the step that puts their results behind it.

Each call has one row, and each change of it names the state that it comes from: a call is started at most once, and a
result that is there is never replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from app.clock import Ids
from app.domain import tool_event
from app.domain.audit import CallIdentity, RunIdentity, call_ended, call_started, result_dropped
from app.domain.event import Event, Told
from app.domain.message import Message, ToolCallPart
from app.domain.step import Answer
from app.domain.tool_call import CallResult, CallState, OpenCall, closing
from app.store import tables as t
from app.store.contract import Fenced
from app.store.transaction.attempt import keep_progress, keep_unless_aborted
from app.store.transaction.entries import Claim, Entry, append_entries, check_claim
from app.store.transaction.ledger import put_audit


@dataclass(frozen=True, slots=True)
class Known:
    """Whom the ledger rows of a step are about, and when it is."""

    who: RunIdentity
    now_ms: int
    ids: Ids


_plan = insert(t.tool_call)
_intend = (
    update(t.tool_call)
    .where(t.tool_call.c.id == bindparam("b_id"), t.tool_call.c.state == "planned")
    .values(state="intended", attempt=bindparam("b_attempt"))
)
_own = (
    update(t.tool_call)
    .where(
        t.tool_call.c.id == bindparam("b_id"),
        t.tool_call.c.state == "intended",
        t.tool_call.c.attempt == bindparam("b_attempt"),
    )
    .values(group_id=bindparam("b_group"))
)
_settle = (
    update(t.tool_call)
    .where(t.tool_call.c.id == bindparam("b_id"), t.tool_call.c.state == bindparam("b_from"))
    .values(state=bindparam("b_state"), result=bindparam("b_result"))
)
_one = select(t.tool_call).where(t.tool_call.c.id == bindparam("b_id"))
_last_entry = select(func.max(t.tool_call.c.entry_no)).where(t.tool_call.c.run_id == bindparam("b_run"))
_of_entry = (
    select(t.tool_call)
    .where(t.tool_call.c.run_id == bindparam("b_run"), t.tool_call.c.entry_no == bindparam("b_entry"))
    .order_by(t.tool_call.c.ordinal)
)
_message_of_entry = select(t.transcript.c.message_id).where(
    t.transcript.c.transcript_id == bindparam("b_transcript"), t.transcript.c.entry_no == bindparam("b_entry")
)
_is_answered = (
    select(t.transcript.c.entry_no)
    .where(
        t.transcript.c.transcript_id == bindparam("b_transcript"),
        t.transcript.c.entry_no == bindparam("b_entry") + 1,
    )
    .limit(1)
)
_groups = select(t.tool_call.c.group_id).where(t.tool_call.c.state == "intended", t.tool_call.c.group_id.is_not(None))


def plan_calls(
    conn: Connection, claim: Claim, entry_no: int, calls: Sequence[ToolCallPart], identities: Sequence[CallIdentity]
) -> None:
    """Part of T6: a row for each call of the entry, in their order."""
    conn.execute(
        _plan,
        [
            {
                "id": call.tool_call_id,
                "run_id": claim.run_id,
                "entry_no": entry_no,
                "ordinal": ordinal,
                "attempt": claim.attempt,
                "state": "planned",
                "kind": "local",
                "name": call.name,
                "call_id": call.provider_id,
                "args": call.args,
                "call_ref": identity.ref,
                "tool_name": identity.tool_name,
            }
            for ordinal, (call, identity) in enumerate(zip(calls, identities, strict=True))
        ],
    )


def intend_calls(  # noqa: PLR0913
    conn: Connection,
    claim: Claim,
    call_ids: Iterable[str],
    known: Known,
    events: tuple[Event, ...],
    *,
    last: int,
    high: int,
) -> int:
    """T7, before they start. Returns the new reserve. Raises AbortRequested, Fenced, ClaimLost."""
    check_claim(conn, claim)
    reserve = keep_unless_aborted(conn, claim, events, last=last, high=high)
    for call_id in call_ids:
        started = conn.execute(_intend, {"b_id": call_id, "b_attempt": claim.attempt}).rowcount
        row = conn.execute(_one, {"b_id": call_id}).mappings().one()
        if not started and (row["state"], row["attempt"]) != ("intended", claim.attempt):
            raise Fenced
        put_audit(conn, call_started(known.who, _identity(row), known.ids.new(), known.now_ms))
    return reserve


def own_group(  # noqa: PLR0913
    conn: Connection, claim: Claim, call_id: str, group: str, events: tuple[Event, ...], *, last: int, high: int
) -> int:
    """The process group of an intended call, before it does anything. Returns the new reserve. Raises Fenced."""
    reserve = keep_progress(conn, claim, events, last=last, high=high)
    if conn.execute(_own, {"b_id": call_id, "b_attempt": claim.attempt, "b_group": group}).rowcount == 0:
        raise Fenced
    return reserve


def end_calls(  # noqa: PLR0913
    conn: Connection,
    claim: Claim,
    answers: Iterable[Answer],
    known: Known,
    events: tuple[Event, ...],
    *,
    last: int,
    high: int,
) -> int:
    """T7, after they returned, or instead of starting them. Returns the new reserve. Raises Fenced."""
    reserve = keep_progress(conn, claim, events, last=last, high=high)
    for answer in answers:
        before = CallState.INTENDED if answer.started else CallState.PLANNED
        _end(conn, answer.call.tool_call_id, before, answer.result, known)
    return reserve


def close_calls(  # noqa: PLR0913
    conn: Connection, claim: Claim, entries: list[Entry], events: tuple[Event, ...], *, last: int, high: int
) -> int:
    """T8: the results behind their entry, nothing between. Returns the new reserve. Raises Fenced, ClaimLost."""
    entry_no = conn.execute(_last_entry, {"b_run": claim.run_id}).scalar_one()
    rows = conn.execute(_of_entry, {"b_run": claim.run_id, "b_entry": entry_no}).mappings().all()
    assert len(rows) == len(entries) and all(CallState(row["state"]).settled for row in rows), "every call is settled"
    first_no = append_entries(conn, claim, entries)
    assert first_no == entry_no + 1, "results stand right behind their calls"
    return keep_progress(conn, claim, events, last=last, high=high)


def drop_results(conn: Connection, call_ids: Iterable[str], known: Known) -> None:
    """The ledger's word for results that came when nobody waited for them any more. Not fenced: it changes no run."""
    for call_id in call_ids:
        row = conn.execute(_one, {"b_id": call_id}).mappings().one()
        put_audit(conn, result_dropped(known.who, _identity(row), known.ids.new(), known.now_ms))


def open_calls(conn: Connection, run_id: str, transcript_id: str) -> list[OpenCall]:
    """The calls of the run's last entry with calls, in order, while their results are not in the transcript."""
    entry_no = conn.execute(_last_entry, {"b_run": run_id}).scalar_one()
    if entry_no is None:
        return []
    place = {"b_transcript": transcript_id, "b_entry": entry_no}
    if conn.execute(_is_answered, place).first() is not None:
        return []
    message_id = conn.execute(_message_of_entry, place).scalar_one()
    rows = conn.execute(_of_entry, {"b_run": run_id, "b_entry": entry_no}).mappings()
    return [_open_call(row, message_id) for row in rows]


def give_up_calls(conn: Connection, run: Any, known: Known, *, stopped: bool) -> tuple[list[Message], list[Told]]:
    """Part of T10: every open call gets the result that says why it has no other.

    Returns the messages that belong behind the entry, in order, and what is to be told. The caller holds the lock.
    """
    opened = open_calls(conn, run["id"], run["transcript_id"])
    messages: list[Message] = []
    told: list[Told] = []
    for item in opened:
        result = item.result
        if result is None:
            result = closing(item, known.ids.new(), stopped=stopped)
            _end(conn, item.call.tool_call_id, item.state, result, known, given_up=True)
            told.append(tool_event.ended(item.message_id, item.call, result, result.text, truncated=False))
        messages.append(result.message(item.call))
    return messages, told


def owned_groups(conn: Connection) -> list[str]:
    """Process groups of calls that were started and never ended, for a process that has just begun."""
    return list(conn.execute(_groups).scalars())


def _end(  # noqa: PLR0913
    conn: Connection, call_id: str, before: CallState, result: CallResult, known: Known, *, given_up: bool = False
) -> None:
    if before is CallState.PLANNED:
        after = CallState.SKIPPED
    else:
        after = CallState.UNKNOWN if given_up or result.code == "unknown" else CallState.DONE
    values = {"b_id": call_id, "b_from": before.value, "b_state": after.value, "b_result": result.to_text()}
    settled = conn.execute(_settle, values).rowcount
    row = conn.execute(_one, {"b_id": call_id}).mappings().one()
    if not settled and row["result"] != values["b_result"]:
        raise Fenced
    put_audit(conn, call_ended(known.who, _identity(row), known.ids.new(), known.now_ms, result))


def _open_call(row: Any, message_id: str) -> OpenCall:
    return OpenCall(
        call=ToolCallPart(row["id"], row["name"], row["args"], row["call_id"]),
        message_id=message_id,
        state=CallState(row["state"]),
        result=None if row["result"] is None else CallResult.from_text(row["result"]),
        group=row["group_id"],
    )


def _identity(row: Any) -> CallIdentity:
    return CallIdentity(row["call_ref"], row["tool_name"])
