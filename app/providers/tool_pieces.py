"""Which tool call a piece of one belongs to, for servers that number and name their pieces oddly.

Seen in the wild: two calls on one index, no index at all, an id on every piece or only on the first, a head on one
index and its tail on another, one id for two calls. The rule: a new id with a name begins a call; a piece without an
id follows its index, or else the call that came last. No piece is ever added to a call on a guess about its text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from app.clock import Ids
from app.providers.errors import bad_response


@dataclass(slots=True, eq=False)
class Call:
    """One call in the making. `number` counts from 0 in the order in which the calls began."""

    number: int
    call_id: str
    vendor_id: str
    name: str
    args: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Its arguments are a JSON object already, so that no further piece of it can be missing."""
        if not self.args or not self.args[-1].rstrip().endswith("}"):
            return False
        try:
            return isinstance(orjson.loads("".join(self.args)), dict)
        except orjson.JSONDecodeError:
            return False


@dataclass(frozen=True, slots=True)
class Piece:
    """What one piece adds to `call`, which it begins when `begins`: more of its name (rarely) and of its arguments."""

    call: Call
    name: str
    args: str
    begins: bool


class ToolPieces:
    """The calls of one answer. Raises ProviderError for a piece that belongs to no call."""

    __slots__ = ("_by_index", "_by_vendor_id", "_ids", "_provider", "calls")

    def __init__(self, provider: str, ids: Ids) -> None:
        self.calls: list[Call] = []
        self._provider = provider
        self._ids = ids
        self._by_index: dict[int, Call] = {}
        self._by_vendor_id: dict[str, Call] = {}

    def add(self, raw: dict[str, Any]) -> Piece:
        """Place one element of `tool_calls`."""
        index = raw.get("index")
        index = index if isinstance(index, int) else None
        vendor_id = _text(raw.get("id"))
        function = raw.get("function")
        function = function if isinstance(function, dict) else {}
        name, args = _text(function.get("name")), _args(function.get("arguments"))
        call = self._owner(index, vendor_id, name, args)
        begins = call is None
        if call is None:
            call = self._begin(vendor_id, name)
        elif name == call.name:
            name = ""
        elif name:
            call.name += name
        if index is not None:
            self._by_index[index] = call
        if args:
            call.args.append(args)
        return Piece(call, name, args, begins)

    def _owner(self, index: int | None, vendor_id: str, name: str, args: str) -> Call | None:
        """The call that a piece goes on with, None when it begins one."""
        on_index = self._by_index.get(index) if index is not None else None
        if vendor_id:
            if on_index is not None and on_index.vendor_id == vendor_id:
                same_id: Call | None = on_index
            else:
                same_id = self._by_vendor_id.get(vendor_id)
            if same_id is None:
                # A server that makes up an id for every piece gives the name only once.
                return None if name else on_index
            moved = index is not None and on_index is not same_id
            return None if name and (moved or _is_another(same_id, name, args)) else same_id
        last = self.calls[-1] if self.calls else None
        known = on_index or (last if index is None or not name else None)
        if known is None or not name:
            return known
        # Without an id, a name in pieces can only be told from the next call's by the index.
        is_name_piece = on_index is not None and not on_index.args
        return known if is_name_piece or not _is_another(known, name, args) else None

    def _begin(self, vendor_id: str, name: str) -> Call:
        if not name:
            raise bad_response(self._provider, "sent a piece of a tool call that was never begun")
        call = Call(len(self.calls), self._free_id(vendor_id), vendor_id, name)
        self.calls.append(call)
        if vendor_id:
            self._by_vendor_id[vendor_id] = call
        return call

    def _free_id(self, vendor_id: str) -> str:
        """The model's own id; made up when it gave none, made different when it gave that one before."""
        if not vendor_id:
            return f"call_{self._ids.new().replace('-', '')}"
        taken = {call.call_id for call in self.calls}
        return next(one for one in (vendor_id, *(f"{vendor_id}_{n}" for n in range(2, 10_000))) if one not in taken)


def _is_another(call: Call, name: str, args: str) -> bool:
    """A piece with a name on a call that has one: the same head once more, or the head of the next call?"""
    return name != call.name or (bool(args.strip()) and call.is_whole)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _args(value: object) -> str:
    """Some servers send the arguments as an object instead of its text."""
    if isinstance(value, dict):
        return orjson.dumps(value).decode()
    return _text(value)
