"""Reply payloads: what a run hands to whoever asked, assembled from its last message and its outcome."""

from __future__ import annotations

from typing import Any

from app.domain.message import Message
from app.domain.outcome import Outcome


def reply_payloads(message: Message | None, outcome: Outcome, *, show_reasoning: bool) -> list[dict[str, Any]]:
    """Payloads in the order to show them: reasoning (when asked for), text, error. Empty when nothing came."""
    payloads: list[dict[str, Any]] = []
    if message is not None:
        if show_reasoning and message.thinking.strip():
            payloads.append({"kind": "reasoning", "text": message.thinking})
        if message.text.strip():
            payloads.append({"kind": "text", "text": message.text})
    if outcome.is_error:
        payloads.append({"kind": "error", "text": outcome.message, "code": outcome.code})
    return payloads
