"""Bounds of one run's loop: rounds of tools, calls that repeat themselves, tools that do not exist, cut answers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from app.domain.message import ToolCallPart
from app.domain.outcome import Outcome, failed
from app.domain.tool_call import CallResult


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Each of them ends the run when it is reached."""

    rounds: int
    repeats: int
    cut_answers: int


class LoopGuard:
    """Counts over the rounds of a run's attempt. `rounds` begins with those of earlier attempts."""

    def __init__(self, limits: LoopLimits, rounds: int = 0) -> None:
        self._limits = limits
        self._rounds = rounds
        self._unknown_rounds = 0
        self._cut_rounds = 0
        self._seen: Counter[bytes] = Counter()

    def judge(self, calls: Sequence[ToolCallPart], results: Mapping[str, CallResult]) -> Outcome | None:
        """After a round whose calls are all answered: how the run ends, or None when it goes on."""
        limits = self._limits
        self._rounds += 1
        codes = {results[call.tool_call_id].code for call in calls}
        self._unknown_rounds = self._unknown_rounds + 1 if codes == {"unknown-tool"} else 0
        self._cut_rounds = self._cut_rounds + 1 if "output-limit" in codes else 0
        self._seen.update({_signature(call, results[call.tool_call_id]) for call in calls})
        if self._cut_rounds >= limits.cut_answers:
            text = f"The model's output limit cut its answer in the middle of a tool call {self._cut_rounds} times."
            return failed("output-limit", text)
        if self._unknown_rounds >= limits.repeats:
            return failed(
                "tool-loop", f"The model called tools that do not exist {self._unknown_rounds} times in a row."
            )
        if max(self._seen.values()) >= limits.repeats:
            return failed("tool-loop", f"The model made the same call with the same result {limits.repeats} times.")
        if self._rounds >= limits.rounds:
            return failed("tool-rounds-exhausted", f"The model asked for tools {self._rounds} times in this run.")
        return None


def _signature(call: ToolCallPart, result: CallResult) -> bytes:
    """Equal for the same tool with the same arguments, however written, and the same result."""
    try:
        args = orjson.dumps(orjson.loads(call.args), option=orjson.OPT_SORT_KEYS)
    except orjson.JSONDecodeError:
        args = call.args.encode()
    whole = b"\0".join((call.name.encode(), args, result.code.encode(), result.text.encode()))
    return hashlib.sha256(whole).digest()
