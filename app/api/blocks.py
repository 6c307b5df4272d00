"""What stands in the `data` lines of an event stream, as models for the OpenAPI document alone."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, RootModel

from app.api.words import TIME, ControlName, Count, Id, Schema, StreamName, Time

_ASSISTANT = f"""id: 17
event: assistant
data: {{"runId":"0198c0de-0000-7000-8000-000000000001","seq":17,"stream":"assistant","ts":"{TIME}",\
"data":{{"messageId":"0198c0de-0000-7000-8000-000000000002","delta":"lo","offset":3}}}}

"""


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
    data: dict[str, Any]


class ControlEvent(Schema):
    """An event that concerns the stream alone; it has no number of its own."""

    run_id: Id
    stream: ControlName
    ts: Time
    data: dict[str, Any]


class EventStream(RootModel[str]):
    """Blocks of lines, an empty line after each: `event` (the name of the stream), `id` (the cursor to come back with),
    `data` (one line of JSON: an `Event`, or a `ControlEvent`), and in the first block `retry` (milliseconds).

    The first block is `ready`, or `accepted` on a post; then come the run's events, those already told and those to
    come, without gap or repeat, and `heartbeat` in silence. After the run's end comes `done`, and the stream closes. A
    stream that ends without `done` has not ended: come back with the last `id` in `Last-Event-ID`.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [_ASSISTANT]})
