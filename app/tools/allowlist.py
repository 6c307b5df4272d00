"""Which commands `tools.exec.allowlist` lets through: a small part of the shell's language, read in full or not at all.

Everything that this reader does not know is refused: expansions, redirections, substitutions, groups, background jobs.
So what it lets through means to the shell what it means here. An allowed command may name only paths of the workspace.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from app.tools.contract import ToolBlocked

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+=,*?\[\]^~-]+|[^\x00-\x7f]+")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"([^"$`\\!]*)"')
_BLANK = re.compile(r"[ \t]+")
_OPERATOR = re.compile(r"\|\||&&|\||;")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")
_GLOB = re.compile(r"[*?\[]")

# fmt: off
_OF_THE_SHELL = frozenset((
    ".", ":", "[", "alias", "bg", "break", "case", "cd", "command", "continue", "do", "done", "elif", "else",
    "esac", "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function", "getopts", "hash", "if",
    "in", "jobs", "local", "read", "readonly", "return", "select", "set", "shift", "source", "then", "time",
    "times", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while", "{",
    "}", "!",
))
# fmt: on
"""Words that the shell takes itself, wherever a file of that name may lie."""


@dataclass(frozen=True, slots=True)
class _Word:
    """A word as the command gets it. `quoted`: a part of it was in quotes, where the shell expands nothing."""

    text: str
    quoted: bool


def check(command: str, patterns: Sequence[str], workspace: Path, folder: Path) -> None:
    """Raises ToolBlocked, whose text says which part is not allowed. `workspace` is resolved, `folder` lies in it.

    A pattern is a name, which a command has to bear without a path and be found by PATH, or an absolute path with `*`
    and `?`, which is compared with where the command really lies.
    """
    words: list[_Word] = []
    for item in _read(command):
        if isinstance(item, _Word):
            words.append(item)
        else:
            _check_one(words, patterns, workspace, folder)
            words = []
    _check_one(words, patterns, workspace, folder)


def _read(command: str) -> Iterator[_Word | str]:
    """Words, and the operators between commands as text."""
    at = 0
    while at < len(command):
        blank = _BLANK.match(command, at)
        if blank:
            at = blank.end()
            continue
        operator = _OPERATOR.match(command, at)
        if operator:
            yield operator[0]
            at = operator.end()
            continue
        word, at = _word(command, at)
        yield word


def _word(command: str, at: int) -> tuple[_Word, int]:
    begun, text, quoted = at, "", False
    while at < len(command):
        for kind, is_quoted in ((_SINGLE, True), (_DOUBLE, True), (_PLAIN, False)):
            part = kind.match(command, at)
            if part:
                text += part[1] if is_quoted else part[0]
                quoted = quoted or is_quoted
                at = part.end()
                break
        else:
            break
    if at == begun:
        raise ToolBlocked(
            f"{command[at : at + 1]!r} is not allowed in a command: no expansions, redirections, "
            "substitutions, groups, background jobs or line ends. Use plain words, quotes, and | && || ;"
        )
    if "\n" in text or "\r" in text or "\0" in text:
        raise ToolBlocked("Line ends are not allowed in a command.")
    return _Word(text, quoted), at


def _check_one(words: list[_Word], patterns: Sequence[str], workspace: Path, folder: Path) -> None:
    if not words:
        raise ToolBlocked("A command is missing before or behind | && || or ;")
    name = words[0].text
    if words[0].quoted or _ASSIGNMENT.match(name) or _GLOB.search(name) or name.startswith("~"):
        raise ToolBlocked(f"{name[:80]!r} is no plain name of a command.")
    if not _is_allowed(name, patterns, folder):
        allowed = ", ".join(patterns) or "none"
        raise ToolBlocked(f"The command {name[:80]!r} is not on the allow list. Allowed are: {allowed}.")
    for word in words[1:]:
        _check_argument(word, workspace, folder)


def _is_allowed(name: str, patterns: Sequence[str], folder: Path) -> bool:
    if name in _OF_THE_SHELL:
        return False
    if "/" not in name and any("/" not in pattern and fnmatchcase(name, pattern) for pattern in patterns):
        return shutil.which(name) is not None
    found = shutil.which(str(folder / name) if "/" in name else name)
    if found is None:
        return False
    place = str(Path(found).resolve())
    return any(pattern.startswith("/") and fnmatchcase(place, pattern) for pattern in patterns)


def _check_argument(word: _Word, workspace: Path, folder: Path) -> None:
    """Whatever in it may be a path must lie in the workspace."""
    for path in _paths(word.text):
        if path.startswith("~") or (not word.quoted and _GLOB.search(path) and ".." in path):
            raise ToolBlocked(f"{word.text[:80]!r} may lead out of the workspace.")
        fixed = path if word.quoted else _before_glob(path)
        try:
            inside = (folder / fixed).resolve().is_relative_to(workspace)
        except (OSError, RuntimeError, ValueError):
            inside = False
        if not inside:
            raise ToolBlocked(f"{word.text[:80]!r} leads out of the workspace.")


def _paths(text: str) -> Iterator[str]:
    """The word itself, what stands behind `=`, and what may be glued to an option."""
    if not text.startswith("-"):
        yield text
    elif "/" in text or ".." in text or "~" in text:
        begin = min(at for at in (text.find("/"), text.find(".."), text.find("~")) if at >= 0)
        yield text[begin:]
    if "=" in text:
        yield text.partition("=")[2]


def _before_glob(path: str) -> str:
    """The folders before the first pattern; what a pattern can match lies below them, except through links."""
    found = _GLOB.search(path)
    return path if found is None else path[: path.rfind("/", 0, found.start()) + 1]
