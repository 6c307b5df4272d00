"""All about reading streams, in one place to import from.

The parser, the client on one connection, the client across connections, and the checks of what they read.
"""

from __future__ import annotations

from tests.kit.follower import Follower
from tests.kit.sse_parser import Event, Parser
from tests.kit.stream import Stream, StreamCut
from tests.kit.stream_checks import Checked, MessageText, by_run, check_stream, joined_messages, joined_text

__all__ = [
    "Checked",
    "Event",
    "Follower",
    "MessageText",
    "Parser",
    "Stream",
    "StreamCut",
    "by_run",
    "check_stream",
    "joined_messages",
    "joined_text",
]
