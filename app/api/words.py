"""The values and closed lists of the wire as schemas. The lists are those of the code, each word with its meaning.

For the OpenAPI document alone, and loaded with it, so the start of the service does not pay for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, RootModel
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from app import errors as err
from app.domain.event import STREAMS
from app.domain.outcome import ABORT_CODES, ERROR_CODES, OUTCOMES
from app.domain.run import RunStatus
from app.domain.session import KEY_FORM, KEY_RULE

ID = "0198c0de-0000-7000-8000-000000000001"
TIME = "2026-11-30T20:31:07.123Z"

Id = Annotated[str, Field(examples=[ID])]
Time = Annotated[str, Field(examples=[TIME], json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]
Path = Annotated[str, Field(json_schema_extra={"format": "uri-reference"})]


class Schema(BaseModel):
    """Base of all. A field of type `X | None` is always there; one with the default None is left out at times."""

    model_config = ConfigDict(alias_generator=to_camel)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shaped = handler.resolve_ref_schema(handler(core_schema))
        for field in shaped.get("properties", {}).values():
            if "default" in field and field["default"] is None:
                del field["default"]
                without_null(field)
        return shaped


def without_null(schema: dict[str, Any]) -> None:
    """Leave the one other branch of `X | null`; what stands beside the branches goes over what stands in it."""
    branches = [branch for branch in schema.get("anyOf", ()) if branch != {"type": "null"}]
    if len(branches) == 1:
        del schema["anyOf"]
        schema.update({**branches[0], **schema})


class Page(Schema):
    """Base of all lists."""

    next_cursor: str | None = Field(description="Send it as `cursor` for the next page. Null at the end.")


class SessionKey(RootModel[str]):
    model_config = ConfigDict(
        json_schema_extra={
            "description": f"A session: {KEY_RULE}. Case matters.",
            "pattern": r"^(?!\.{1,2}$)" + f"{KEY_FORM.pattern}$",
            "examples": ["agent:main:web-42"],
        }
    )


# closed lists


def _listed(about: str, meanings: Mapping[str, str]) -> ConfigDict:
    lines = [about, "", *(f"- `{name}`: {meaning}" for name, meaning in meanings.items())]
    return ConfigDict(json_schema_extra={"enum": list(meanings), "description": "\n".join(lines)})


def problem_kinds() -> Iterable[type[err.LanewayError]]:
    """Every kind of failure that an answer can tell of, one for each code."""
    above: list[type[err.LanewayError]] = [err.RequestError, err.ServiceError]
    while above:
        kinds = above.pop(0).__subclasses__()
        yield from kinds
        above += kinds
    yield err.InternalError


_PROBLEM_MEANINGS = {
    "method-not-allowed": "The path is served, but not by this method; `Allow` lists those that are.",
    "bad-request": "The bytes, a header or a cursor are not what they should be.",
    "idempotency-key-required": "`Last-Event-ID` on a post without an `Idempotency-Key`.",
    "bad-host": "The `Host` is no name of this service (`server.allowed_hosts`).",
    "bad-origin": "A web page of an origin that is neither the service's own nor in `server.allowed_origins`.",
    "deleted": "The run has ended, and was kept for `retention.runs_days`; its session still has the transcript.",
    "session-busy": "The session has work, and the queue mode is `reject`.",
    "validation-failed": "A field or parameter is unknown, missing, of the wrong type or out of bounds.",
    "rate-limited": "Too many event streams are open (`limits.streams_per_principal`).",
    "internal": "The service failed; its log has the details under the request id.",
    "store-busy": "The store did not answer in time. With `runId`, whether the run was accepted is not known.",
}
"""Where the class says it for whoever reads the code."""

_STATUS_MEANINGS = {
    "queued": "waits for its turn",
    "running": "executes, or will go on after an interruption",
    "succeeded": "ended, with outcome `completed` or `silent`",
    "failed": "ended; `error` says why",
    "timed_out": "ended by its own limit",
    "cancelled": "ended by an abort, or withdrawn while it was queued",
    "merged": "went into another run; no run does in this build",
    "dropped": "dropped from a full queue; no run is in this build",
}
_STREAM_MEANINGS = {
    "lifecycle": "where the run stands: `queued`, `start`, `resumed`, `model`, `step-end`, and exactly one last event, "
    "`end` or `error`, with `final: true`",
    "assistant": "text of the reply: `delta` at `offset` (code points), then `phase: end` with the whole; "
    "`phase: reset` takes back what came for the message",
    "thinking": "the same for the model's thinking, with `reasoning: stream` only",
    "tool": "a tool call: `phase` `requested` when the model has asked for it, `start` when it begins, `update` with "
    "output that came since, `end` with its `outcome` and `result`; every call has one `end`, `skipped` if it has no "
    "`start`",
}
_CALL_MEANINGS = {
    "ok": "the tool returned a result",
    "error": "it could not do what was asked, or was not called at all; `result` says why",
    "timed-out": "it reached its own limit and was stopped",
    "blocked": "the operator's policy does not allow the call",
    "aborted": "the run was stopped before the tool had returned",
    "unknown": "the service died under it; whether it took effect is not known",
}


def problem_meaning(kind: type[err.LanewayError]) -> str:
    """One sentence for whoever gets it."""
    return _PROBLEM_MEANINGS.get(kind.code) or str(kind.__doc__)


class ProblemCode(RootModel[str]):
    model_config = _listed(
        "What went wrong, with the HTTP status.",
        {
            kind.code: f"{kind.status}. {problem_meaning(kind)}"
            for kind in sorted(problem_kinds(), key=lambda kind: (kind.status, kind.code))
        },
    )


class RunErrorCode(RootModel[str]):
    model_config = _listed("Why a run failed.", ERROR_CODES)


class WaitErrorCode(RootModel[str]):
    model_config = _listed(
        "Why there is no good end: that of the run, or the outcome of one that was stopped.",
        {**ERROR_CODES, **{code: OUTCOMES[code] for code in ABORT_CODES}},
    )


class Outcome(RootModel[str]):
    model_config = _listed("How a run ended that did not fail.", OUTCOMES)


class RunState(RootModel[str]):
    model_config = _listed(
        "Where a run stands.",
        {one.wire: _STATUS_MEANINGS.get(one.wire, "") for one in RunStatus},
    )


class StreamName(RootModel[str]):
    model_config = _listed(
        "What a numbered event is about.", {name: _STREAM_MEANINGS.get(name, "") for name in STREAMS}
    )


class CallOutcome(RootModel[str]):
    model_config = _listed("How a call of a tool ended.", _CALL_MEANINGS)
