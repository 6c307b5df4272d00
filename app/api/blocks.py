"""The blocks of an event stream and the events in them, as models for the OpenAPI document alone."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, RootModel

from app.api.answers.problems import Problem
from app.api.answers.runs import Accepted, WaitEnded
from app.api.event_data import (
    GapData,
    HeartbeatData,
    LifecycleData,
    MessageData,
    ReadyData,
    ShutdownData,
    SnapshotData,
    ToolData,
)
from app.api.words import ID, TIME, Count, Id, Schema, Time

_DATA = (
    f'{{"runId":"{ID}","seq":17,"stream":"assistant","ts":"{TIME}",'
    f'"data":{{"messageId":"{ID[:-1]}2","delta":"lo","offset":3}}}}'
)
_ABOUT = f"""One block of an event stream: lines as below, then an empty one.

```
id: 17
event: assistant
data: {_DATA}
```

The first block is `ready`, or `accepted` on a post; then come the run's events, those already told and those to come,
without gap or repeat, and `heartbeat` in silence. After the run's end comes `done`, and the stream closes. A stream
that ends without `done` has not ended: come back with the last `id` in `Last-Event-ID`. Names, phases and fields that
you do not know are to be ignored."""


class NotKept(Schema):
    """Numbers that were given out before a crash and are not kept."""

    from_seq: Count
    to_seq: Count


class _Numbered(Schema):
    run_id: Id
    seq: int = Field(ge=1, description="Its number in the run, which is its `id` too.")
    first_seq: Count | None = Field(
        None, description="The first number that it stands for, when it stands for several."
    )
    not_kept: NotKept | None = Field(None, description="Drop what you hold of messages without an end.")
    ts: Time


class LifecycleEvent(_Numbered):
    """Where the run stands. Exactly one last event, `end` or `error`, with `final: true`."""

    stream: Literal["lifecycle"]
    data: LifecycleData


class AssistantEvent(_Numbered):
    """Text of the reply."""

    stream: Literal["assistant"]
    data: MessageData


class ThinkingEvent(_Numbered):
    """The model's thinking, with `reasoning: stream` only."""

    stream: Literal["thinking"]
    data: MessageData


class ToolEvent(_Numbered):
    """A call of a tool. Every call has one `end`, and a `start` unless it was skipped."""

    stream: Literal["tool"]
    data: ToolData


class Event(
    RootModel[Annotated[LifecycleEvent | AssistantEvent | ThinkingEvent | ToolEvent, Field(discriminator="stream")],]
):
    """A numbered event of a run, by `stream`."""


class _Control(Schema):
    run_id: Id
    ts: Time


class ReadyEvent(_Control):
    """The first of every stream that is no answer to a post."""

    stream: Literal["ready"]
    data: ReadyData


class AcceptedEvent(_Control):
    """The first of a stream that answers a post. Its id is 0, or the cursor of a post that goes on."""

    stream: Literal["accepted"]
    data: Accepted


class HeartbeatEvent(_Control):
    """Nothing happened for `events.heartbeat_seconds`. Its id is the present cursor."""

    stream: Literal["heartbeat"]
    data: HeartbeatData


class GapEvent(_Control):
    """What follows the cursor cannot be told. A `snapshot` follows."""

    stream: Literal["gap"]
    data: GapData


class SnapshotEvent(_Control):
    """In place of all events up to its id."""

    stream: Literal["snapshot"]
    data: SnapshotData


class ShutdownEvent(_Control):
    """The process goes, and the stream ends. Come back after `retry`."""

    stream: Literal["shutdown"]
    data: ShutdownData


class ProblemEvent(_Control):
    """A failure in the middle, and the stream ends. Come back."""

    stream: Literal["problem"]
    data: Problem


class DoneEvent(_Control):
    """The run has ended and everything was sent. Do not come back."""

    stream: Literal["done"]
    data: WaitEnded


class ControlEvent(
    RootModel[
        Annotated[
            ReadyEvent
            | AcceptedEvent
            | HeartbeatEvent
            | GapEvent
            | SnapshotEvent
            | ShutdownEvent
            | ProblemEvent
            | DoneEvent,
            Field(discriminator="stream"),
        ]
    ]
):
    """An event that concerns the stream alone; it has no number of its own. By `stream`."""


class Envelope(RootModel[Event | ControlEvent]):
    """What stands in `data` of a block: an event, numbered or not."""


class EventBlock(Schema):
    model_config = ConfigDict(
        json_schema_extra={
            "description": _ABOUT,
            "examples": [{"id": "17", "event": "assistant", "data": _DATA}],
        }
    )

    id: str | None = Field(None, description="The cursor to come back with.")
    event: str | None = Field(None, description="The name of the stream. Not there with `format=message`.")
    data: str = Field(
        description="One line of JSON, an `Envelope`.",
        json_schema_extra={
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/Envelope"},
        },
    )
    retry: int | None = Field(None, description="Of the first block, and of `shutdown`: how long to wait, in ms.")
