"""The end of the process: open streams do not hold it up, and nobody is cut off without a word."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.kit.gauges import until_quiet
from tests.kit.model_server import Reply, Request, done, finish, hold, text
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Event, Stream, check_stream

GRACE_S = 60.0

EMBEDDED = """
import asyncio, os, sys
import uvicorn
from app.assembly import build
from app.main import create_app
from app.settings import load
from app.store.files import database_path, prepare_state_dir
from app.store.migrate import migrate_sqlite

async def main():
    settings = load(None, os.environ, {}).settings
    prepare_state_dir(settings.state_dir)
    migrate_sqlite(database_path(settings.state_dir))
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = uvicorn.Server(uvicorn.Config(create_app(build(settings)), port=port, timeout_graceful_shutdown=5))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    print(f"Laneway ready on http://127.0.0.1:{port}", flush=True)
    await serving

asyncio.run(main())
"""


def _held(_: Request) -> Reply:
    return [text("so far "), hold("shutdown"), text("and the rest"), finish(), done()]


async def _open_idle(one: Service, count: int) -> tuple[list[str], list[Stream]]:
    """Runs that are held, and streams on them that have read all there is; two more read nothing."""
    one.model.default(_held)
    run_ids = [await one.run("x", f"idle-{number}") for number in range(4)]
    streams = [await one.stream(run_ids[number % 4]) for number in range(count)]
    for stream in streams:
        await stream.until(lambda event: event.payload.get("delta") == "so far ")
    deaf = [await one.stream(run_id, receive_buffer=1024) for run_id in run_ids[:2]]
    return run_ids, [*streams, *deaf]


def _check_cleaned_up(one: Service, run_ids: list[str], status: str = "recovering") -> None:
    """The database was closed, the runs handed over, the worker signed off."""
    assert "Traceback" not in one.log, one.log[-4000:]
    one.store.check_closed()
    assert {row["status"] for row in one.query("SELECT status FROM run")} == {status}
    assert one.query("SELECT * FROM worker WHERE dead_at IS NULL") == []
    assert one.query("SELECT count(*) AS n FROM run")[0]["n"] == len(run_ids)


async def test_idle_streams_do_not_hold_up_the_end(service: ServiceFactory) -> None:
    """WIRE-01, by the command line"""
    async with service({"server.drain_seconds": 0.2}) as one:
        run_ids, streams = await _open_idle(one, 20)
        one.terminate()
        ends = await asyncio.gather(*(stream.collect_until_done(GRACE_S) for stream in streams))
        for events, stream in zip(ends, streams, strict=True):
            assert events[-1].event == "shutdown" and events[-1].payload["reason"] == "draining"
            assert await stream.expect_end() == [] and stream.finished, "a stream was cut"
            assert stream.violations == []
        assert await one.until_exit(GRACE_S) == 0
        _check_cleaned_up(one, run_ids)
        await _goes_on(one, run_ids, ends)


async def test_idle_streams_do_not_hold_up_a_server_that_was_started_from_code(
    service: ServiceFactory, tmp_path: Path
) -> None:
    """uvicorn ends by the signal once all is cleaned up; what executed goes on at the next start. WIRE-01, from code"""
    script = tmp_path / "embedded.py"
    script.write_text(EMBEDDED)
    one = service()
    one.program = (str(script),)
    async with one:
        run_ids, streams = await _open_idle(one, 20)
        one.terminate()
        ends = await asyncio.gather(*(stream.collect_until_done(GRACE_S) for stream in streams))
        assert "done" not in {event.event for events in ends for event in events}, "a run was said to have ended"
        assert await one.until_exit(GRACE_S) in (0, -signal.SIGTERM)
        _check_cleaned_up(one, run_ids, status="running")
        one.program = Service.program
        await _goes_on(one, run_ids, ends)


async def _goes_on(one: Service, run_ids: list[str], ends: list[list[Event]]) -> None:
    """After the next start every stream can be taken up behind its last id, and brings the rest."""
    one.model.release("shutdown")
    await one.up()
    for number, events in enumerate(ends[:4]):
        cursor = int(events[-1].last_id)
        async with await one.stream(run_ids[number], last_event_id=cursor) as stream:
            joined = [*events, *await stream.collect_until_done()]
        assert check_stream(joined).texts == ["so far and the rest"]
    await check_case(one, run_ids, sessions=["idle-0"])
    await until_quiet(one)


async def test_a_run_that_ends_after_the_signal_is_told_to_its_end(service: ServiceFactory) -> None:
    """Streams stay open while it goes on, also one that comes after the signal; then the process ends. WIRE-02"""
    async with service({"server.drain_seconds": 60}) as one:
        one.model.default(_held)
        run_id = await one.run("x", "grace")
        before = await one.stream(run_id)
        await before.until(lambda event: event.payload.get("delta") == "so far ")
        one.terminate()
        await _until_draining(one)
        after = await one.stream(run_id)
        behind = await one.stream(run_id, last_event_id=before.last_id)
        cursor = int(before.last_id)
        one.model.release("shutdown")
        for stream, place in ((before, 0), (after, 0), (behind, cursor)):
            checked = check_stream(await stream.collect_until_done(GRACE_S), after=place)
            assert checked.terminal is not None and checked.outcome == "completed"
            assert await stream.expect_end() == [] and stream.finished
        assert await one.until_exit(GRACE_S) == 0
        assert "Traceback" not in one.log
        await one.up()
        await check_case(one, [run_id], sessions=["grace"])


async def test_a_second_signal_ends_the_drain(service: ServiceFactory) -> None:
    """With an hour of drain left, streams are told and the process is gone."""
    async with service({"server.drain_seconds": 3600}) as one:
        run_ids, streams = await _open_idle(one, 4)
        one.terminate()
        await _until_draining(one)
        one.terminate()
        ends = await asyncio.gather(*(stream.collect_until_done(GRACE_S) for stream in streams))
        assert all(events[-1].event == "shutdown" for events in ends)
        assert await one.until_exit(GRACE_S) == 0
        _check_cleaned_up(one, run_ids)


async def test_readers_that_read_nothing_do_not_hold_up_the_end(service: ServiceFactory) -> None:
    """Their buffers are full, so the word cannot reach them; the process goes all the same."""
    async with service({"server.drain_seconds": 0.2}) as one:
        flood = ["x" * 2000] * 2000
        one.model.default([text(*flood), hold("flooded"), finish(), done()])
        run_id = await one.run("x", "deaf")
        await one.model.until_held("flooded", timeout_s=60)
        deaf = [await one.stream(run_id, receive_buffer=1024) for _ in range(5)]
        reading = await one.stream(run_id)
        await reading.until(lambda event: event.payload.get("offset", 0) > 3_900_000, 60)
        one.terminate()
        assert (await reading.collect_until_done(GRACE_S))[-1].event == "shutdown"
        assert await one.until_exit(GRACE_S) == 0
        _check_cleaned_up(one, [run_id])
        for stream in deaf:
            stream.close()


async def _until_draining(one: Service) -> None:
    async with asyncio.timeout(30):
        while (await one.request("GET", "/readyz")).status == 200:
            pass


async def test_an_idle_service_ends_at_once_when_it_is_interrupted(service: ServiceFactory) -> None:
    async with service({"server.drain_seconds": 3600}) as one:
        assert one.process is not None
        one.process.send(signal.SIGINT)
        assert await one.until_exit(GRACE_S) == 0
        assert "Traceback" not in one.log and one.query("SELECT * FROM worker WHERE dead_at IS NULL") == []
