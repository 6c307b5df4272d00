"""Keeping secrets out of what is shown: by their value, by the name of the key, and by their form.

Values are those that stand in the configuration. It is a precaution over what comes back from models and tools, not a
guard: whoever may read a secret can still write it down in another form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

MASK = "***"
VALUE_CHARS_MIN = 6
"""Shorter values would hit ordinary words."""

DEPTH_MAX = 50
TOO_DEEP = "..."

_SECRET_KEY = re.compile(
    r"(?:.*(?:password|passwd|passphrase|secret|apikey|privatekey|accesskey|credentials?|bearer)"
    r"|.*(?:access|refresh|id|auth|session|csrf|api|bot|bearer)token|token|pwd|auth|authorization|proxyauthorization"
    r"|cookie|setcookie|signature|sessionid)"
)
"""Of a key in lower case without `-`, `_`, blanks and dots, as a whole."""

_FORMS = re.compile(
    r"""
    (?P<pem>-----BEGIN[ A-Z0-9]{0,40}PRIVATE[ ]KEY-----(?:[^-]|-(?!----)){0,20000}(?:-----END[ A-Z0-9]{0,40}-----)?)
  | (?P<head>(?i:authorization|proxy-authorization)["']?\s{0,4}[:=]\s{0,4}["']?(?i:bearer|basic|token)?\s{0,4})
        (?P<credential>[^\s"',;]{6,})
  | (?P<scheme>\b(?i:bearer)\s{1,4})(?P<bearer>[A-Za-z0-9._~+/=-]{16,})
  | (?P<before>://[^\s/@:"']{0,200}:)(?P<login>[^\s/@"']{1,200})(?=@)
  | (?P<name>[?&](?i:api[_-]?key|key|access_token|token|auth|password|secret|sig|signature|client_secret)=)
        (?P<query>[^&\s"'#]{6,})
  | (?P<known>\b(?:sk-[A-Za-z0-9_-]{16,}
        |gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}
        |xox[abeprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30,}
        |(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}))
    """,
    re.VERBOSE,
)
"""Each alternative begins with letters of its own, and no part of one can match in two ways: linear in the text."""


class Masker:
    """Knows the values. One object serves the whole process."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values if len(value) >= VALUE_CHARS_MIN for form in _written(value)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, value: str) -> str:
        """The text with `***` in place of every secret that is found."""
        if self._values is not None:
            value = self._values.sub(MASK, value)
        return _FORMS.sub(_hidden, value)

    def args(self, value: Any) -> Any:
        """A copy of a JSON value: strings masked, and whatever stands under a key that is named like a secret."""
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
    return len(key) <= 256 and _SECRET_KEY.fullmatch(re.sub(r"[-_ .]", "", key).lower()) is not None


def _written(value: str) -> set[str]:
    """A value as it may stand in a text: as it is, in a URL, in a JSON string."""
    return {value, quote(value, safe=""), value.replace("\\", "\\\\").replace('"', '\\"')}


def _hidden(found: re.Match[str]) -> str:
    """What stands before a secret stays, so that the text can still be read."""
    return next((before for name in ("head", "scheme", "before", "name") if (before := found[name])), "") + MASK
