"""Intake: the one function through which every input becomes a run, whatever entry point it came by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from app.clock import Clock, Ids
from app.domain.admission import QueueMode
from app.domain.capacity import MAIN
from app.domain.message import ThinkingLevel
from app.domain.run import RunInput
from app.domain.session import key_agent, main_key
from app.errors import Draining, FieldProblem, SessionConflict, SessionNotFound, StoreBusy, ValidationFailed
from app.events.contract import Tail
from app.faults import Point, hit
from app.lanes.contract import Lanes
from app.providers.resolve import Providers
from app.runs.worker import Worker
from app.settings import MAIN_AGENT, Settings
from app.store.contract import StepUnsettled, Store, StoreClosed
from app.store.queries.sessions import named_by_id
from app.store.transaction.accept import Accepted, Intake, Replayed, accept


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A message to run, already of the right form. What is None was not said: configuration decides.

    `parts` are wire parts of the user's message. `body_hash` and `idempotency_key` go together.
    """

    principal: str
    route: str
    source: str
    parts: list[dict[str, Any]]
    session_key: str | None = None
    session_id: str | None = None
    agent: str | None = None
    model: str | None = None
    queue_mode: QueueMode | None = None
    queue_cap: int | None = None
    timeout_seconds: float | None = None
    thinking: ThinkingLevel | None = None
    reasoning: str = "off"
    extra_system_prompt: str = ""
    reply_required: bool = True
    metadata: dict[str, Any] | None = None
    label: str | None = None
    idempotency_key: str | None = None
    body_hash: str = ""
    followed: bool = False
    """The caller follows the run at once: its tail is kept from the first event on."""


@dataclass(frozen=True, slots=True)
class Receiving:
    """The accept answer: `body` is JSON text, the same at every repeat of the key."""

    run_id: str
    body: str
    replayed: bool


class RunIntake:
    """Accepts runs while the service takes any."""

    def __init__(  # noqa: PLR0913
        self,
        settings: Settings,
        store: Store,
        tail: Tail,
        lanes: Lanes,
        clock: Clock,
        ids: Ids,
        providers: Providers,
        worker: Worker,
    ) -> None:
        self._settings = settings
        self._store = store
        self._tail = tail
        self._lanes = lanes
        self._clock = clock
        self._ids = ids
        self._providers = providers
        self._worker = worker

    async def accept(self, request: RunRequest) -> Receiving:
        """Make it durable, then wake its lane. Nothing slow happens: no model, no tool, no wait for a lane.

        Raises Draining, StoreBusy (with the run id when the outcome is unknown), and what the accept step refuses with.
        """
        key, agent = await self._session(request)
        intake = self._intake(request, key, agent)
        patience_s = self._settings.limits.accept_wait_ms / 1000
        try:
            done = await self._store.write(
                partial(accept, intake=intake),
                partial(self._accepted, followed=request.followed),
                patience_s=patience_s,
            )
        except StoreClosed:
            raise Draining("The service is shutting down and takes no new runs; try again after its restart.") from None
        except StepUnsettled as unsettled:
            raise _store_busy(intake.run_id, begun=unsettled.begun) from None
        if isinstance(done, Replayed):
            return Receiving(done.run_id, done.answer, replayed=True)
        return Receiving(done.run_id, done.answer, replayed=False)

    async def _session(self, request: RunRequest) -> tuple[str, str]:
        """The session's key and agent: as named, by key or by id, else the agent's main session."""
        key, agent = request.session_key, request.agent
        if request.session_id is not None:
            named = await self._store.read(
                partial(named_by_id, session_id=request.session_id, principal=request.principal)
            )
            if named is None:
                raise SessionNotFound("No session has this `sessionId` now.", _at("no such session", "#/sessionId"))
            if key is not None and key != named[0]:
                raise SessionConflict(
                    "`sessionKey` and `sessionId` name different sessions.",
                    _at("names another session than `sessionId`", "#/sessionKey"),
                )
            key, agent = named[0], agent or named[1]
        owner = key_agent(key) if key is not None else None
        if agent is not None and owner is not None and agent != owner:
            raise ValidationFailed(
                "The session key names another agent.", _at(f"the key's agent is `{owner}`", "#/agent")
            )
        agent = agent or owner or MAIN_AGENT
        if self._settings.agent(agent) is None:
            known = ", ".join(self._settings.agent_ids())
            place = "#/agent" if request.agent else "#/sessionKey"
            raise ValidationFailed(f"No agent `{agent}` is configured.", _at(f"configured agents: {known}", place))
        return key or main_key(agent), agent

    def _intake(self, request: RunRequest, key: str, agent_id: str) -> Intake:
        agent = self._settings.agent(agent_id)
        assert agent is not None, agent_id
        model = request.model or agent.model
        problem = self._providers.known(model)
        if problem is not None and request.model is not None:
            raise ValidationFailed("This model cannot be used.", _at(problem, "#/model"))
        timeout_seconds = agent.timeout_seconds if request.timeout_seconds is None else request.timeout_seconds
        asked = RunInput(
            message_id=self._ids.new(),
            parts=request.parts,
            source=request.source,
            model=model,
            timeout_seconds=timeout_seconds,
            thinking=request.thinking,
            reasoning=request.reasoning,
            extra_system_prompt=request.extra_system_prompt,
            reply_required=request.reply_required,
            metadata=request.metadata or {},
        )
        queue = self._settings.queue
        return Intake(
            run_id=self._ids.new(),
            principal=request.principal,
            route=request.route,
            idempotency_key=request.idempotency_key,
            body_hash=request.body_hash,
            session_key=key,
            session_id=request.session_id,
            agent=agent_id,
            mode=request.queue_mode or queue.mode,
            cap=request.queue_cap or queue.cap,
            kind="message",
            lane_name=MAIN,
            label=request.label,
            input=asked,
            new_session_id=self._ids.new(),
            new_transcript_id=self._ids.new(),
            now_ms=self._clock.now_ms(),
            event_bytes_max=self._settings.limits.event_bytes,
            draining=self._worker.draining,
        )

    def _accepted(self, done: Accepted | Replayed, *, followed: bool) -> None:
        """After the COMMIT, whether or not the caller still waits."""
        if isinstance(done, Replayed):
            return
        hit(Point.ACCEPT_COMMITTED)
        self._tail.tell((done.event,), expected=followed)
        if done.wake is not None:
            self._lanes.wake((done.wake,))
        hit(Point.ACCEPT_WOKEN)


def _at(detail: str, pointer: str) -> FieldProblem:
    return FieldProblem(detail, pointer=pointer)


def _store_busy(run_id: str, *, begun: bool) -> StoreBusy:
    if begun:
        return StoreBusy(
            "The store did not answer in time, so whether the run was accepted is unknown: look for `runId`, or "
            "repeat the request with the same Idempotency-Key.",
            run_id=run_id,
        )
    return StoreBusy("The store is busy; nothing was stored. Try again.")
