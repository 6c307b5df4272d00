"""Session keys: their form, whom they belong to, and which are the service's own."""

from __future__ import annotations

import re

KEY_FORM = re.compile(r"[A-Za-z0-9_.:@+~-]{1,256}")
KEY_RULE = "1 to 256 characters from A-Z a-z 0-9 . _ : @ + ~ -, not `.` or `..`"
_RESERVED = ("subagent:", "cron:", "hook:", "acp:")

AGENT_FORM = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def key_problem(key: str) -> str | None:
    """Why `key` is no session key, as a sentence, or None. Keys are exact: nothing is folded or trimmed."""
    if not KEY_FORM.fullmatch(key) or key in (".", ".."):
        hint = " A `+` must be written %2B in a URL query." if " " in key else ""
        return f"A session key is {KEY_RULE}.{hint}"
    return None


def reserved_problem(key: str) -> str | None:
    """Why a client may not create `key`, or None."""
    agent = key_agent(key)
    rest = key.removeprefix(f"agent:{agent}:") if agent is not None else ""
    if agent is not None and rest.startswith(_RESERVED):
        return f"The prefix `{rest.split(':', 1)[0]}:` after `agent:<agent>:` is reserved to the service."
    return None


def key_agent(key: str) -> str | None:
    """The agent named in a key of the form `agent:<agent>:...`, else None."""
    parts = key.split(":", 2)
    if len(parts) == 3 and parts[0] == "agent" and AGENT_FORM.fullmatch(parts[1]) and parts[2]:
        return parts[1]
    return None


def main_key(agent: str) -> str:
    """The key of an agent's main session."""
    return f"agent:{agent}:main"
