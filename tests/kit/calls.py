"""What a test reads of tool calls: the events of each call, the results in the transcript and in model requests."""

from __future__ import annotations

from typing import Any

from tests.kit.client import Client
from tests.kit.model_server import Request
from tests.kit.sse import Checked, check_stream


async def told(one: Client, run_id: str) -> Checked:
    """The whole stream of an ended run, checked."""
    async with await one.stream(run_id) as stream:
        return check_stream(await stream.collect_until_done())


def calls_of(checked: Checked) -> dict[str, list[dict[str, Any]]]:
    """Payloads of the stream `tool` by call, calls in the order in which they were asked for."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in checked.events:
        if event.stream == "tool":
            found.setdefault(event.payload["toolCallId"], []).append(event.payload)
    return found


def ends_of(checked: Checked) -> list[dict[str, Any]]:
    """The `end` of each call, in the order of the calls."""
    return [events[-1] for events in calls_of(checked).values() if events[-1]["phase"] == "end"]


def shown(payload: dict[str, Any]) -> str:
    """The text of an event's result."""
    return "".join(part["text"] for part in payload["result"]["content"])


async def results(one: Client, session: str) -> list[dict[str, Any]]:
    """The tool results in a session's transcript, in order."""
    items = await one.transcript(session)
    return [part for item in items for part in item["parts"] if part["type"] == "toolResult"]


def answers(request: Request) -> list[tuple[str, str]]:
    """(call id, content) of the tool messages of a request, in order."""
    return [(item["tool_call_id"], item["content"]) for item in request.messages if item["role"] == "tool"]
