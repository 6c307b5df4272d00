"""Keeping secrets out of what is shown: by their value, by the name of the key, and by their form.

Values are those that stand in the configuration. It is a precaution over what comes back from models and tools, not a
guard: whoever may read a secret can still write it down in another form.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

MASK = "***"
VALUE_CHARS_MIN = 6
"""Shorter values would hit ordinary words."""

DEPTH_MAX = 50
TOO_DEEP = "..."

KEY_CHARS_MAX = 256
"""Longer names of keys are no names."""

PEM_CHARS_MAX = 20_000
"""A key of 16,384 bits has some 12,700 characters."""

_SECRET_KEY = re.compile(
    r"""
    .*(?:passwords?|passwd|passphrase|pwd|secrets?|credentials?|bearer|jwt)(?:confirm(?:ation)?|\d{1,3})?
  | .*(?:api|private|access|secret|signing|encryption|master|shared|ssh|auth|account|subscription)keys?
  | (?!(?:(?:next|prev|previous)?(?:page|sync)|next|previous|continuation|resume|cursor|change|max|min|first|last
        |eos|bos|pad|unk|sep|cls|mask|stop|start|end|special)token$).*token
  | .*(?:access|refresh|id|auth|api|session|bearer)tokens
  | (?:basic|proxy|http|x)?auth | (?:proxy|x)?authorization
  | (?:set|session|auth)?cookies? | sessionid
  | (?:x.*)?signature(?:\d{3})?
    """,
    re.VERBOSE,
)
"""Of a key in lower case without `-`, `_`, blanks and dots, as a whole."""

_SCHEMES = r"(?i:bearer|basic|token|negotiate|ntlm|api-?key)"
_LISTING = r"(?i:digest|hawk|oauth|signature|aws4-[a-z0-9-]{1,40})"
"""How an Authorization header begins: before one word, or before a list of `name=value`."""


class _Form(NamedTuple):
    """What some kind of secret looks like. Its groups stay in front of the mask."""

    hints: tuple[str, ...]
    """In lower case; a text without any of them has none of this kind. Looking for words is cheaper than matching."""

    pattern: re.Pattern[str]


_FORMS = (
    _Form(
        ("private key",),
        re.compile(
            r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----()"
            rf"(?:(?:[^-]|-(?!----)){{0,{PEM_CHARS_MAX}}}-----END[ A-Z0-9]{{0,40}}-----"
            r"|(?:[^A-Za-z0-9+/=-]{0,12}[A-Za-z0-9+/=]{32,}){0,500})"  # its end was left out
        ),
    ),
    _Form(
        ("authorization",),
        re.compile(
            r"((?i:authorization)\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\?[\"']?)(?:"
            rf"({_SCHEMES}[ \t]{{1,4}})(?![<{{$%])[^\s\"',;\\]+"
            rf"|({_LISTING}[ \t]{{1,4}})"
            r"(?:[\w-]{1,40}=(?:\\?\"[^\"\r\n\\]{0,2000}\\?\"|[^\s\",]{1,2000})[, \t]{0,4}){1,40}"
            rf"|(?!(?:{_SCHEMES}|{_LISTING})(?![A-Za-z0-9._~+/=-]))[^\s\"',;\\]{{6,}})"
        ),
    ),
    _Form(
        ("api-key", "auth-token", "private-token"),
        re.compile(r"((?i:(?:x-(?:goog-)?api-key|x-auth-token|private-token))[\"']?:[ \t]{0,4}[\"']?)[^\s\"',;\\]{6,}"),
    ),
    _Form(("bearer",), re.compile(r"(\b(?i:bearer)[ \t]{1,4})[A-Za-z0-9._~+/=-]{16,}")),
    _Form(("://",), re.compile(r"(://[^\s/@:\"'?#]{0,200}:)[^\s/\"'?#]{1,1000}(?=@)")),
    _Form(
        ("key=", "token=", "auth=", "password=", "passwd=", "pwd=", "secret=", "sig=", "signature="),
        re.compile(
            r"((?:[?&]|&amp;)(?i:(?:x-(?:amz|goog)-)?(?:api[_-]?key|(?:access|refresh|id|auth|session|security)?[_-]?token"
            r"|auth|password|passwd|pwd|(?:client[_-]?)?secret|sig|signature)|key(?==[^&\s]{6}))=)"
            r"(?![<{$])[^&\s\"'#<>\\]+"
        ),
    ),
    _Form(
        ("sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "akia", "asia", "aiza"),
        re.compile(
            r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
            r"|glpat-[A-Za-z0-9_-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30,})"
        ),
    ),
    _Form(
        ("eyj",),
        re.compile(r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]{0,8000}){1,3}"),
    ),
)
"""No part of a form can match in two ways, and none begins inside what it has looked through: linear in the text."""


class Masker:
    """Knows the values. One object serves the whole process."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _written(value) if len(form) >= VALUE_CHARS_MIN}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self.longest = max(PEM_CHARS_MAX + 200, len(longest_first[0]) if longest_first else 0)
        """Characters that the longest secret has which can be told from its surroundings only as a whole."""

    def text(self, value: str) -> str:
        """The text with `***` in place of every secret that is found."""
        if self._values is not None:
            value = self._values.sub(MASK, value)
        lowered = value.lower()
        for form in _FORMS:
            if any(hint in lowered for hint in form.hints):
                value = form.pattern.sub(_hidden, value)
        return value

    def args(self, value: Any) -> Any:
        """A copy of a JSON value: strings masked, and whatever stands under a key that is named like a secret.

        It has no more nodes than the value, and `...` for what is deeper than 50 levels.
        """
        return self._masked(value, 0)

    def _masked(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, dict | list):
            return value
        if depth >= DEPTH_MAX:
            return TOO_DEEP
        if isinstance(value, list):
            return [self._masked(item, depth + 1) for item in value]
        return {
            self.text(key): MASK if item is not None and is_secret_key(key) else self._masked(item, depth + 1)
            for key, item in value.items()
        }


def is_secret_key(key: str) -> bool:
    """Whether a key is named like a secret: `api_key`, `X-Auth-Token`, `clientSecret`; not `maxTokens`, `author`."""
    return len(key) <= KEY_CHARS_MAX and _is_secret_name(key)


@lru_cache(maxsize=1_024)
def _is_secret_name(key: str) -> bool:
    return _SECRET_KEY.fullmatch(re.sub(r"[-_ .]", "", key).lower()) is not None


def _written(value: str) -> set[str]:
    """A value as it may stand in a text: as it is, in a URL, in a JSON string, in HTML, in base64."""
    value = value.strip()
    if len(value) < VALUE_CHARS_MIN:
        return set()
    escaped = json.dumps(value)[1:-1]
    plain = {value, json.dumps(value, ensure_ascii=False)[1:-1], escaped, escaped.replace("/", "\\/")}
    quoted = {quote(value, safe="", errors="replace"), quote(value, errors="replace")}
    quoted |= {quote_plus(value, errors="replace")}
    return plain | quoted | {html.escape(value)} | _in_base64(value.encode(errors="replace"))


def _in_base64(value: bytes) -> set[str]:
    """What of a value stays the same whatever surrounds it, for each of the three places in a group of three bytes."""
    found = set()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + value).decode().rstrip("=")
        end = (before + len(value)) * 8 // 6
        part = encoded[(0, 2, 3)[before] : end]
        found |= {part, part.replace("+", "-").replace("/", "_")}
    return found


def _hidden(found: re.Match[str]) -> str:
    """What stands before a secret stays, so that the text can still be read."""
    return "".join(filter(None, found.groups())) + MASK
