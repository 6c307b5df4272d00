"""A client that does not give up: posts under keys until each is answered, follows each run, aborts some.

It outlives any number of deaths of the service. What it was told is compared with what is stored at the end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.kit.follower import Follower
from tests.kit.invariants import check_at_rest
from tests.kit.service import Service
from tests.kit.sse import Event, check_stream

GIVE_UP_S = 900.0
EACH_MIN = 3
ATTEMPTS_MAX = 3
"""A run that is killed in so many attempts in a row without progress ends as interrupted, by decision."""


@dataclass
class Input:
    """One message that has to get through."""

    session: str
    number: int
    abort: bool = False
    run_id: str = ""
    follower: Follower | None = None
    abort_answered: bool = False

    @property
    def key(self) -> str:
        return f"{self.session}-{self.number}"

    @property
    def events(self) -> list[Event]:
        """All that its follower was sent, over all connections."""
        return [] if self.follower is None else self.follower.events

    @property
    def message(self) -> str:
        return f"message {self.number} [s:{self.session}]"


@dataclass
class Load:
    """Inputs of several sessions, sent in order within each. `start`, then `finish`, then `check`.

    `waiting`: how many messages of a session may be under way at once; with one its lane is idle in between.
    `each_min`: what a session posts in any case. `repeat_every`: one in so many posts is sent again under its key.
    """

    service: Service
    waiting: int = 3
    each_min: int = EACH_MIN
    repeat_every: int = 0
    inputs: list[Input] = field(default_factory=list)
    _enough: asyncio.Event = field(default_factory=asyncio.Event)
    _sessions: list[asyncio.Task[None]] = field(default_factory=list)
    _abort_every: int = 0

    def start(self, sessions: int, *, abort_every: int = 0) -> None:
        """Begin to post in so many sessions, each message behind the one before, until `finish`."""
        loop = asyncio.get_running_loop()
        self._abort_every = abort_every
        self._sessions = [loop.create_task(self._session(f"crash-{number}")) for number in range(sessions)]

    async def finish(self) -> None:
        """Post no more; until every follower is at its end and every abort was answered."""
        self._enough.set()
        async with asyncio.timeout(GIVE_UP_S):
            await asyncio.gather(*self._sessions)

    async def _session(self, session: str) -> None:
        """Two messages wait behind the one that executes, so that there is always a queue."""
        number = 0
        room = asyncio.Semaphore(self.waiting)
        async with asyncio.TaskGroup() as tasks:
            while not self._enough.is_set() or number < self.each_min:
                await room.acquire()
                abort = bool(self._abort_every) and number % self._abort_every == 1
                one = Input(session, number, abort)
                one.run_id = await self._post(one)
                if self.repeat_every and number % self.repeat_every == 0:
                    assert await self._post(one) == one.run_id, "a key stands for two runs"
                self.inputs.append(one)
                one.follower = self.service.follow(one.run_id).start()
                if abort:
                    tasks.create_task(self._abort(one))
                tasks.create_task(self._finish(one.follower, room))
                number += 1

    @staticmethod
    async def _finish(follower: Follower, room: asyncio.Semaphore) -> None:
        await follower.finish(GIVE_UP_S)
        room.release()

    async def _post(self, one: Input) -> str:
        async with asyncio.timeout(GIVE_UP_S):
            while True:
                try:
                    answer = await self.service.post(one.message, one.session, one.key)
                except httpx.HTTPError:
                    await asyncio.sleep(0.05)  # nobody answers: the service is down
                    continue
                if answer.status == 202:
                    return answer.run_id
                assert answer.status == 503, answer
                await asyncio.sleep(0.05)

    async def _abort(self, one: Input) -> None:
        assert one.follower is not None
        await one.follower.until(lambda event: event.event == "assistant" or event.terminal, GIVE_UP_S)
        async with asyncio.timeout(GIVE_UP_S):
            while not one.abort_answered:
                try:
                    one.abort_answered = (await self.service.abort(one.run_id))["abortRequestedAt"] is not None
                    return
                except httpx.HTTPError:
                    await asyncio.sleep(0.05)

    async def check(self) -> None:
        """What clients were told against what is stored, and the invariants; every run accounted for."""
        service = self.service
        run_ids = [one.run_id for one in self.inputs]
        assert len(set(run_ids)) == len(run_ids)
        await service.model.until_idle()
        check_at_rest(service, accepted=run_ids)
        stored = {row["id"]: row for row in service.query("SELECT id, status, accept_no, stalled FROM run")}
        assert set(stored) == set(run_ids), "runs that no client asked for"
        for one in self.inputs:
            assert one.follower is not None
            assert one.follower.violations == []
            checked = check_stream(one.follower.events)
            record = await service.record(one.run_id)
            assert checked.terminal is not None
            assert record["lastSeq"] == checked.terminal.seq
            self._check_end(one, record, stored[one.run_id]["stalled"])
        self._check_order(stored)
        for session, most in service.model.max_in_flight.items():
            assert most <= 1, f"{most} model requests at once in {session}"

    @staticmethod
    def _check_end(one: Input, record: dict[str, Any], stalled: int) -> None:
        status = record["status"]
        if one.abort_answered:
            assert status == "cancelled", record
        elif stalled >= ATTEMPTS_MAX and status == "failed":
            assert record["error"]["code"] == "interrupted", record
        elif one.abort:
            assert status in ("cancelled", "succeeded"), record
        else:
            assert status == "succeeded", record

    def _check_order(self, stored: dict[str, dict[str, int]]) -> None:
        """Per session the transcript holds each input once, in the order of acceptance."""
        for session in {one.session for one in self.inputs}:
            numbers = [stored[one.run_id]["accept_no"] for one in self.inputs if one.session == session]
            assert numbers == sorted(numbers), f"accepted out of order in {session}"
            rows = self.service.query(
                "SELECT t.run_id FROM transcript t JOIN session s ON s.transcript_id = t.transcript_id "
                "WHERE s.key = ? AND t.role = 'user' ORDER BY t.entry_no",
                session,
            )
            asked = [row["run_id"] for row in rows]
            expected = [one.run_id for one in self.inputs if one.session == session]
            assert asked == [run_id for run_id in expected if run_id in set(asked)], f"inputs out of order in {session}"
            assert len(asked) == len(set(asked)), f"an input stands twice in {session}"
