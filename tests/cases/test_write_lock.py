"""The write lock of a session between the service and other processes: notes, waiting, taking over, and too late."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Mapping

import pytest

from tests.kit.gauges import until
from tests.kit.invariants import check_invariants
from tests.kit.lock_holder import LockHolder
from tests.kit.model_server import hold, reply_calls, reply_text
from tests.kit.rules import check_run
from tests.kit.service import ProbeService, Service, ServiceFactory
from tests.kit.starting import Command, Ended

LIMIT = "session.write_lock.acquire_timeout_ms"
USUAL = "LANEWAY_SESSION__WRITE_LOCK__ACQUIRE_TIMEOUT_MS"
SECOND = "LANEWAY_SESSION_WRITE_LOCK_ACQUIRE_TIMEOUT_MS"

pytestmark = pytest.mark.sqlite


def started(
    one: Service, key: str, text: str, *, given: bytes = b"", environ: Mapping[str, str] | None = None
) -> Command:
    """`laneway sessions note --local` on the state of a service."""
    full = {"LANEWAY_STATE_DIR": str(one.state_dir), **(environ or {})}
    return Command("sessions", "note", key, "--local", "--", text, environ=full, stdin=given)


async def note(one: Service, key: str, text: str, *, given: bytes = b"", **environ: str) -> Ended:
    return await started(one, key, text, given=given, environ=environ).until_ended()


async def said(one: Service, key: str) -> list[tuple[str, str, str]]:
    """(kind, role, text) of the transcript, over HTTP."""
    return [
        (item["kind"], item["role"], "".join(part.get("text", "") for part in item["parts"]))
        for item in await one.transcript(key)
    ]


async def talked(one: Service, key: str) -> None:
    """The session exists, and rests."""
    one.model.on(f"[s:{key}]", reply_text("an answer"))
    record = await one.ended(await one.run(f"hello [s:{key}]", key))
    assert record["status"] == "succeeded", record


@pytest.fixture
async def short(service: ServiceFactory) -> AsyncIterator[Service]:
    """A service that waits for a write lock no longer than a moment."""
    async with service(settings={LIMIT: 300}) as one:
        yield one
        check_invariants(one)


async def test_a_note_stands_in_the_transcript_and_in_the_next_request(shared_service: Service) -> None:
    one = shared_service
    await talked(one, "note-1")
    done = await note(one, "note-1", "remember the milk")
    assert (done.code, done.out, done.err) == (0, "Noted as entry 3 of note-1\n", "")
    assert (await said(one, "note-1"))[-1] == ("note", "assistant", "remember the milk")
    assert (await note(one, "note-1", "-", given="from a pipe ü\n".encode())).code == 0
    one.model.on("[s:note-1b]", reply_text("yes"))
    await check_run(one, await one.run("and? [s:note-1b]", "note-1"))
    told = str(one.model.requests[-1].body)
    assert "remember the milk" in told and "from a pipe ü" in told
    assert one.query("SELECT count(*) AS n FROM audit WHERE code LIKE '%milk%' OR actor LIKE '%milk%'")[0]["n"] == 0
    check_invariants(one)


async def test_a_note_waits_for_a_run_and_never_stands_between_a_call_and_its_result(
    probe_service: ProbeService,
) -> None:
    one = probe_service
    key = "note-2"
    call = reply_calls(("c", "probe", {"marker": key, "seconds": 600}))
    one.model.on(f"[s:{key}]", call, reply_text("never"))
    run_id = await one.run(f"hello [s:{key}]", key)
    waiting = [started(one, key, f"note {number}") for number in range(2)]
    await until(lambda: any(line.marker == key for line in one.probes()), "the tool is at work")
    early = await note(one, key, "too early", **{USUAL: "0"})
    assert early.code == 1 and f"run {run_id} is under way" in early.err, early
    assert all(process.alive for process in waiting)
    await one.abort(run_id)
    assert (await one.ended(run_id))["status"] == "cancelled"
    assert [(await process.until_ended()).code for process in waiting] == [0, 0]
    kinds = [(kind, role) for kind, role, _ in await said(one, key)]
    assert kinds[-3:] == [("message", "tool"), ("note", "assistant"), ("note", "assistant")], kinds
    check_invariants(one)


@pytest.mark.parametrize("variable", [USUAL, SECOND])
async def test_a_note_past_its_time_names_the_run_or_the_process(shared_service: Service, variable: str) -> None:
    one = shared_service
    key = f"note-3-{variable.count('__')}"
    await talked(one, key)
    async with LockHolder(one.state_dir, key, "a compaction") as holder:
        done = await note(one, key, "late", **{variable: "100"})
    assert done.code == 1 and f"a compaction (process {holder.pid}, since " in done.err, done
    assert LIMIT in done.err and len(done.err.splitlines()) == 1
    one.model.on(f"again [s:{key}]", [hold(key), *reply_text("ok")])
    run_id = await one.run(f"again [s:{key}]", key)
    await one.model.until_held(key)
    done = await note(one, key, "late", **{variable: "100"})
    assert done.code == 1 and f"run {run_id} is under way" in done.err, done
    one.model.release(key)
    await check_run(one, run_id)
    assert "late" not in str(await said(one, key))


async def test_a_killed_holder_holds_up_nobody(shared_service: Service) -> None:
    one = shared_service
    await talked(one, "note-4")
    async with LockHolder(one.state_dir, "note-4") as holder:
        await holder.kill()
        assert (await note(one, "note-4", "first", **{USUAL: "0"})).code == 0
    async with LockHolder(one.state_dir, "note-4", "a dead one") as holder:
        await holder.kill()
        await talked(one, "note-4")
    assert "session-lock.taken-over" in one.log and f"a dead one (process {holder.pid}" in one.log


async def test_a_note_that_cannot_be_is_refused_in_one_line(shared_service: Service, service: ServiceFactory) -> None:
    one = shared_service
    await talked(one, "note-5")
    unknown = await note(one, "note-5-unknown", "text")
    assert unknown.code == 1 and "There is no session note-5-unknown." in unknown.err
    assert (await one.request("GET", "/api/v1/sessions/note-5-unknown")).status == 404
    for key, text, given, why in (
        ("a b", "text", b"", "session key"),
        ("note-5", " ", b"", "blank"),
        ("note-5", "-", b"a\0b", "NUL"),
        ("note-5", "-", b"\xff", "UTF-8"),
    ):
        refused = await note(one, key, text, given=given)
        assert refused.code == 2 and why in refused.err, refused
    long = await note(one, "note-5", "-", given=b"x" * 2000, LANEWAY_LIMITS__REQUEST_BODY_BYTES="1024")
    assert long.code == 2 and "limits.request_body_bytes" in long.err
    nowhere = service()
    nowhere.state_dir.mkdir(parents=True)
    missing = await note(nowhere, "note-5", "text")
    assert missing.code == 1 and "There is no database" in missing.err and list(nowhere.state_dir.iterdir()) == []
    assert len(await said(one, "note-5")) == 2


async def test_a_note_never_goes_into_a_database_of_another_version(service: ServiceFactory) -> None:
    one = service()
    async with one:
        await talked(one, "old")
        one.terminate()
        assert await one.until_exit(60) == 0
    assert (await note(one, "old", "while nobody serves it")).code == 0
    for version, why in (("0001", "laneway migrate"), ("9999", "newer than this code")):
        with contextlib.closing(sqlite3.connect(one.database)) as raw:
            raw.execute("UPDATE alembic_version SET version_num = ?", (version,))
            raw.commit()
        refused = await note(one, "old", "late")
        assert refused.code == 1 and why in refused.err and len(refused.err.splitlines()) == 1, refused
    assert one.query("SELECT count(*) AS n FROM transcript")[0]["n"] == 3


async def test_a_database_that_another_program_writes_is_waited_for(short: Service) -> None:
    one = short
    await talked(one, "foreign")
    with contextlib.closing(sqlite3.connect(one.database, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        refused = await note(one, "foreign", "late", **{USUAL: "300"})
        assert refused.code == 1 and "busy with other writes" in refused.err, refused
        waiting = started(one, "foreign", "in time")
        assert (await note(one, "foreign", "late", **{USUAL: "300"})).code == 1
        assert waiting.alive
        raw.execute("ROLLBACK")
    assert (await waiting.until_ended()).code == 0
    assert [kind for kind, _, _ in await said(one, "foreign")] == ["message", "message", "note"]


async def test_a_lock_file_that_is_none_fails_its_session_alone(shared_service: Service) -> None:
    one = shared_service
    path = one.state_dir / "locks" / f"{hashlib.sha256(b'broken').hexdigest()}.lock"
    path.symlink_to(one.state_dir / "elsewhere")
    run_id = await one.run("hello [s:broken]", "broken")
    record = await one.ended(run_id)
    assert (record["status"], record["error"]["code"]) == ("failed", "internal")
    assert str(one.state_dir) not in str(record) and path.name in one.log
    await check_run(one, run_id)
    path.unlink()
    await talked(one, "broken")


async def test_a_run_waits_for_the_holder_and_then_goes_on(shared_service: Service) -> None:
    one = shared_service
    one.model.on("[s:wait-1", reply_text("an answer"), reply_text("an answer"))
    async with LockHolder(one.state_dir, "wait-1") as holder:
        run_id = await one.run("hello [s:wait-1]", "wait-1")
        other = await one.run("hello [s:wait-1-other]", "wait-1-other")
        assert (await one.ended(other))["status"] == "succeeded", "another session waits too"
        assert (await one.record(run_id))["status"] == "running"
        assert one.model.requests_of("wait-1") == []
        await holder.let_go()
    checked = await check_run(one, run_id)
    assert checked.terminal is not None and (await one.record(run_id))["status"] == "succeeded"


async def test_a_run_that_waits_for_the_holder_can_be_aborted(shared_service: Service) -> None:
    one = shared_service
    async with LockHolder(one.state_dir, "wait-2"):
        run_id = await one.run("hello [s:wait-2]", "wait-2")
        await one.abort(run_id)
        assert (await one.ended(run_id))["status"] == "cancelled"
    await check_run(one, run_id)


async def test_a_run_that_waited_too_long_ends_as_busy_and_names_the_holder(short: Service) -> None:
    one = short
    async with LockHolder(one.state_dir, "late", "a compaction") as holder:
        run_id = await one.run("hello [s:late]", "late")
        record = await one.ended(run_id)
        assert (record["status"], record["error"]["code"]) == ("failed", "session-busy")
        assert f"a compaction (process {holder.pid}" in record["error"]["message"] and record["error"]["retryable"]
    assert one.model.requests_of("late") == [], "the model was asked with an input that is not kept"
    await check_run(one, run_id)
    await talked(one, "late")


async def test_an_answer_that_came_meanwhile_is_kept_though_its_run_ends_as_busy(short: Service) -> None:
    one = short
    one.model.on("[s:late-2]", [*reply_text("a part of it", deltas=3)[:-2], hold("late-2"), *reply_text("the rest")])
    run_id = await one.run("hello [s:late-2]", "late-2")
    await one.model.until_held("late-2")
    async with LockHolder(one.state_dir, "late-2"):
        one.model.release("late-2")
        record = await one.ended(run_id)
    assert (record["status"], record["error"]["code"]) == ("failed", "session-busy")
    await check_run(one, run_id)
    assert "the rest" in (await said(one, "late-2"))[-1][2]


async def test_calls_get_their_results_though_their_run_ends_as_busy(short: Service) -> None:
    one = short
    one.model.on("[s:late-3]", [hold("late-3"), *reply_calls(("c", "exec", {"command": "tail -f /dev/null"}))])
    run_id = await one.run("hello [s:late-3]", "late-3")
    await one.model.until_held("late-3")
    async with LockHolder(one.state_dir, "late-3"):
        one.model.release("late-3")
        assert (await one.ended(run_id))["error"]["code"] == "session-busy"
    await check_run(one, run_id)


async def test_a_service_that_drains_hands_over_a_run_that_waits(service: ServiceFactory) -> None:
    one = service(settings={"server.drain_seconds": 0.1})
    async with one:
        async with LockHolder(one.state_dir, "drain"):
            run_id = await one.run("hello [s:drain]", "drain")
            one.terminate()
            assert await one.until_exit(60) == 0
        one.model.on("[s:drain]", reply_text("an answer"))
        await one.up()
        assert (await one.ended(run_id))["status"] == "succeeded"
        check_invariants(one)


async def test_notes_of_many_processes_beside_runs_are_all_there_once(shared_service: Service) -> None:
    one = shared_service
    keys = ["many-1", "many-2"]
    for key in keys:
        one.model.on(f"[s:{key}]", *[reply_calls(("c", "list", {})), reply_text("an answer")] * 8)
        await one.ended(await one.run(f"hello [s:{key}]", key))

    async def talk(key: str) -> None:
        for number in range(4):
            await one.ended(await one.run(f"hello {number} [s:{key}]", key))

    async def write(key: str, number: int) -> None:
        done = await note(one, key, f"note {number} of {key}")
        assert done.code == 0, done

    await asyncio.gather(*(talk(key) for key in keys), *(write(key, number) for key in keys for number in range(6)))
    for key in keys:
        notes = sorted(text for kind, _, text in await said(one, key) if kind == "note")
        assert notes == [f"note {number} of {key}" for number in range(6)]
    check_invariants(one)
