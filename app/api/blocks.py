"""The blocks of an event stream and what stands in them, as models for the OpenAPI document alone."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, RootModel

from app.api.words import ID, TIME, ControlName, Count, Id, Schema, StreamName, Time

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


class Event(Schema):
    """A numbered event of a run."""

    run_id: Id
    seq: int = Field(ge=1, description="Its number in the run, which is its `id` too.")
    first_seq: Count | None = Field(
        None, description="The first number that it stands for, when it stands for several."
    )
    not_kept: NotKept | None = Field(None, description="Drop what you hold of messages without an end.")
    stream: StreamName
    ts: Time
    data: dict[str, Any] = Field(description="What happened.")


class ControlEvent(Schema):
    """An event that concerns the stream alone; it has no number of its own."""

    run_id: Id
    stream: ControlName
    ts: Time
    data: dict[str, Any] = Field(description="What there is to say.")


class Envelope(RootModel[Event | ControlEvent]):
    """What stands in `data`."""


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
