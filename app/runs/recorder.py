"""The recorder: the only writer of an executing attempt. Reports of the turn become durable steps and told events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection

from app.clock import Clock, Ids
from app.domain import event as ev
from app.domain import tool_event
from app.domain.audit import CallNames, RunIdentity
from app.domain.growing import GrowingMessage
from app.domain.masking import Masker
from app.domain.message import Message, StopReason, TextPart, ToolCallPart, Usage
from app.domain.outcome import Outcome, failed
from app.domain.run import Attempt
from app.domain.step import (
    CallsEnded,
    CallShown,
    CallsIntended,
    DeltaTold,
    GroupOwned,
    MessageKept,
    ModelOpened,
    Step,
    StepClosed,
    TurnEnd,
)
from app.errors import SessionBusy
from app.events.contract import Tail
from app.events.writer import EventWriter, Numbered
from app.faults import Point, hit
from app.store.contract import Fenced, LockUnusable, Store, StoreClosed, WriteLocks
from app.store.transaction.attempt import keep_deltas, keep_message, open_model
from app.store.transaction.calls import (
    Known,
    close_calls,
    drop_results,
    end_calls,
    intend_calls,
    own_group,
    plan_calls,
)
from app.store.transaction.entries import Claim, Entry
from app.store.transaction.lane import Taker
from app.store.transaction.settle import Settled, Settlement, let_go, settle
from app.store.transaction.wake import Wake
from app.tools.sanitize import wire_text

log = structlog.get_logger("laneway.runs")


@dataclass(frozen=True, slots=True)
class Showing:
    """How calls are shown to readers and named in the ledger."""

    masker: Masker
    names: CallNames
    event_bytes_max: int
    result_chars: int


class Recorder:
    """Writes for one attempt until it is settled, let go or fenced. Steps of the turn are taken in their order."""

    def __init__(  # noqa: PLR0913
        self,
        attempt: Attempt,
        store: Store,
        tail: Tail,
        clock: Clock,
        ids: Ids,
        showing: Showing,
        locks: WriteLocks,
        fenced: Callable[[], None],
    ) -> None:
        self._attempt = attempt
        self._locks = locks
        self._calls_open = attempt.attempt > 1
        self._store = store
        self._clock = clock
        self._ids = ids
        self._showing = showing
        self._event_bytes_max = showing.event_bytes_max
        self._begun_s = clock.steady_s()
        self._has_input = attempt.has_input
        self._tells_thinking = attempt.input.reasoning == "stream"
        self._open: GrowingMessage | None = None
        self._model = attempt.input.model
        self.usage = Usage()
        """Sum over the responses kept so far, for an attempt that is stopped."""
        self._writer = EventWriter(attempt.run_id, attempt.seq_last, store, tail, clock, self._keep_deltas, fenced)

    @property
    def _who(self) -> str:
        """As the write lock names this writer; another attempt is another one, and waits for this one's last step."""
        attempt = self._attempt
        return f"run {attempt.run_id}" + (f" in attempt {attempt.attempt}" if attempt.attempt > 1 else "")

    @property
    def active_ms(self) -> int:
        """Execution time of the run over all attempts, by now."""
        return self._attempt.active_ms + int((self._clock.steady_s() - self._begun_s) * 1000)

    async def report(self, step: Step) -> None:
        """What the turn calls. Raises Fenced, ClaimLost, AbortRequested, SessionBusy, LockUnusable."""
        match step:
            case DeltaTold():
                await self._tell(step)
            case ModelOpened():
                await self._open_model(step)
            case MessageKept():
                await self._keep_message(step)
            case CallsIntended():
                await self._intend(step)
            case GroupOwned():
                await self._own_group(step)
            case CallShown():
                stream, payload, _ = tool_event.updated(step.message_id, step.call, step.text)
                await self._writer.tell(stream, payload)
            case CallsEnded():
                await self._end_calls(step)
            case StepClosed():
                await self._close_step(step)

    def transcript(self) -> AbstractAsyncContextManager[None]:
        """The session's write lock, around what reads or appends to its transcript. Raises SessionBusy, LockUnusable.

        Taken before a step is handed over and kept until its outcome is known, so nobody waits for it in the store.
        """
        return self._locks.hold(self._attempt.session_key, self._who)

    async def settle(
        self, end: TurnEnd, taker: Callable[[], Taker], then: Callable[[Settled], None], stopped: Callable[[], bool]
    ) -> Settled:
        """T10 with the next take. Where the turn ended without a whole message, what came of the open one is kept.

        `then` runs right after the COMMIT. When the write lock is not to be had in time, or not at once for a run that
        is `stopped`, it is settled without: the run would never end, or leave a call without its result. Raises
        Fenced.
        """
        async with AsyncExitStack() as held:
            if self._calls_open or self._final(end) is not None:
                try:
                    await held.enter_async_context(self._last_hold(end, stopped))
                except (SessionBusy, LockUnusable) as problem:
                    log.warning("run.settled-without-lock", run_id=self._attempt.run_id, problem=str(problem))
                    if not stopped() and not end.outcome.is_error:
                        end = TurnEnd(lock_refused(problem, self._attempt.run_id), None, end.usage)
            return await self._settle(end, taker(), then)

    def _last_hold(self, end: TurnEnd, stopped: Callable[[], bool]) -> AbstractAsyncContextManager[None]:
        """A step of this attempt that was left behind may still be on its way, so it may hold the lock already."""
        waited = end.outcome.code == "session-busy"
        return self._locks.hold(
            self._attempt.session_key, self._who, allow_reentrant=True, hurried=lambda: waited or stopped()
        )

    async def _settle(self, end: TurnEnd, taker: Taker, then: Callable[[Settled], None]) -> Settled:
        final = self._final(end)
        resets = self._drop_open() if final is None else []

        def step(conn: Connection, numbered: Numbered) -> Settled:
            work = Settlement(
                claim=self._claim(),
                outcome=end.outcome,
                kept=numbered.kept,
                last=numbered.last,
                final=final,
                resets=tuple(resets),
                told_thinking=self._tells_thinking,
                usage=end.usage,
                show_reasoning=self._attempt.input.reasoning != "off",
                event_bytes_max=self._event_bytes_max,
            )
            return settle(conn, work, self._attempt.lane_token, taker)

        return await self._writer.last(step, then)

    async def let_go(self, taker: Taker, then: Callable[[tuple[Wake, ...]], None]) -> None:
        """T11: hand the run over to whoever comes next. Raises Fenced, AbortRequested."""

        def step(conn: Connection, numbered: Numbered) -> tuple[Wake, ...]:
            return let_go(conn, self._claim(), numbered.kept, numbered.last, self._attempt.lane_token, taker)

        await self._writer.last(step, then)

    def close(self) -> None:
        """Nothing is told or written any more, whoever still holds this."""
        self._writer.close()

    def _claim(self) -> Claim:
        attempt = self._attempt
        return Claim(
            attempt.run_id,
            attempt.attempt,
            attempt.session_id,
            attempt.transcript_id,
            attempt.take_no,
            self.active_ms,
        )

    def _keep_deltas(self, conn: Connection, events: tuple[ev.Event, ...], *, last: int, high: int) -> int:
        return keep_deltas(conn, self._claim(), events, last=last, high=high)

    async def _tell(self, step: DeltaTold) -> None:
        assert self._open is not None, "a delta without an open message"
        self._open.add(step.kind, step.text)
        if step.kind == "thinking" and not self._tells_thinking:
            return
        stream = "assistant" if step.kind == "text" else "thinking"
        size = self._event_bytes_max // ev.BYTES_A_CHARACTER_MAX
        for at in range(0, len(step.text), size):
            piece = step.text[at : at + size]
            await self._writer.tell(stream, ev.message_delta(self._open.message_id, piece, step.offset + at))

    async def _open_model(self, step: ModelOpened) -> None:
        items = self._drop_open()
        items.append(ev.model_called(step.step, step.model, self._attempt.attempt, step.message_id))
        first = None if self._has_input else self._input_entry()

        def write(conn: Connection, numbered: Numbered) -> int:
            return open_model(
                conn, self._claim(), step.message_id, numbered.events, first, last=numbered.last, high=numbered.high
            )

        def opened(high: int) -> int:
            self._has_input = True
            self._model = step.model
            self._open = GrowingMessage(step.message_id)
            return high

        async with self.transcript() if first is not None else nullcontext():
            await self._writer.commit(items, write, opened)
        hit(Point.OPENED)

    def _drop_open(self) -> list[ev.Told]:
        """A message that is asked for again: what was told of it is taken back."""
        dropped = self._open
        if dropped is None or not dropped.told_something:
            return []
        streams = [
            ("assistant", dropped.length["text"]),
            ("thinking", dropped.length["thinking"] * self._tells_thinking),
        ]
        return [ev.message_reset(stream, dropped.message_id) for stream, length in streams if length]

    async def _keep_message(self, step: MessageKept) -> None:
        message = step.message
        entry = Entry(self._ids.new(), message, self._clock.now_ms())
        identities = [self._showing.names.of(call) for call in message.tool_calls]
        items = self._ended(message)
        items += [
            tool_event.requested(message.message_id, call, self._args(call), self._event_bytes_max)
            for call in message.tool_calls
        ]

        def write(conn: Connection, numbered: Numbered) -> int:
            claim = self._claim()
            entry_no, high = keep_message(conn, claim, entry, numbered.events, last=numbered.last, high=numbered.high)
            plan_calls(conn, claim, entry_no, message.tool_calls, identities)
            return high

        def kept(high: int) -> int:
            # With the COMMIT and not behind it: a turn that is cancelled meanwhile has kept its message all the same.
            self.usage = self.usage.plus(message.usage or Usage())
            self._open = None
            return high

        async with self.transcript():
            self._calls_open = self._calls_open or bool(message.tool_calls)
            await self._writer.commit(items, write, kept)

    async def _intend(self, step: CallsIntended) -> None:
        items = [
            tool_event.started(step.message_id, call, self._args(call), self._event_bytes_max) for call in step.calls
        ]
        call_ids = [call.tool_call_id for call in step.calls]
        known = self._known()

        def write(conn: Connection, numbered: Numbered) -> int:
            return intend_calls(
                conn, self._claim(), call_ids, known, numbered.events, last=numbered.last, high=numbered.high
            )

        await self._writer.commit(items, write, lambda high: high)

    async def _own_group(self, step: GroupOwned) -> None:
        def write(conn: Connection, numbered: Numbered) -> int:
            return own_group(
                conn,
                self._claim(),
                step.tool_call_id,
                step.group,
                numbered.events,
                last=numbered.last,
                high=numbered.high,
            )

        await self._writer.commit([], write, lambda high: high)

    async def _end_calls(self, step: CallsEnded) -> None:
        if self._writer.closed:
            self._drop(step)
            raise Fenced
        items: list[ev.Told] = []
        for answer in step.answers:
            text, cut = wire_text(answer.result.text, self._showing.result_chars)
            cut = cut or answer.result.truncated
            items.append(tool_event.ended(step.message_id, answer.call, answer.result, text, truncated=cut))
        known = self._known()

        def write(conn: Connection, numbered: Numbered) -> int:
            return end_calls(
                conn, self._claim(), step.answers, known, numbered.events, last=numbered.last, high=numbered.high
            )

        try:
            await self._writer.commit(items, write, lambda high: high)
        except Fenced:
            self._drop(step)
            raise

    def _drop(self, step: CallsEnded) -> None:
        for answer in step.answers:
            if answer.started:
                self.drop_late(answer.call)

    def drop_late(self, call: ToolCallPart) -> None:
        """The run went on without this call: what it returned is kept nowhere, and the ledger says so."""
        known = self._known()
        try:
            written = self._store.submit(lambda conn: drop_results(conn, [call.tool_call_id], known))
        except StoreClosed:
            return
        written.add_done_callback(_told_of_failure)

    async def _close_step(self, step: StepClosed) -> None:
        now_ms = self._clock.now_ms()
        entries = [Entry(self._ids.new(), message, now_ms) for message in step.results]
        items = [ev.step_ended(step.step, step.usage.to_json())]

        def write(conn: Connection, numbered: Numbered) -> int:
            return close_calls(conn, self._claim(), entries, numbered.events, last=numbered.last, high=numbered.high)

        def closed(high: int) -> int:
            self._calls_open = False
            return high

        async with self.transcript():
            await self._writer.commit(items, write, closed)

    def _args(self, call: ToolCallPart) -> Any:
        return self._showing.masker.args(tool_event.arguments(call))

    def _known(self) -> Known:
        attempt = self._attempt
        who = RunIdentity(attempt.run_id, attempt.principal, attempt.agent, attempt.session_key, attempt.transcript_id)
        return Known(who, self._clock.now_ms(), self._ids)

    def _ended(self, message: Message) -> list[ev.Told]:
        reason = message.stop_reason or "stop"
        items: list[ev.Told] = []
        if self._tells_thinking and message.thinking:
            items.append(
                ev.message_ended("thinking", message.message_id, message.thinking, reason, self._event_bytes_max)
            )
        if message.text:
            items.append(ev.message_ended("assistant", message.message_id, message.text, reason, self._event_bytes_max))
        return items

    def _final(self, end: TurnEnd) -> Entry | None:
        outcome = end.outcome
        if end.message is not None:
            return Entry(self._ids.new(), end.message, self._clock.now_ms())
        if self._open is None or not self._open.told_something:
            return None
        reason: StopReason = "error" if outcome.is_error and outcome.code != "timed-out" else "aborted"
        partial_message = self._open.message(stop_reason=reason, model=self._model)
        if not partial_message.text.strip():
            return None
        return Entry(self._ids.new(), partial_message, self._clock.now_ms(), aborted=True)

    def _input_entry(self) -> Entry:
        asked = self._attempt.input
        parts = tuple(TextPart(part["text"]) for part in asked.parts)
        message = Message("user", asked.message_id, parts, source=asked.source)
        return Entry(self._ids.new(), message, self._clock.now_ms())


def lock_refused(problem: SessionBusy | LockUnusable, run_id: str) -> Outcome:
    """What a run ends as that could not get its session's write lock."""
    if isinstance(problem, SessionBusy):
        return failed("session-busy", str(problem), retryable=True)
    log.error("run.lock-unusable", run_id=run_id, problem=str(problem))
    return failed(
        "internal", f"The session's lock cannot be used; the service's log has the details under run {run_id}."
    )


def _told_of_failure(written: asyncio.Future[None]) -> None:
    if not written.cancelled() and (problem := written.exception()) is not None:
        log.warning("run.late-result-not-told", problem=type(problem).__name__)
