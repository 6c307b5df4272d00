"""The invariants of the durability protocol that can be read from the tables, whole database at once.

`check_invariants` reads one snapshot, so it may be called while the service works, after a kill and before the next
start. `check_at_rest` adds what must hold when nothing is queued or executing. Both tell every breach.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import orjson

from tests.kit.borrowed import Whole
from tests.kit.sse_parser import Event
from tests.kit.stream_checks import joined_messages

Row = dict[str, Any]
Rows = Callable[..., list[Row]]
Check = Callable[[Rows], Iterator[str]]

_OPEN = "('queued', 'running', 'recovering')"
STALLED_MAX = 4


class Database(Protocol):
    """What a check needs of the service."""

    def reading(self) -> Any:
        """A context that gives a query function on one snapshot."""


def check_invariants(
    service: Database, *, accepted: Iterable[str] = (), capacity: int | None = None, removed: bool = False
) -> None:
    """`accepted`: run ids that clients were given (INV-20). `capacity`: of each global lane (INV-18).

    `removed`: retention has removed runs, so numbers of sessions have holes and calls in transcripts no rows.
    """
    checks = [check for check in CHECKS if not (removed and check in (_numbers_have_no_holes, _calls_and_their_rows))]
    with service.reading() as rows:
        found = [breach for check in checks for breach in check(rows)]
        found += _accepted_runs(rows, accepted)
        if capacity is not None:
            found += _capacity(rows, capacity)
    assert not found, "broken invariants:\n" + "\n".join(found[:50])


def check_at_rest(service: Database, *, accepted: Iterable[str] = (), folded: bool = False) -> None:
    """`check_invariants`, and that every run has ended (and is folded), every lane is idle and nothing is claimed."""
    check_invariants(service, accepted=accepted)
    with service.reading() as rows:
        found = [f"run {row['id']} is {row['status']}" for row in rows(f"SELECT * FROM run WHERE status IN {_OPEN}")]
        query = "SELECT * FROM session WHERE lane != 'idle' OR lane_owner IS NOT NULL OR writer_run IS NOT NULL"
        found += [
            f"session {row['key']}: lane {row['lane']}, owner {row['lane_owner']}, writer {row['writer_run']}"
            for row in rows(query)
        ]
        if folded:
            found += [f"run {row['id']} is not folded" for row in rows("SELECT id FROM run WHERE folded_at IS NULL")]
    assert not found, "not at rest:\n" + "\n".join(found[:50])


def _one_running(rows: Rows) -> Iterator[str]:
    query = "SELECT session_id, count(*) AS n FROM run WHERE status = 'running' GROUP BY session_id HAVING count(*) > 1"
    for row in rows(query):
        yield f"INV-1: session {row['session_id']} has {row['n']} runs running"


def _one_terminal_event(rows: Rows) -> Iterator[str]:
    query = f"""
        SELECT run.id, run.status, run.status NOT IN {_OPEN} AS ended, count(ended.seq) AS terminals,
               max(ended.seq) AS at, (SELECT max(seq) FROM run_event WHERE run_id = run.id) AS last
        FROM run LEFT JOIN run_event AS ended ON ended.run_id = run.id AND ended.terminal = 1
        GROUP BY run.id
    """
    for row in rows(query):
        if row["terminals"] != row["ended"]:
            yield f"INV-2: run {row['id']} is {row['status']} with {row['terminals']} terminal events"
        if row["at"] is not None and row["last"] > row["at"]:
            yield f"INV-2: run {row['id']} has event {row['last']} after its terminal event {row['at']}"


def _no_idle_backlog(rows: Rows) -> Iterator[str]:
    query = """
        SELECT session.key, run.id, run.status FROM session JOIN run ON run.session_id = session.id
        WHERE session.lane = 'idle' AND run.status IN ('queued', 'recovering', 'running')
    """
    for row in rows(query):
        yield f"INV-3: session {row['key']} is idle with run {row['id']} {row['status']}"


def _running_is_held(rows: Rows) -> Iterator[str]:
    query = """
        SELECT run.id, run.attempt, lane, lane_owner, writer_run, writer_attempt, transcript_now, worker.id AS worker
        FROM run
        JOIN (SELECT id AS sid, transcript_id AS transcript_now, * FROM session) AS present ON sid = run.session_id
        LEFT JOIN worker ON worker.id = lane_owner
        WHERE run.status = 'running' AND run.transcript_id = transcript_now
    """
    for row in rows(query):
        if row["lane"] != "held" or row["worker"] is None:
            yield f"INV-4: run {row['id']} is running in lane {row['lane']} of {row['lane_owner']}"
        if (row["writer_run"], row["writer_attempt"]) != (row["id"], row["attempt"]):
            yield f"INV-4: run {row['id']}/{row['attempt']}: claim is {row['writer_run']}/{row['writer_attempt']}"


def _numbers_have_no_holes(rows: Rows) -> Iterator[str]:
    accepts = """
        SELECT key, next_accept - 1 AS given, count(run.id) AS n, max(accept_no) AS top
        FROM session LEFT JOIN run ON run.session_id = session.id GROUP BY session.id
    """
    entries = """
        SELECT key, next_entry - 1 AS given, count(entry_no) AS n, max(entry_no) AS top
        FROM session LEFT JOIN transcript ON transcript.transcript_id = session.transcript_id GROUP BY session.id
    """
    whole = "session.id NOT IN (SELECT session_id FROM run WHERE seq_first > 1)"
    takes = f"""
        SELECT key, takes AS given, count(DISTINCT take_no) AS n, max(take_no) AS top
        FROM session LEFT JOIN run_event ON run_event.session_id = session.id WHERE {whole} GROUP BY session.id
    """
    queued = f"""
        SELECT key, queue_seq AS given, count(DISTINCT q) AS n, max(q) AS top
        FROM session LEFT JOIN run_event ON run_event.session_id = session.id AND q > 0
        WHERE {whole} GROUP BY session.id
    """
    for name, query in (("accept_no", accepts), ("entry_no", entries), ("take_no", takes), ("q", queued)):
        for row in rows(query):
            if not row["given"] == row["n"] == (row["top"] or 0):
                yield f"INV-6: session {row['key']}: {name} given {row['given']}, {row['n']} kept, top {row['top']}"


def _event_numbers(rows: Rows) -> Iterator[str]:
    places: dict[str, int] = {}
    for row in rows("SELECT id, seq_first FROM run"):
        places[row["id"]] = row["seq_first"] - 1
    for row in rows("SELECT run_id, seq, first_seq, not_kept_from FROM run_event ORDER BY run_id, seq"):
        run_id, place = row["run_id"], places.get(row["run_id"])
        if place is None:
            yield f"INV-7: event {row['seq']} of unknown run {run_id}"
            continue
        start = row["first_seq"] if row["not_kept_from"] is None else row["not_kept_from"]
        if start != place + 1 or not start <= row["first_seq"] <= row["seq"]:
            yield f"INV-7: run {run_id}: {start} ({row['first_seq']}) to {row['seq']} stands behind {place}"
        places[run_id] = row["seq"]
    for row in rows("SELECT id, seq_last, seq_high FROM run"):
        if places[row["id"]] != row["seq_last"]:
            yield f"INV-7: run {row['id']}: rows end at {places[row['id']]}, seq_last is {row['seq_last']}"
        if row["seq_high"] < row["seq_last"]:
            yield f"INV-7: run {row['id']}: seq_high {row['seq_high']} is below seq_last {row['seq_last']}"


def _told_is_kept(rows: Rows) -> Iterator[str]:
    kept = {row["message_id"]: _text(row) for row in rows("SELECT * FROM transcript WHERE role = 'assistant'")}
    cleared = {row["id"] for row in rows("SELECT id FROM run WHERE seq_first > 1")}
    events: defaultdict[str, list[Event]] = defaultdict(list)
    query = """
        SELECT * FROM run_event WHERE stream = 'assistant' OR not_kept_from IS NOT NULL
        OR payload LIKE '%"resets"%' ORDER BY run_id, seq
    """
    whole = Whole(rows)
    for row in rows(query):
        events[row["run_id"]].append(event_of(whole.row(row, "payload")))
    for run_id, told in events.items():
        if run_id in cleared:
            continue
        try:
            messages = joined_messages(told, partial=False)
        except AssertionError as breach:
            yield f"INV-9: run {run_id}: {breach}"
            continue
        for message_id, message in messages.items():
            if message.ended and message_id in kept and message.text != kept[message_id]:
                yield f"INV-9: {message_id}: told {message.text!r:.100}, kept {kept[message_id]!r:.100}"
            if message.ended and message.text and message_id not in kept:
                yield f"INV-9: {message_id} of run {run_id}: told to its end, but not in the transcript"


def _calls_are_answered(rows: Rows) -> Iterator[str]:
    open_runs = {row["id"] for row in rows(f"SELECT id FROM run WHERE status IN {_OPEN}")}
    entries: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows("SELECT * FROM transcript WHERE kind IN ('message', 'note') ORDER BY transcript_id, entry_no"):
        entries[row["transcript_id"]].append(row)
    for transcript_id, listed in entries.items():
        due: list[str] = []
        for row in listed:
            place = f"INV-11: {transcript_id} entry {row['entry_no']}"
            parts = orjson.loads(row["payload"])["parts"]
            results = [part["toolCallId"] for part in parts if part["type"] == "toolResult"]
            if results != due[: len(results)] or bool(results) != (row["role"] == "tool"):
                yield f"{place}: results {results}, but {due} are due"
            if due and not results:
                yield f"{place}: {row['role']} stands before the results of {due}"
                due = []
            del due[: len(results)]
            due += [part["toolCallId"] for part in parts if part["type"] == "toolCall"]
        if due and listed[-1]["run_id"] not in open_runs:
            yield f"INV-11: {transcript_id} ends with {due} unanswered"


def _calls_and_their_rows(rows: Rows) -> Iterator[str]:
    """Each call of an entry has its row and back; a settled row has its result, and the transcript shows that one."""
    told: dict[str, Row] = {}
    answers: dict[str, Row] = {}
    for row in rows("SELECT * FROM transcript WHERE payload LIKE '%tool%'"):
        for ordinal, part in enumerate(
            part for part in orjson.loads(row["payload"])["parts"] if part["type"] == "toolCall"
        ):
            told[part["toolCallId"]] = {
                **part,
                "entry_no": row["entry_no"],
                "ordinal": ordinal,
                "run_id": row["run_id"],
            }
        for part in orjson.loads(row["payload"])["parts"]:
            if part["type"] == "toolResult":
                answers[part["toolCallId"]] = {**part, "message_id": row["message_id"]}
    whole = Whole(rows)
    kept = {row["id"]: whole.row(row, "result") for row in rows("SELECT * FROM tool_call")}
    for call_id in told.keys() ^ kept.keys():
        yield f"INV-11: call {call_id} stands in {'the transcript' if call_id in told else 'tool_call'} alone"
    for call_id, row in kept.items():
        call = told.get(call_id, {})
        if call and any(call[name] != row[name] for name in ("entry_no", "ordinal", "run_id", "name", "args")):
            yield f"INV-11: call {call_id} is {call} in the transcript and {row} in its row"
        if (row["state"] in ("done", "unknown", "skipped")) != (row["result"] is not None):
            yield f"INV-12: call {call_id} is {row['state']}, its result {row['result']!r:.80}"
        if call_id in answers and row["result"] is not None:
            result = orjson.loads(row["result"])
            answer = answers[call_id]
            if (answer["content"], answer["message_id"]) != (result["text"], result["messageId"]):
                yield f"INV-11: call {call_id}: the transcript shows another result than its row"


def _calls_and_their_events(rows: Rows) -> Iterator[str]:
    """Started on the stream exactly when it was intended; one end exactly when it is settled; the ledger agrees."""
    phases: defaultdict[str, Counter[str]] = defaultdict(Counter)
    outcomes: dict[str, str] = {}
    for row in rows("SELECT payload FROM run_event WHERE stream = 'tool'"):
        data = orjson.loads(row["payload"])
        phases[data["toolCallId"]][data["phase"]] += 1
        if data["phase"] == "end":
            outcomes[data["toolCallId"]] = data["outcome"]
    ledger: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows("SELECT * FROM audit WHERE kind = 'tool_action' ORDER BY seq"):
        ledger[row["call_ref"]].append(row)
    for row in rows("SELECT * FROM tool_call WHERE run_id NOT IN (SELECT id FROM run WHERE seq_first > 1)"):
        seen, state = phases[row["id"]], row["state"]
        settled = state in ("done", "unknown", "skipped")
        began = state in ("intended", "done", "unknown")
        if (seen["requested"], seen["start"], seen["end"]) != (1, began, settled):
            yield f"INV-12: call {row['id']} is {state}; its events are {dict(seen)}"
        actions = [item["action"] for item in ledger[row["call_ref"]] if item["action"] != "tool.result-dropped"]
        if actions != ["tool.start"] * began + ["tool.end"] * settled:
            yield f"INV-21: call {row['id']} is {state}; its ledger rows are {actions}"
        ends = [item for item in ledger[row["call_ref"]] if item["action"] == "tool.end"]
        words = {"ok": "succeeded", "error": "failed", "timed-out": "timed_out", "aborted": "cancelled"}
        outcome = outcomes.get(row["id"], "")
        if ends and ends[0]["status"] != words.get(outcome, outcome):
            yield f"INV-21: call {row['id']} ended {outcome}, in the ledger {ends[0]['status']}"


def _nothing_begins_after_an_abort(rows: Rows) -> Iterator[str]:
    """INV-13 as far as rows can tell: a run that ended by an abort has no call that was started and is still open."""
    query = f"""
        SELECT tool_call.id, tool_call.state, run.status FROM tool_call JOIN run ON run.id = run_id
        WHERE run.status NOT IN {_OPEN} AND tool_call.state IN ('planned', 'intended')
    """
    for row in rows(query):
        yield f"INV-13: call {row['id']} is {row['state']}, its run {row['status']}"


def _abort_decides(rows: Rows) -> Iterator[str]:
    query = f"""
        SELECT * FROM run WHERE abort_at IS NOT NULL AND status NOT IN {_OPEN}
        AND (status != 'cancelled' OR outcome IS DISTINCT FROM abort_code)
    """
    for row in rows(query):
        yield f"INV-14: run {row['id']} was aborted as {row['abort_code']}, but is {row['status']} {row['outcome']}"


def _keys_and_inputs(rows: Rows) -> Iterator[str]:
    for row in rows("SELECT key, run_id FROM idem WHERE run_id NOT IN (SELECT id FROM run) OR answer = ''"):
        yield f"INV-15: key {row['key']} stands for {row['run_id']}, which is no run or has no answer"
    for row in rows(
        "SELECT run_id, count(*) AS n FROM idem WHERE run_id IS NOT NULL GROUP BY run_id HAVING count(*) > 1"
    ):
        yield f"INV-15: {row['n']} keys stand for run {row['run_id']}"
    query = """
        SELECT run.id, count(run_event.seq) AS n FROM run LEFT JOIN run_event ON run_event.run_id = run.id
        AND stream = 'lifecycle' AND payload LIKE '%"phase":"queued"%'
        WHERE seq_first = 1 GROUP BY run.id HAVING count(run_event.seq) != 1
    """
    for row in rows(query):
        yield f"INV-15: run {row['id']} has {row['n']} queued events"
    query = """
        SELECT run_id, count(*) AS n FROM transcript WHERE role = 'user' AND run_id IS NOT NULL
        AND run_id NOT IN (SELECT merged_into FROM run WHERE merged_into IS NOT NULL)
        GROUP BY run_id HAVING count(*) > 1
    """
    for row in rows(query):
        yield f"INV-15: the input of run {row['run_id']} stands {row['n']} times in the transcript"


def _attempts(rows: Rows) -> Iterator[str]:
    for row in rows("SELECT id, stalled FROM run WHERE stalled > ?", STALLED_MAX):
        yield f"INV-17: run {row['id']} stalled {row['stalled']} times"
    query = "SELECT run.id FROM run JOIN transcript ON run_id = run.id WHERE transcript.attempt > run.attempt"
    for row in rows(query):
        yield f"INV-16: run {row['id']} has an entry of an attempt to come"


def _one_outcome(rows: Rows) -> Iterator[str]:
    query = f"""
        SELECT run.*, run_text.error, ended.payload, audit.status AS audit_status, audit.code AS audit_code,
               (SELECT count(*) FROM audit WHERE run_id = run.id AND action = 'run.end') AS ends,
               (SELECT count(*) FROM audit WHERE run_id = run.id AND action = 'run.start') AS starts
        FROM run JOIN run_text ON run_text.run_id = run.id
        JOIN run_event AS ended ON ended.run_id = run.id AND ended.terminal = 1
        LEFT JOIN audit ON audit.run_id = run.id AND action = 'run.end'
        WHERE run.status NOT IN {_OPEN}
    """
    ledger_status = {"merged": "succeeded", "dropped": "cancelled"}
    for row in rows(query):
        told = orjson.loads(row["payload"])
        error = told.get("error") or {}
        words = {row["outcome"], told.get("outcome") or error.get("code")}
        if row["error"] and told["phase"] == "error":
            words.add(orjson.loads(row["error"])["code"])
        where = f"INV-21: run {row['id']} ({row['status']})"
        if len(words) > 1:
            yield f"{where}: record and stream name different outcomes: {words}"
        if row["ends"] != 1 or row["audit_status"] != ledger_status.get(row["status"], row["status"]):
            yield f"{where}: the ledger has {row['ends']} ends, {row['audit_status']} {row['audit_code']}"
        if row["starts"] != (row["started_at"] is not None):
            yield f"{where}: the ledger has {row['starts']} starts, started_at is {row['started_at']}"
        if row["ended_at"] is None or row["ended_at"] < max(row["started_at"] or 0, row["accepted_at"]):
            yield f"{where}: ended at {row['ended_at']}, started at {row['started_at']}"


def _accepted_runs(rows: Rows, accepted: Iterable[str]) -> Iterator[str]:
    known = {row["id"] for row in rows("SELECT id FROM run")}
    for run_id in accepted:
        if run_id not in known:
            yield f"INV-20: run {run_id} was accepted and is not there"


def _capacity(rows: Rows, capacity: int) -> Iterator[str]:
    query = "SELECT lane_name, count(*) AS n FROM run WHERE status = 'running' GROUP BY lane_name HAVING count(*) > ?"
    for row in rows(query, capacity):
        yield f"INV-18: {row['n']} runs are running in lane {row['lane_name']} of {capacity}"


CHECKS: tuple[Check, ...] = (
    _one_running,
    _one_terminal_event,
    _no_idle_backlog,
    _running_is_held,
    _numbers_have_no_holes,
    _event_numbers,
    _told_is_kept,
    _calls_are_answered,
    _calls_and_their_rows,
    _calls_and_their_events,
    _nothing_begins_after_an_abort,
    _abort_decides,
    _keys_and_inputs,
    _attempts,
    _one_outcome,
)


def event_of(row: Row) -> Event:
    """A stored row as a reader gets it."""
    data: dict[str, Any] = {"runId": row["run_id"], "seq": row["seq"], "stream": row["stream"]}
    if row["first_seq"] != row["seq"]:
        data["firstSeq"] = row["first_seq"]
    if row["not_kept_from"] is not None:
        data["notKept"] = {"fromSeq": row["not_kept_from"], "toSeq": row["first_seq"] - 1}
    data["data"] = orjson.loads(row["payload"])
    number = str(row["seq"])
    return Event(row["stream"], data, row["payload"], number, number, None, 0.0)


def _text(row: Row) -> str:
    parts = orjson.loads(row["payload"])["parts"]
    return "".join(part["text"] for part in parts if part["type"] == "text")
