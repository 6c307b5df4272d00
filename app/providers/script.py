"""The document that a scripted provider plays: read, checked to the last field, and matched against messages.

A wrong script is told at the start, with the place, not when a test comes to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from app.domain.message import StopReason, Usage
from app.errors import SettingsError
from app.providers.contract import ProviderErrorCode

PAUSE_MS_MAX: Final = 24 * 3_600_000
_CODES: Final[tuple[str, ...]] = get_args(ProviderErrorCode)
_STOPS: Final[tuple[str, ...]] = get_args(StopReason)
_COUNTS: Final = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")


@dataclass(frozen=True, slots=True)
class Text:
    """Says this in one delta."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thinks this in one delta."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Says nothing for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a tool. `args` goes out as it is, broken or not."""

    call_id: str
    name: str
    args: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Fails here."""

    code: ProviderErrorCode
    message: str
    is_retryable: bool


Part = Text | Thinking | Pause | Call | Failure


@dataclass(slots=True)
class Response:
    """One response. `left` is how often it may still be used, None: always."""

    match: re.Pattern[str] | None
    left: int | None
    parts: tuple[Part, ...]
    stop_reason: StopReason
    usage: Usage


@dataclass(slots=True)
class Script:
    """Responses in order: the first one that fits and is not used up is played."""

    responses: list[Response] = field(default_factory=list)

    @staticmethod
    def load(path: Path) -> Script:
        """Read a script. Raises SettingsError that names the file and the place."""
        try:
            document = json.loads(path.read_bytes())
        except OSError as error:
            raise SettingsError(f"{path}: the script cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise SettingsError(f"{path}: the script is not JSON: {error}") from error
        return Script.parse(document, str(path))

    @staticmethod
    def parse(document: object, source: str = "script") -> Script:
        """Check a document: a list of responses. Raises SettingsError with the place behind `source`."""
        return Script([_response(item, f"{source}: [{at}]") for at, item in enumerate(_list(document, source))])

    def take(self, text: str) -> Response | None:
        """The response for the last user text, counted as used; None when none is left that fits."""
        for response in self.responses:
            if response.left != 0 and (response.match is None or response.match.search(text)):
                if response.left is not None:
                    response.left -= 1
                return response
        return None


def _response(value: object, place: str) -> Response:
    fields = _fields(value, place, "match", "times", "parts", "stopReason", "usage")
    parts = tuple(
        _part(item, f"{place}.parts[{at}]") for at, item in enumerate(_list(fields.get("parts"), place, "parts"))
    )
    default = "tool" if any(isinstance(part, Call) for part in parts) else "stop"
    stop_reason = fields.get("stopReason", default)
    if stop_reason not in _STOPS:
        raise _wrong(f"{place}.stopReason", f"must be one of {', '.join(_STOPS)}")
    times = fields.get("times")
    if times is not None and (type(times) is not int or times < 1):
        raise _wrong(f"{place}.times", "must be a whole number from 1")
    return Response(_pattern(fields.get("match"), f"{place}.match"), times, parts, stop_reason, _usage(fields, place))


def _pattern(value: object, place: str) -> re.Pattern[str] | None:
    if value is None:
        return None
    try:
        return re.compile(_text(value, place))
    except re.error as error:
        raise _wrong(place, f"is no regular expression: {error}") from error


def _usage(fields: dict[str, Any], place: str) -> Usage:
    place = f"{place}.usage"
    counts = _fields(fields.get("usage", {}), place, *_COUNTS)
    for name, count in counts.items():
        if type(count) is not int or count < 0:
            raise _wrong(f"{place}.{name}", "must be a whole number from 0")
    known = Usage.from_json(counts)
    return Usage(
        known.input_tokens, known.output_tokens, known.cache_read_tokens, known.cache_write_tokens, model_calls=1
    )


def _part(value: object, place: str) -> Part:
    fields = _fields(value, place, *_PARTS)
    if len(fields) != 1:
        raise _wrong(place, f"must have exactly one of {', '.join(_PARTS)}")
    ((name, content),) = fields.items()
    return _PARTS[name](content, f"{place}.{name}")


def _pause(value: object, place: str) -> Pause:
    if type(value) not in (int, float) or not 0 <= value <= PAUSE_MS_MAX:  # type: ignore[operator]
        raise _wrong(place, f"must be a number from 0 to {PAUSE_MS_MAX}")
    return Pause(value / 1000)  # type: ignore[operator]


def _call(value: object, place: str) -> Call:
    fields = _fields(value, place, "id", "name", "args")
    args = fields.get("args", {})
    if not isinstance(args, str | dict):
        raise _wrong(f"{place}.args", "must be an object, or text that goes out as it is")
    return Call(
        call_id=_text(fields.get("id", ""), f"{place}.id", may_be_empty=True),
        name=_text(fields.get("name"), f"{place}.name"),
        args=args if isinstance(args, str) else json.dumps(args),
    )


def _failure(value: object, place: str) -> Failure:
    fields = _fields(value, place, "code", "message", "retryable")
    code = fields.get("code", "provider-error")
    if code not in _CODES:
        raise _wrong(f"{place}.code", f"must be one of {', '.join(_CODES)}")
    retryable = fields.get("retryable", False)
    if not isinstance(retryable, bool):
        raise _wrong(f"{place}.retryable", "must be true or false")
    return Failure(code, _text(fields.get("message", "the script says so"), f"{place}.message"), retryable)


_PARTS: Final[dict[str, Callable[[object, str], Part]]] = {
    "text": lambda value, place: Text(_text(value, place)),
    "thinking": lambda value, place: Thinking(_text(value, place)),
    "pauseMs": _pause,
    "toolCall": _call,
    "error": _failure,
}


def _list(value: object, place: str, name: str = "") -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(f"{place}.{name}" if name else place, "must be a list")
    return value


def _fields(value: object, place: str, *allowed: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(place, "must be an object")
    for name in value:
        if name not in allowed:
            raise _wrong(f"{place}.{name}", f"is not known; allowed are {', '.join(allowed)}")
    return value


def _text(value: object, place: str, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or may_be_empty):
        raise _wrong(place, "must be text")
    return value


def _wrong(place: str, what: str) -> SettingsError:
    return SettingsError(f"{place} {what}")
