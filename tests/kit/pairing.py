"""Rule R2: what a real provider refuses in a list of messages.

`faults_of` names every break; the strict model server answers 400 when there is one, so that one bad
stored entry shows as a lasting failure of its session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

_SYSTEM = ("system", "developer")


def faults_of(messages: Any) -> list[str]:
    """Every break of the rule, as short sentences; an empty list when the messages are valid."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return ["`messages` is not a list of objects"]
    faults = _first_fault(messages)
    at = 0
    while at < len(messages):
        message, here = messages[at], f"messages[{at}]"
        at += 1
        match message.get("role"):
            case "system" | "developer" | "user":
                continue
            case "assistant":
                calls = message.get("tool_calls") or []
                faults += _assistant_faults(here, message, calls)
                results = _tool_run(messages, at)
                faults += _pair_faults(here, calls, results)
                at += len(results)
            case "tool":
                faults.append(f"{here}: tool message {message.get('tool_call_id')!r} follows no assistant message")
            case other:
                faults.append(f"{here}: unknown role {other!r}")
    return faults


def text_of(content: Any) -> str:
    """The text of a message's content, a string or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(part.get("text") or "" for part in content if isinstance(part, dict))


def _first_fault(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    first = next((message for message in messages if message.get("role") not in _SYSTEM), None)
    if first is None:
        return ["no message but system ones"]
    if first.get("role") != "user":
        return [f"the first message is of {first.get('role')!r}, not of the user"]
    return []


def _tool_run(messages: Sequence[Mapping[str, Any]], start: int) -> list[Mapping[str, Any]]:
    run: list[Mapping[str, Any]] = []
    for message in messages[start:]:
        if message.get("role") != "tool":
            break
        run.append(message)
    return run


def _assistant_faults(here: str, message: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> list[str]:
    faults: list[str] = []
    if not calls and not text_of(message.get("content")):
        faults.append(f"{here}: assistant message with neither text nor calls")
    for call in calls:
        function = call.get("function") or {}
        try:
            parsed = orjson.loads(function.get("arguments") or "")
        except (TypeError, ValueError):
            faults.append(f"{here}: arguments of {call.get('id')!r} are not JSON: {function.get('arguments')!r:.80}")
            continue
        if not isinstance(parsed, dict):
            faults.append(f"{here}: arguments of {call.get('id')!r} are not an object")
    return faults


def _pair_faults(here: str, calls: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> list[str]:
    asked = [str(call.get("id") or "") for call in calls]
    answered = [str(result.get("tool_call_id") or "") for result in results]
    faults: list[str] = []
    if "" in asked or len(set(asked)) != len(asked):
        faults.append(f"{here}: call ids are empty or repeated: {asked}")
    if asked != answered:
        faults.append(f"{here}: calls {asked} are followed by results {answered}")
    return faults
