"""A stored conversation in the form that a vendor takes. The same message always comes out the same, byte for byte.

What no vendor accepts is left out here: an assistant message with neither text nor calls, reasoning without its proof
of origin, arguments that are no JSON object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson
from pydantic_ai import messages as layer

from app.domain.message import Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from app.providers.contract import ModelRequest, ToolSpec

PROVIDER_KEY: Final = "provider"
FIELD_KEY: Final = "field"
SIGNATURE_KEY: Final = "signature"
ID_KEY: Final = "id"
"""Keys of a thinking part's detail: who gave it, in which field, with which proof, under which id."""


def chat_messages(request: ModelRequest, provider: str, system_role: str) -> list[dict[str, Any]]:
    """The conversation as the messages of a chat completion."""
    shaped: list[dict[str, Any]] = []
    if request.system:
        shaped.append({"role": system_role, "content": request.system})
    for message in request.messages:
        if message.role == "user":
            shaped.append({"role": "user", "content": message.text})
        elif message.role == "assistant":
            shaped += _chat_answer(message, provider)
        else:
            shaped += (
                {"role": "tool", "tool_call_id": _id_of(part), "content": part.content}
                for part in message.parts
                if isinstance(part, ToolResultPart)
            )
    return shaped


def chat_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Tools as a chat completion takes them."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]


def layer_messages(request: ModelRequest, provider: str, layer_name: str) -> list[layer.ModelMessage]:
    """The conversation in the model layer's types, without the system text. `layer_name` is its name for the vendor."""
    shaped: list[layer.ModelMessage] = []
    for message in request.messages:
        if message.role == "user":
            if message.text:
                shaped.append(layer.ModelRequest(parts=[layer.UserPromptPart(content=message.text)]))
        elif message.role == "assistant":
            parts = _layer_answer(message, provider, layer_name)
            if parts:
                shaped.append(layer.ModelResponse(parts=parts, provider_name=layer_name))
        else:
            results = [_layer_result(part) for part in message.parts if isinstance(part, ToolResultPart)]
            if results:
                shaped.append(layer.ModelRequest(parts=results))
    return shaped


def _chat_answer(message: Message, provider: str) -> list[dict[str, Any]]:
    text, calls = message.text, message.tool_calls
    if not text and not calls:
        return []
    shaped: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        # Servers that think between calls want to see what they thought; elsewhere it would only cost tokens.
        shaped |= _thoughts(message, provider)
        shaped["tool_calls"] = [
            {
                "id": _id_of(call),
                "type": "function",
                "function": {"name": call.name, "arguments": _object_text(call.args)},
            }
            for call in calls
        ]
    return [shaped]


def _thoughts(message: Message, provider: str) -> dict[str, str]:
    """Reasoning by the field in which this very provider gave it."""
    found: dict[str, str] = {}
    for part in message.parts:
        if isinstance(part, ThinkingPart) and part.detail and part.detail.get(PROVIDER_KEY) == provider:
            field = part.detail.get(FIELD_KEY)
            if isinstance(field, str) and field:
                found[field] = found.get(field, "") + part.text
    return found


def _layer_answer(message: Message, provider: str, layer_name: str) -> list[layer.ModelResponsePart]:
    """Parts in their order; empty when there is neither text nor a call."""
    parts: list[layer.ModelResponsePart] = []
    has_content = False
    for part in message.parts:
        if isinstance(part, TextPart) and part.text:
            has_content = True
            if parts and isinstance(parts[-1], layer.TextPart):
                parts[-1] = layer.TextPart(content=parts[-1].content + part.text)
            else:
                parts.append(layer.TextPart(content=part.text))
        elif isinstance(part, ToolCallPart):
            has_content = True
            parts.append(layer.ToolCallPart(part.name, _object_text(part.args), tool_call_id=_id_of(part)))
        elif isinstance(part, ThinkingPart) and part.detail and part.detail.get(PROVIDER_KEY) == provider:
            signature = part.detail.get(SIGNATURE_KEY)
            if signature:
                thought = layer.ThinkingPart(
                    part.text, signature=signature, id=part.detail.get(ID_KEY), provider_name=layer_name
                )
                parts.append(thought)
    return parts if has_content else []


def _layer_result(part: ToolResultPart) -> layer.ToolReturnPart:
    return layer.ToolReturnPart(
        part.name,
        part.content,
        tool_call_id=_id_of(part),
        outcome="failed" if part.is_error else "success",
    )


def _id_of(part: ToolCallPart | ToolResultPart) -> str:
    """The provider's own id, as it gave it; some accept no other form."""
    return part.provider_id or part.tool_call_id


def _object_text(args: str) -> str:
    """The arguments as they are; vendors refuse a conversation for ever in which they are no JSON object."""
    try:
        return args if isinstance(orjson.loads(args), dict) else "{}"
    except orjson.JSONDecodeError:
        return "{}"
