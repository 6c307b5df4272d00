"""What was said last, and text word by word: shared by the providers that talk without a model."""

from __future__ import annotations

import re

from app.domain.message import Message


def last_user_text(messages: tuple[Message, ...]) -> str:
    """The text of the last message of the user, empty without one."""
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


def words(text: str) -> list[str]:
    """The text in words, each with the space around it, so that they join to the text again."""
    return re.findall(r"\s*\S+\s*|\s+", text)
