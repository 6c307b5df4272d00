"""PostgreSQL servers and databases that cannot be served, each told in one line; and one database, one process."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psycopg
import pytest

from tests.kit.client import API
from tests.kit.database import PostgresDatabase
from tests.kit.gauges import until
from tests.kit.invariants import check_at_rest
from tests.kit.model_server import ModelServer, done, finish, hold, role, text
from tests.kit.pg_proxy import Cut, PgProxy
from tests.kit.postgres import PostgresServer
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import ServiceFactory
from tests.kit.starting import Ended, check_refused, start

pytestmark = pytest.mark.postgresql

SECRET = "t0p-s3cret"


def begin(folder: Path, url: str, *arguments: str, command: str = "serve") -> Ended:
    state = folder / "state"
    given = arguments if command != "serve" or not arguments else ("--port", "0", *arguments)
    return start(state, *given, command=command, environ={"LANEWAY_STORE__URL": url})


def secretive(url: str) -> str:
    """The same address with a password in it, which a server that trusts everybody does not look at."""
    return url.replace("laneway@", f"laneway:{SECRET}@")


async def test_an_empty_database_is_brought_up_when_it_is_asked_for(
    service: ServiceFactory, postgres: PostgresServer, tmp_path: Path
) -> None:
    empty = PostgresDatabase(postgres, empty=True)
    url = secretive(empty.url)
    refused = begin(tmp_path, url)
    line = check_refused(refused, "empty", "laneway migrate", "--migrate", "***")
    assert SECRET not in line + refused.err + refused.out
    migrated = begin(tmp_path, url, command="migrate")
    assert migrated.code == 0 and migrated.out.startswith("Migrated to "), migrated
    again = begin(tmp_path, url, command="migrate")
    assert again.code == 0 and again.out.startswith("Already at "), again
    async with service(store=empty) as one:
        await check_case(one, [await one.run("x", "new")], sessions=["new"])
        assert SECRET not in one.log


async def test_a_start_may_bring_the_database_up(service: ServiceFactory, postgres: PostgresServer) -> None:
    empty = PostgresDatabase(postgres, empty=True)
    async with service(store=empty, arguments=["--migrate"]) as one:
        await check_case(one, [await one.run("x", "new")], sessions=["new"])


async def test_two_that_migrate_at_once_do_it_once(postgres: PostgresServer, tmp_path: Path) -> None:
    empty = PostgresDatabase(postgres, empty=True)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    ended = await asyncio.gather(
        *(asyncio.to_thread(begin, folder, empty.url, command="migrate") for folder in folders)
    )
    assert [one.code for one in ended] == [0, 0], ended
    empty.drop()


def test_what_cannot_be_served_is_told_in_one_line(postgres: PostgresServer, tmp_path: Path) -> None:
    """No such database, nobody there, a password that is refused, a schema that is newer."""
    check_refused(begin(tmp_path, postgres.url("nosuch")), "nosuch", "does not exist")
    newer = PostgresDatabase(postgres)
    postgres.run(newer.url, "UPDATE alembic_version SET version_num = '9999'")
    check_refused(begin(tmp_path, newer.url), "9999", "newer")
    check_refused(begin(tmp_path, newer.url, command="migrate"), "9999", "newer")
    newer.drop()
    careless = PostgresDatabase(postgres)
    name = careless.url.partition("@/")[2].partition("?")[0]
    postgres.admin(f"ALTER DATABASE {name} SET synchronous_commit = off")
    check_refused(begin(tmp_path, secretive(careless.url)), "synchronous_commit is off", "***")
    careless.drop()
    ascii_only = "CREATE DATABASE odd TEMPLATE template0 ENCODING 'LATIN1'"
    postgres.admin(ascii_only)
    check_refused(begin(tmp_path, postgres.url("odd"), "--migrate"), "LATIN1", "UTF8")
    postgres.admin("DROP DATABASE odd")


async def test_a_server_that_is_starting_is_waited_for(tmp_path: Path, model: ModelServer) -> None:
    with PostgresServer() as server:
        database = PostgresDatabase(server)
        factory = ServiceFactory(tmp_path, model, lambda: database)
        one = factory()
        with server.down():
            one.launch()
            await until(lambda: "start.waits-for-database" in one.log, "it waits")
        assert one.process is not None
        await one.process.until_ready(30)
        one.end()
        with server.down():
            one.launch()
            await until(lambda: "start.waits-for-database" in one.log, "it waits")
            one.kill()
        await factory.close()


async def test_a_server_that_restarts_under_way_costs_no_run(tmp_path: Path, model: ModelServer) -> None:
    """Posts are refused or taken meanwhile, streams stay open, and everything goes on."""
    with PostgresServer() as server:
        factory = ServiceFactory(tmp_path, model, lambda: PostgresDatabase(server))
        model.on("go on", [role(), text("before "), hold("restart"), text("after"), finish(), done()])
        async with factory({"limits.accept_wait_ms": 1000}) as one:
            run_id = await one.run("go on", "restart")
            follower = one.follow(run_id).start()
            await follower.until(lambda event: event.payload.get("delta") == "before ")
            with server.down():
                refused = await one.post("x", "restart", "key-1")
                assert refused.status == 503 and refused.body["code"] == "store-busy"
                model.release("restart")
                health = await one.request("GET", "/healthz")
                assert health.status == 200
            await follower.finish(60)
            assert follower.connections == 1 and follower.violations == []
            again = await one.post("x", "restart", "key-1")
            assert again.status == 202
            assert reply_texts(await one.ended(run_id)) == ["before after"]
            assert (await one.ended(again.run_id))["status"] == "succeeded"
            await check_case(one, [run_id, again.run_id], sessions=["restart"])
            check_at_rest(one, accepted=[run_id, again.run_id])
            assert "Traceback" not in one.log, one.log[-3000:]
        await factory.close()


async def test_commits_whose_answer_is_lost_are_neither_lost_nor_done_twice(
    service: ServiceFactory, postgres: PostgresServer
) -> None:
    """G4 for whole runs: accept, take, keep and settle are cut around their COMMIT again and again."""
    ways: list[Cut] = ["before", "after", "late"]
    commits = [0]

    def decide() -> Cut | None:
        commits[0] += 1
        return ways[commits[0] // 7 % 3] if commits[0] % 7 == 0 else None

    direct = PostgresDatabase(postgres)
    async with PgProxy(postgres.socket, decide) as proxy:
        one = service({"store.url": proxy.url(direct.url)}, store=direct)
        async with one:
            run_ids = []
            for number in range(12):
                session = f"cut-{number % 3}"
                answer = await one.post(f"m{number} [s:{session}]", session, f"key-{number}")
                assert answer.status == 202, answer
                run_ids.append(answer.run_id)
            for run_id in run_ids:
                record = await one.ended(run_id, 60_000)
                assert (record["status"], record["attempt"]) == ("succeeded", 1)
            assert len(proxy.cuts) >= 6 and set(proxy.cuts) == set(ways), proxy.cuts
            await check_case(one, run_ids, sessions=["cut-0", "cut-1", "cut-2"])
            check_at_rest(one, accepted=run_ids)
            one.terminate()
            await one.until_exit(60)
            assert "Traceback" not in one.log, one.log[-3000:]


async def test_a_second_process_on_the_same_database_is_refused(service: ServiceFactory) -> None:
    async with service() as one:
        run_id = await one.run("x", "first")
        second = service(store=one.store)
        second.launch()
        assert await second.until_exit(60) == 1
        assert second.process is not None
        line = second.process.output.strip().splitlines()[-1]
        assert line.startswith("laneway: Another Laneway works on this database") and str(one.pid) in line, line
        await check_case(one, [run_id], sessions=["first"])
        one.kill()
        # Its process is known to be gone, so nobody waits for its lease.
        async with second:
            await check_case(second, [run_id, await second.run("y", "first")], sessions=["first"])
            assert "start.waits-for-lease" not in second.process.output.rpartition("works on this database")[2]


async def test_a_paused_process_that_was_declared_dead_ends_and_writes_nothing(
    service: ServiceFactory, model: ModelServer
) -> None:
    """Its lease is over, so another one goes on; when it wakes it finds that out before it can do harm."""
    model.on("held [s:p]", [role(), text("half "), hold("first"), text("of it"), finish(), done()])
    async with service() as one:
        run_id = await one.run("held [s:p]", "p")
        async with await one.stream(run_id) as stream:
            await stream.until(lambda event: event.payload.get("delta") == "half ")
        one.pause()
        with psycopg.connect(one.store.settings["store.url"], autocommit=True) as raw:
            raw.execute("UPDATE worker SET lease_until = 0")  # as if it had slept for longer
        model.on("held [s:p]", [role(), text("whole"), finish(), done()])
        other = service(store=one.store)
        async with other:
            record = await other.ended(run_id, 60_000)
            assert (record["status"], record["attempt"], reply_texts(record)) == ("succeeded", 2, ["whole"])
            one.resume()
            model.release("first")
            assert await one.until_exit(60) == 1
            assert one.process is not None
            assert "took over" in one.process.output.strip().splitlines()[-1]
            # One request of the paused one was in flight beside that of the other: what came back was dropped.
            model.unchecked = True
            check_at_rest(other, accepted=[run_id])
            transcript = await other.transcript("p")
            assert [entry["role"] for entry in transcript] == ["user", "assistant"], transcript


async def test_a_process_that_cannot_reach_its_database_stops_executing_and_goes_on_when_it_is_back(
    tmp_path: Path, model: ModelServer
) -> None:
    """It cannot know whether another one has begun: what executes is stopped, then taken up again."""
    with PostgresServer() as server:
        database = PostgresDatabase(server)
        factory = ServiceFactory(tmp_path, model, lambda: database)
        model.on("long", [role(), text("half "), hold("lease"), text("x"), finish(), done()])
        async with factory() as one:
            run_id = await one.run("long", "lease")
            async with await one.stream(run_id) as stream:
                await stream.until(lambda event: event.payload.get("delta") == "half ")
            model.on("long", [role(), text("whole"), finish(), done()])
            with server.down():
                await until(lambda: model.in_flight.total() == 0, "the model request was cancelled", 60)
            record = await one.ended(run_id, 60_000)
            assert (record["status"], record["attempt"], reply_texts(record)) == ("succeeded", 2, ["whole"])
            await check_case(one, [run_id], sessions=["lease"])
        await factory.close()


async def test_a_clean_stop_signs_off_at_once(service: ServiceFactory) -> None:
    one = service()
    for _ in range(2):
        async with one:
            assert (await one.request("GET", f"{API}/runs")).status == 200
            one.terminate()
            assert await one.until_exit(60) == 0
            assert one.query("SELECT * FROM worker WHERE dead_at IS NULL") == []
    assert "start.waits-for-lease" not in one.log
    assert signal.SIGTERM.name in one.log
