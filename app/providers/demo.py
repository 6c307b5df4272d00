"""The built-in demo model: offline, no model at all, so that the whole service can be seen working without a key.

It says so in its first reply, speaks at a human pace, shows some thinking, and calls the tools it is asked to call.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from app.clock import Chance, Ids, SystemChance, UuidIds
from app.domain.message import Message, ToolResultPart, Usage
from app.providers.contract import (
    ArgsDelta,
    Finished,
    ModelRequest,
    StreamPart,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolSpec,
)
from app.providers.utterance import last_user_text, words

PACE_S: Final = (0.025, 0.040)
"""Shortest and longest time between two words."""

COUNT_MAX: Final = 1_000
RESULT_CHARS: Final = 2_000
"""How much of a tool's result is said back."""

INTRODUCTION: Final = (
    "I am Laneway's built-in demo model: offline, a handful of rules, no language model behind me. To talk to a real "
    'one, set `agents.defaults.model` in `laneway.toml` (for example `model = "openai:gpt-5-mini"`) and put its key '
    "into the environment as `OPENAI_API_KEY`; for a model of your own, add `[providers.local]` with its address.\n\n"
)
_ABILITIES: Final = (
    "I can greet you, count (`count to 20`), repeat what you say (`repeat hello there`), and call tools when there are "
    "any (`read README.md`, `list`, `run ls`). Anything else I say back to you, so that you can watch it stream."
)
_NO_TOOL: Final = "There is no tool for that here, so I cannot do it."


@dataclass(frozen=True, slots=True)
class _Errand:
    """A request for a tool. The tool is the first there is of `tools`, its argument the first it has of `arguments`."""

    pattern: re.Pattern[str]
    tools: tuple[str, ...]
    arguments: tuple[str, ...]
    default: str


_ERRANDS: Final = (
    _Errand(re.compile(r"read\s+(\S+)", re.I), ("read", "read_file"), ("path", "file", "file_path"), ""),
    _Errand(re.compile(r"list(?:\s+(\S+))?", re.I), ("list", "ls", "list_files"), ("path", "directory"), "."),
    _Errand(re.compile(r"run\s+(.+)", re.I | re.S), ("exec", "run", "shell", "bash"), ("command", "cmd"), ""),
)


@dataclass(frozen=True, slots=True)
class _Answer:
    thinking: str
    text: str
    call: ToolCall | None = None


class DemoProvider:
    """A ModelProvider by rules. `pace_s` is the shortest and the longest time between two words."""

    def __init__(
        self,
        name: str = "demo",
        *,
        pace_s: tuple[float, float] = PACE_S,
        chance: Chance | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.name = name
        self._pace_s = pace_s
        self._chance = chance or SystemChance()
        self._ids = ids or UuidIds()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Think, speak, and perhaps ask for a tool; see the contract."""
        answer = self._answer(request)
        spoken = 0
        for word in words(answer.thinking):
            yield ThinkingDelta(word)
            spoken += 1
            await asyncio.sleep(self._chance.between(*self._pace_s))
        for word in words(answer.text):
            yield TextDelta(word)
            spoken += 1
            await asyncio.sleep(self._chance.between(*self._pace_s))
        if answer.call is not None:
            yield ArgsDelta(answer.call.tool_call_id, answer.call.args)
            yield answer.call
        # Words are what this model reads and writes, so they are its tokens.
        heard = sum(len(words(message.text)) for message in request.messages)
        usage = Usage(input_tokens=heard, output_tokens=spoken, model_calls=1)
        yield Finished("tool" if answer.call else "stop", usage, model=self.name)

    async def close(self) -> None:
        """Nothing to release."""

    def _answer(self, request: ModelRequest) -> _Answer:
        last = request.messages[-1] if request.messages else None
        if last is not None and last.role == "tool":
            return _report(last)
        answer = self._reply(last_user_text(request.messages).strip(), request.tools)
        if any(message.role == "assistant" for message in request.messages):
            return answer
        return _Answer(answer.thinking, INTRODUCTION + answer.text, answer.call)

    def _reply(self, said: str, tools: tuple[ToolSpec, ...]) -> _Answer:
        for errand in _ERRANDS:
            found = errand.pattern.fullmatch(said)
            if found is not None:
                return self._errand(errand, (found.group(1) or errand.default).strip(" `"), tools)
        return _talk(said)

    def _errand(self, errand: _Errand, target: str, tools: tuple[ToolSpec, ...]) -> _Answer:
        named = {tool.name: tool for tool in tools}
        tool = next((named[name] for name in errand.tools if name in named), None)
        if tool is None:
            return _Answer("The user asks for a tool, and I have none that fits.", _NO_TOOL)
        args = json.dumps({_argument(tool, errand): target}, ensure_ascii=False)
        call = ToolCall(f"call_{self._ids.new()}", tool.name, args)
        return _Answer(f"The user asks for something that the tool {tool.name} can do.", "Let me see. ", call)


def _talk(said: str) -> _Answer:
    """The answer to what needs no tool."""
    plain = re.sub(r"[^\w ]", "", said.lower()).strip()
    if not plain and not said:
        return _Answer("The message is empty.", "You said nothing. Try `help`.")
    if re.fullmatch(r"(hello|hi|hey|good (morning|day|evening))( there| laneway)?", plain):
        return _Answer("The user says hello. I say hello back.", "Hello! What would you like to see? Try `help`.")
    if plain in ("help", "what can you do", "what do you do", "who are you"):
        return _Answer("The user wants to know what I can do.", _ABILITIES)
    if counting := re.fullmatch(r"count(?: up)? to (\d{1,9})", plain):
        return _count(int(counting.group(1)))
    if repeating := re.fullmatch(r"(?:repeat|say|echo)[\s:]+(.+)", said, re.I | re.S):
        return _Answer("The user wants to hear this again.", repeating.group(1))
    return _Answer(
        "I have no rule for this. I say back what I heard.",
        f"You said: {said}\n\nA real model would answer that; I can only tell you that it arrived.",
    )


def _count(to: int) -> _Answer:
    if to > COUNT_MAX:
        return _Answer("That is far.", f"I count to {COUNT_MAX} at most.")
    numbers = ", ".join(str(number) for number in range(1, to + 1))
    return _Answer(
        f"Counting from 1 to {to}, one after the other.", f"{numbers}." if numbers else "Done before I began."
    )


def _report(results: Message) -> _Answer:
    """What the tools returned, said back."""
    said: list[str] = []
    for part in results.parts:
        if isinstance(part, ToolResultPart):
            cut = part.content[:RESULT_CHARS] + ("\n..." if len(part.content) > RESULT_CHARS else "")
            verb = "failed" if part.is_error else "returned"
            said.append(f"`{part.name}` {verb}:\n\n```\n{cut}\n```")
    return _Answer("The results are there. I show them.", "\n\n".join(said))


def _argument(tool: ToolSpec, errand: _Errand) -> str:
    """The name of the tool's argument that takes the target."""
    properties = tool.parameters.get("properties")
    names = list(properties) if isinstance(properties, dict) else []
    return next((name for name in errand.arguments if name in names), names[0] if names else errand.arguments[0])
