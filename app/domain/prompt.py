"""The model's view: the system prompt and the history that one request is built from."""

from __future__ import annotations

from collections.abc import Iterable

from app.domain.message import Message, TextPart, ToolCallPart, ToolResultPart


def system_prompt(agent_prompt: str, extra: str) -> str:
    """The agent's own text, then what the request adds, a blank line between."""
    return "\n\n".join(text for text in (agent_prompt.strip(), extra.strip()) if text)


def model_view(history: Iterable[Message]) -> tuple[Message, ...]:
    """The stored history as a model takes it: messages that say nothing to it are left out, stored rows never changed.

    An assistant message without text and without calls is refused by providers, so it is never sent.
    """
    return tuple(message for message in history if _says_something(message))


def _says_something(message: Message) -> bool:
    return any(
        (isinstance(part, TextPart) and part.text) or isinstance(part, (ToolCallPart, ToolResultPart))
        for part in message.parts
    )
