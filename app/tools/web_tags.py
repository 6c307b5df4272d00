"""The tags and texts of an HTML page, as browsers tell them apart; what they mean is `web_page`'s.

Linear in the page, whatever is wrong with it: the standard library's reader takes minutes over some pages of 100 KB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9:-]{0,63}")
_BETWEEN = re.compile(r"[\s/]*")
_ATTRIBUTE = re.compile(r"[^\s/>][^\s/>=]*+")
_VALUE = re.compile(r"\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>][^\s>]*+)?)")

RAW = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
    for name in ("script", "style", "title", "textarea", "xmp", "iframe", "noembed", "noframes", "noscript")
}
"""Elements whose content is no HTML, with what ends them. Of these only a title and a text area are read by people."""


@dataclass(frozen=True, slots=True)
class Tag:
    """Its name in lower case, and the attributes that decide what is shown. `is_closed`: written as `<name/>`."""

    name: str
    is_end: bool = False
    is_closed: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


def pieces(html: str) -> Iterator[Tag | str]:
    """In their order, without comments and the like. What never ends is dropped, as browsers do."""
    at = 0
    while at < len(html):
        begin = html.find("<", at)
        if begin < 0:
            yield html[at:]
            return
        if begin > at:
            yield html[at:begin]
        mark = html[begin + 1 : begin + 2]
        if mark in ("!", "?", "/"):
            is_comment = html.startswith("<!--", begin)
            end = html.find("-->", begin + 2) if is_comment else html.find(">", begin)
            if end < 0:
                return
            name = _NAME.match(html, begin + 2) if mark == "/" else None
            if name:
                yield Tag(name[0].lower(), is_end=True)
            at = end + (3 if is_comment else 1)
            continue
        name = _NAME.match(html, begin + 1)
        if name is None:
            yield "&lt;"
            at = begin + 1
            continue
        attributes, end = _attributes(html, name.end())
        if end < 0:
            return
        yield Tag(name[0].lower(), is_closed=html[end - 2] == "/", attributes=attributes)
        at = end
        ending = RAW.get(name[0].lower())
        if ending:
            found = ending.search(html, at)
            if found is None:
                return
            yield html[at : found.start()]
            at = found.start()


def _attributes(html: str, at: int) -> tuple[dict[str, str], int]:
    """Those that matter here, and where the tag ends; -1 when it does not."""
    attributes: dict[str, str] = {}
    while True:
        found = _BETWEEN.match(html, at)
        at = found.end() if found else at
        if at >= len(html):
            return attributes, -1
        if html[at] == ">":
            return attributes, at + 1
        name = _ATTRIBUTE.match(html, at)
        assert name is not None
        at = name.end()
        value = _VALUE.match(html, at)
        if value:
            at = value.end()
            if html[at : at + 1] in ('"', "'") and html[at - 1] not in ('"', "'"):
                return attributes, -1  # a quotation that does not end
        if name[0].lower() in ("href", "hidden", "aria-hidden", "style", "start"):
            text = next((part for part in value.groups() if part is not None), "") if value else ""
            attributes.setdefault(name[0].lower(), text)
