"""How a run looks while it is followed: the reply's text on standard output, everything else on standard error.

On a terminal text is written as it comes. In a pipe a message is written when it is complete, so that nothing gets
into it that the service takes back later. Which events come is `stream`'s business.
"""

from __future__ import annotations

import re
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.status import Status

from app.cli.output import json_text
from app.cli.stream import Event

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Everything that can move a cursor, change a title or ring a bell; newline and tab stay."""


class View(Protocol):
    """Shows a run's events as they come."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None:
        """Leave the terminal as it should be; called once, whatever happened."""


class JsonLines:
    """Every event but heartbeats, one JSON object a line, in the envelope that it came in."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, event: Event) -> None:
        if event.name == "heartbeat":
            return
        self._out.write(json_text(event.payload) + "\n")
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class Screen:
    """The reply as text."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._console = Console(file=err, stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._spinner: Status | None = None
        self._open: dict[str, str] = {}
        """Text so far of the messages that have no end yet; on a terminal all of it has been written."""
        self._ended: set[str] = set()
        """Messages that are complete and have been written."""
        self._fresh_line = True
        self._wait("waiting for the service")

    def show(self, event: Event) -> None:
        data = event.data
        if "notKept" in event.payload or data.get("resets"):
            self._drop_open()  # the process died under the run: what had no end does not count
        if event.name == "assistant" and isinstance(data.get("messageId"), str):
            self._assistant(data["messageId"], data)
        elif event.name == "lifecycle":
            self._wait("waiting in line" if data.get("phase") == "queued" else "thinking")
        elif event.name == "tool":
            self._wait(f"running {data.get('name', 'a tool')}" if data.get("phase") == "start" else "thinking")
        elif event.name == "gap":
            self._note("some events are no longer kept; going on with what is there")
        elif event.name == "snapshot":
            self._snapshot(data)
        elif event.name == "shutdown":
            self._note("the service is going down; waiting for it to come back")
        elif event.name == "problem":
            self._note(str(data.get("detail") or data.get("title") or "the stream was cut"))
        elif event.name == "done":
            self._done(data)

    def close(self) -> None:
        self._stop_waiting()
        if self._live and not self._fresh_line:
            self._write("\n")
        self._out.flush()

    def _assistant(self, message_id: str, data: dict[str, Any]) -> None:
        phase, told = data.get("phase"), data.get("text")
        if phase is None:
            self._delta(message_id, str(data.get("delta", "")), data.get("offset"))
        elif phase == "reset":
            if self._open.pop(message_id, ""):
                self._start_again()
        elif phase == "replace" and isinstance(told, str):
            self._settle(message_id, told)
        elif phase == "end":
            self._settle(message_id, told if isinstance(told, str) else self._open.get(message_id, ""))
            self._finish(message_id)

    def _snapshot(self, data: dict[str, Any]) -> None:
        """The messages as they stand, in place of events that are gone."""
        told = [message for run in data.get("runs") or [] for message in run.get("messages") or []]
        texts = {m["messageId"]: m for m in told if m.get("stream") == "assistant" and m.get("text")}
        if self._open.keys() - texts.keys():
            self._drop_open()
        for message_id, message in texts.items():
            if message_id not in self._ended:
                self._settle(message_id, message["text"])
                if message.get("ended"):
                    self._finish(message_id)

    def _delta(self, message_id: str, delta: str, offset: Any) -> None:
        so_far = self._open.get(message_id, "")
        overlap = len(so_far) - offset if isinstance(offset, int) else 0
        fresh = delta[overlap:] if overlap > 0 else delta
        self._begin(message_id)
        self._open[message_id] = so_far + fresh
        if self._live:
            self._write(fresh)

    def _settle(self, message_id: str, text: str) -> None:
        """Make what is shown of a message exactly `text`."""
        so_far = self._open.get(message_id, "")
        if not text.startswith(so_far):
            self._start_again()
            so_far = ""
        if text:
            self._begin(message_id)
        self._open[message_id] = text
        if self._live:
            self._write(text[len(so_far) :])

    def _finish(self, message_id: str) -> None:
        text = self._open.pop(message_id, "")
        if not text:
            return
        self._ended.add(message_id)
        if not self._live:
            self._write(text)
        if not self._fresh_line:
            self._write("\n")

    def _done(self, data: dict[str, Any]) -> None:
        for message_id in list(self._open):
            self._finish(message_id)
        payloads = (data.get("reply") or {}).get("payloads") or []
        texts = [payload.get("text") for payload in payloads if payload.get("kind") == "text"]
        if not self._ended and (text := "\n".join(filter(None, texts))):
            self._settle("", text)  # the events that carried it were not kept
            self._finish("")
        self._stop_waiting()

    def _begin(self, message_id: str) -> None:
        """Messages do not run into each other."""
        if message_id not in self._open and not self._fresh_line:
            self._write("\n")

    def _drop_open(self) -> None:
        shown = any(self._open.values())
        self._open.clear()
        if shown:
            self._start_again()

    def _start_again(self) -> None:
        """What was written of a message counts no more. Only a terminal has seen it."""
        if self._live:
            self._note("starting this message again")

    def _write(self, text: str) -> None:
        if not text:
            return
        self._stop_waiting()
        self._fresh_line = text.endswith("\n")
        self._out.write(_CONTROLS.sub("", text) if self._live else text)
        self._out.flush()

    def _note(self, text: str) -> None:
        """One dim line on standard error, on a line of its own."""
        self._stop_waiting()
        if self._live and not self._fresh_line:
            self._write("\n")
        self._console.print(_CONTROLS.sub("", text), style="dim")

    def _wait(self, what: str) -> None:
        """A spinner while there is nothing to read, where somebody looks."""
        if not self._console.is_terminal or not self._fresh_line:
            return
        shown = _CONTROLS.sub("", what)[:60]
        if self._spinner is None:
            self._spinner = self._console.status(shown, spinner="dots")
            self._spinner.start()
        else:
            self._spinner.update(shown)

    def _stop_waiting(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
