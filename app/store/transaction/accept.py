"""T1: an input becomes a run, or is refused and leaves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, insert, select, update

from app.domain import event as ev
from app.domain.admission import Admitted, QueueMode, QueueState, decide
from app.domain.receipt import queued_receipt
from app.domain.run import RunInput
from app.errors import (
    Draining,
    FieldProblem,
    IdempotencyKeyReused,
    QueueFull,
    SessionBusy,
    SessionConflict,
    SessionNotFound,
    ValidationFailed,
)
from app.faults import Point, hit
from app.store import tables as t
from app.store.dialect import insert_new
from app.store.statuses import is_open
from app.store.transaction.wake import Wake


@dataclass(frozen=True, slots=True)
class Intake:
    """A checked request. `session_id` is set when the client named one; `new_*` are ids to use if a session is made."""

    run_id: str
    principal: str
    route: str
    idempotency_key: str | None
    body_hash: str
    session_key: str
    session_id: str | None
    agent: str
    mode: QueueMode
    cap: int
    kind: str
    lane_name: str
    label: str | None
    input: RunInput
    new_session_id: str
    new_transcript_id: str
    now_ms: int
    event_bytes_max: int
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The run is in its queue. `answer` is the accept body as JSON text; `event` is to be told, `wake` done if set."""

    run_id: str
    answer: str
    event: ev.Event
    wake: Wake | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The key stood for the same body already."""

    run_id: str
    answer: str


_open_runs = (
    select(t.run.c.id, t.run.c.status)
    .where(
        t.run.c.session_id == bindparam("b_session"),
        is_open(t.run.c.status),
    )
    .order_by(t.run.c.prio, t.run.c.accept_no)
)
_session_of_key = select(t.session).where(t.session.c.key == bindparam("b_key")).with_for_update()
_idem = select(t.idem.c.body_hash, t.idem.c.answer, t.idem.c.run_id).where(
    t.idem.c.principal == bindparam("b_principal"),
    t.idem.c.route == bindparam("b_route"),
    t.idem.c.key == bindparam("b_key"),
)
_count_in = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"))
    .values(
        next_accept=t.session.c.next_accept + 1,
        queue_seq=t.session.c.queue_seq + 1,
        lane=bindparam("b_lane"),
        woken_at=bindparam("b_woken_at"),
        updated_at=bindparam("b_now"),
        last_input_at=bindparam("b_now"),
    )
)


def accept(conn: Connection, intake: Intake) -> Accepted | Replayed:
    """A repeated key gets its answer, whatever has changed since.

    Raises Draining, SessionBusy, QueueFull, SessionConflict, SessionNotFound, ValidationFailed, IdempotencyKeyReused.
    """
    if intake.idempotency_key is not None:
        first = _claim_key(conn, intake)
        if first is not None:
            return first
    if intake.draining:
        raise Draining("The service is shutting down and takes no new runs; try again after its restart.")
    session = _lock_session(conn, intake)
    queue = conn.execute(_open_runs, {"b_session": session["id"]}).all()
    executing = any(status != "queued" for _, status in queue)
    state = QueueState(executing, len(queue) - int(executing))
    decision = decide(intake.mode, intake.cap, state)
    if not isinstance(decision, Admitted):
        raise _refusal(decision.reason, intake)
    receipt = queued_receipt(decision.ahead, queue[-1].id if queue else None, intake.now_ms)
    answer = _answer(intake, session, receipt)
    event = _insert_run(conn, intake, session, receipt)
    if intake.idempotency_key is not None:
        conn.execute(_keep_answer, {**_key(intake), "b_answer": answer})
    idle = session["lane"] == "idle"
    conn.execute(
        _count_in,
        {
            "b_id": session["id"],
            "b_lane": "woken" if idle else session["lane"],
            "b_woken_at": intake.now_ms if idle else session["woken_at"],
            "b_now": intake.now_ms,
        },
    )
    hit(Point.ACCEPT_BEFORE_COMMIT)
    wake = Wake(session["id"], session["lane_gen"]) if idle else None
    return Accepted(intake.run_id, answer, event, wake)


_keep_answer = (
    update(t.idem)
    .where(
        t.idem.c.principal == bindparam("b_principal"),
        t.idem.c.route == bindparam("b_route"),
        t.idem.c.key == bindparam("b_key"),
    )
    .values(answer=bindparam("b_answer"))
)


def _key(intake: Intake) -> dict[str, Any]:
    return {"b_principal": intake.principal, "b_route": intake.route, "b_key": intake.idempotency_key}


def _claim_key(conn: Connection, intake: Intake) -> Replayed | None:
    """Take the key (waiting for a rival's commit), or find what it stands for."""
    claimed = conn.execute(
        insert_new(conn, t.idem),
        {
            "principal": intake.principal,
            "route": intake.route,
            "key": intake.idempotency_key,
            "body_hash": intake.body_hash,
            "run_id": intake.run_id,
            "answer": "",
            "created_at": intake.now_ms,
        },
    )
    if claimed.rowcount == 1:
        return None
    row = conn.execute(_idem, _key(intake)).one_or_none()
    if row is None:  # its run has just been removed, and the key with it
        return _claim_key(conn, intake)
    if row.body_hash != intake.body_hash:
        raise IdempotencyKeyReused(
            "This Idempotency-Key was used with another body; use a new key for a new request.",
            FieldProblem("stands for another body", header="Idempotency-Key"),
        )
    return Replayed(row.run_id, row.answer)


def _lock_session(conn: Connection, intake: Intake) -> dict[str, Any]:
    row = conn.execute(_session_of_key, {"b_key": intake.session_key}).mappings().one_or_none()
    if row is None:
        if intake.session_id is not None:
            raise SessionConflict("`sessionId` names a session of another key, or none.")
        return _make_session(conn, intake)
    if row["principal"] != intake.principal:
        raise SessionNotFound("No such session.")
    if intake.session_id is not None and row["transcript_id"] != intake.session_id:
        raise SessionConflict("`sessionKey` and `sessionId` name different sessions.")
    if row["agent"] != intake.agent:
        raise ValidationFailed(
            "The session belongs to another agent.",
            FieldProblem(f"the session's agent is `{row['agent']}`", pointer="#/agent"),
        )
    return dict(row)


def _make_session(conn: Connection, intake: Intake) -> dict[str, Any]:
    session = {
        "id": intake.new_session_id,
        "key": intake.session_key,
        "agent": intake.agent,
        "principal": intake.principal,
        "transcript_id": intake.new_transcript_id,
        "lane": "idle",
        "lane_gen": 1,
        "woken_at": None,
        "next_accept": 1,
        "next_entry": 1,
        "takes": 0,
        "queue_seq": 0,
        "created_at": intake.now_ms,
        "updated_at": intake.now_ms,
        "last_input_at": intake.now_ms,
    }
    made = conn.execute(insert_new(conn, t.session), session)
    if made.rowcount == 1:
        return session
    # A rival made it first and has committed: lock what is there.
    return _lock_session(conn, intake)


def _refusal(reason: str, intake: Intake) -> Exception:
    if reason == "session-busy":
        return SessionBusy(
            "The session has a run queued or executing and `queue.mode` is `reject`.",
            FieldProblem("use mode `followup` to wait in line", pointer="#/queue/mode"),
        )
    return QueueFull(f"The session's queue holds {intake.cap} waiting runs; try again when one has started.")


def _answer(intake: Intake, session: dict[str, Any], receipt: dict[str, Any]) -> str:
    base = f"/api/v1/runs/{intake.run_id}"
    body = {
        "runId": intake.run_id,
        "acceptedAt": receipt["since"],
        "sessionKey": session["key"],
        "sessionId": session["transcript_id"],
        "status": "queued",
        "receipt": receipt,
        "links": {"self": base, "events": f"{base}/events", "wait": f"{base}/wait", "abort": f"{base}/abort"},
    }
    return orjson.dumps(body).decode()


_insert_run_row = insert(t.run)
_insert_text = insert(t.run_text)
_insert_event = insert(t.run_event)


def _insert_run(conn: Connection, intake: Intake, session: dict[str, Any], receipt: dict[str, Any]) -> ev.Event:
    asked = intake.input
    conn.execute(
        _insert_run_row,
        {
            "id": intake.run_id,
            "session_id": session["id"],
            "accept_no": session["next_accept"],
            "principal": intake.principal,
            "agent": intake.agent,
            "mode": intake.mode,
            "kind": intake.kind,
            "prio": 0,
            "runnable_at": 0,
            "lane_name": intake.lane_name,
            "status": "queued",
            "attempt": 0,
            "stalled": 0,
            "seq_first": 1,
            "seq_last": 1,
            "seq_high": 1,
            "active_ms": 0,
            "transcript_id": session["transcript_id"],
            "model": asked.model,
            "label": intake.label,
            "accepted_at": intake.now_ms,
        },
    )
    conn.execute(_insert_text, {"run_id": intake.run_id, "input": orjson.dumps(asked.to_json()).decode()})
    message = {"messageId": asked.message_id, "parts": asked.parts, "source": asked.source}
    stream, payload, terminal = ev.queued(message, receipt, intake.event_bytes_max)
    conn.execute(
        _insert_event,
        {
            "run_id": intake.run_id,
            "seq": 1,
            "first_seq": 1,
            "session_id": session["id"],
            "q": session["queue_seq"] + 1,
            "stream": stream,
            "terminal": int(terminal),
            "ts": intake.now_ms,
            "payload": payload.decode(),
        },
    )
    return ev.Event(intake.run_id, 1, stream, intake.now_ms, payload)
