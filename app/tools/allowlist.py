"""Which commands `tools.exec.allowlist` lets through: a small part of the shell's language, read in full or not at all.

Everything that this reader does not know is refused: expansions, redirections, substitutions, groups, background jobs.
So what it lets through means to the shell what it means here. An allowed command may name only paths of the workspace.
"""

from __future__ import annotations

import os
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
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_PART = re.compile(r"[=@:,]")
_FILE_URL = re.compile(r"file:", re.IGNORECASE)

MATCHES_MAX = 10_000
"""Files that are looked at to see what the patterns of one argument match."""

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
    """A word as the command gets it. `quoted`: a part was in quotes. `globs`: a part that was not has a pattern."""

    text: str
    quoted: bool
    globs: bool


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
    begun, text, quoted, globs = at, "", False, False
    while at < len(command):
        for kind, is_quoted in ((_SINGLE, True), (_DOUBLE, True), (_PLAIN, False)):
            part = kind.match(command, at)
            if part:
                text += part[1] if is_quoted else part[0]
                quoted = quoted or is_quoted
                globs = globs or (not is_quoted and _GLOB.search(part[0]) is not None)
                at = part.end()
                break
        else:
            break
    if at == begun:
        raise ToolBlocked(
            f"{command[at : at + 1]!r} is not allowed in a command: no expansions, redirections, "
            "substitutions, groups, background jobs or line ends. Use plain words, quotes, and | && || ;"
        )
    if _CONTROL.search(text):
        raise ToolBlocked("Line ends and control characters are not allowed in a command.")
    return _Word(text, quoted, globs), at


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
    """Whatever in it may be a path must lie in the workspace, and so must all that its patterns match."""
    shown = repr(word.text[:80])
    for path in _paths(word.text):
        if path.startswith("~") or _FILE_URL.match(path):
            raise ToolBlocked(f"{shown} may lead out of the workspace.")
        if not _is_inside(folder / path, workspace):
            raise ToolBlocked(f"{shown} leads out of the workspace.")
    if word.globs:
        _check_matches(word.text, workspace, folder)


def _is_inside(path: Path, workspace: Path) -> bool:
    try:
        return path.resolve().is_relative_to(workspace)
    except (OSError, RuntimeError, ValueError):
        return False


def _check_matches(text: str, workspace: Path, folder: Path) -> None:
    """Follow the word through the folders as the shell does, with patterns that match at least what the shell's do."""
    shown = repr(text[:80])
    steps = [step for step in text.split("/") if step not in ("", ".")]
    # A pattern that begins with a dot matches `..` in some shells.
    if any(step == ".." or (step.startswith(".") and _GLOB.search(step)) for step in steps):
        raise ToolBlocked(f"{shown} may lead out of the workspace.")
    places, seen = [Path("/") if text.startswith("/") else folder], 0
    for step in steps:
        found = []
        wide = _wider(step) if _GLOB.search(step) else None
        for place in places:
            for name in [step] if wide is None else _names(place):
                seen += 1
                if seen > MATCHES_MAX:
                    raise ToolBlocked(f"{shown} would look at more than {MATCHES_MAX:,} files; name fewer.")
                if wide is None or wide.fullmatch(name):
                    found.append(place / name)
        places = found
        # What leads to the workspace from the root is no way out of it.
        if not all(_is_inside(place, workspace) or workspace.is_relative_to(place) for place in places):
            raise ToolBlocked(f"{shown} matches what leads out of the workspace.")


def _wider(step: str) -> re.Pattern[str]:
    """`?` may be a byte or a character, and sets differ between shells: both match anything here."""
    literal = [re.escape(part) for part in re.split(r"[*?]+", step.partition("[")[0])]
    return re.compile(".*".join(literal) + (".*" if "[" in step else ""), re.DOTALL)


def _names(place: Path) -> Iterator[str]:
    """Without hidden ones, which no pattern that is let through matches."""
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    yield entry.name
    except OSError:
        return


def _paths(text: str) -> Iterator[str]:
    """The word itself, what is glued to an option, and what stands behind `=`, `@`, `:` or `,` in either."""
    if not text.startswith("-"):
        yield text
    elif not text.startswith("--"):
        yield text[2:]
    if text.startswith("-") and (found := re.search(r"/|\.\.|~", text)):
        yield text[found.start() :]
    for found in _PART.finditer(text):
        rest = text[found.end() :]
        if not (found[0] == ":" and rest.startswith("//")):
            yield rest
