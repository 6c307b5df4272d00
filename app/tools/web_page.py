"""HTML as Markdown or text: what people read of a page, and its first so many characters alone.

Pages are read here tag by tag, in linear time and without recursion, whatever is wrong with them. What is left of one
is small, well formed and of bounded depth; only that is handed to the libraries that write Markdown.
"""

from __future__ import annotations

import re
from collections import Counter
from html import escape, unescape
from typing import Literal

from app.tools.web_tags import RAW, Tag, pieces

DEPTH_MAX = 40
ELEMENTS_MAX = 10_000
"""Of the page that Markdown is made from. Beyond them the text is kept, and the elements around it are not."""

BLANKS_MAX = 50
"""White space in a row. Over more of it the library takes a time that grows with its square."""

TITLE_CHARS_MAX = 300

_LONG_NUMBER = re.compile(r"&#[xX]?[0-9A-Fa-f]{9,}+;?")
_MANY_BLANKS = re.compile(rf"\s{{{BLANKS_MAX},}}+")
_BLANKS = re.compile(r"[ \t\r\n\f]+")
_UNSEEN_STYLE = re.compile(r"display\s{0,8}:\s{0,8}none|visibility\s{0,8}:\s{0,8}hidden", re.IGNORECASE)
_LINK = re.compile(r"(?!\s*(?:javascript|data|vbscript)\s*:)[^\x00-\x20<>]{1,2000}", re.IGNORECASE)

_FOREIGN = frozenset(("svg", "math"))
_LEFT_OUT = _FOREIGN | frozenset(("template", "object", "canvas", "audio", "video", "datalist"))
# fmt: off
_VOID = frozenset((
    "area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param", "source", "track",
    "wbr",
))
_PARAGRAPHS = frozenset((
    "blockquote", "dl", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre", "table", "ul",
))
_BLOCKS = _PARAGRAPHS | frozenset((
    "address", "article", "aside", "body", "caption", "center", "dd", "details", "dialog", "div", "dt", "fieldset",
    "figcaption", "footer", "form", "header", "hr", "html", "legend", "li", "main", "nav", "option", "search",
    "section", "summary", "tbody", "tfoot", "thead", "tr",
))
_KEPT = frozenset((
    "a", "b", "blockquote", "code", "dd", "del", "dl", "dt", "em", "h1", "h2", "h3", "h4", "h5", "h6", "i", "kbd",
    "li", "ol", "p", "pre", "q", "s", "samp", "strong", "sub", "sup", "table", "tbody", "td", "tfoot", "th", "thead",
    "tr", "ul",
))
# fmt: on
"""Elements that Markdown has something for; other blocks count as `div`, and of the rest only the text is kept."""

_ENDED_BY = {
    "p": _BLOCKS,
    "li": {"li"},
    "dt": {"dt", "dd"},
    "dd": {"dt", "dd"},
    "td": {"td", "th", "tr", "tbody", "tfoot"},
    "th": {"td", "th", "tr", "tbody", "tfoot"},
    "tr": {"tr", "tbody", "tfoot"},
    "option": {"option"},
}
"""Elements whose end tag may be left out, with the tags that end them."""


def page_text(html: str, mode: Literal["markdown", "text"], chars: int) -> tuple[str, bool]:
    """The title and the text, at most `chars` of it, and whether there was more."""
    writer = _Markup(chars) if mode == "markdown" else _Lines(chars)
    reader = _Reader(writer)
    cut = reader.read(html)
    text = writer.finished()
    title = _BLANKS.sub(" ", reader.title).strip()[:TITLE_CHARS_MAX]
    if title and title not in text[: 2 * TITLE_CHARS_MAX]:
        text = f"{title}\n\n{text}".rstrip()
    return text[:chars], cut or len(text) > chars


class _Reader:
    """Knows which elements are open, and which of them are not shown."""

    def __init__(self, writer: _Markup | _Lines) -> None:
        self._writer = writer
        self._open: list[str] = []
        self._count: Counter[str] = Counter()
        self._hidden_from: int | None = None
        """How many elements were open around the outermost one that is not shown."""
        self.title = ""

    def read(self, html: str) -> bool:
        """Whether it stopped before the end, because the writer was full."""
        raw: str | None = None
        for piece in pieces(html):
            if isinstance(piece, Tag):
                raw = piece.name if piece.name in RAW and not piece.is_end else None
                (self._end if piece.is_end else self._begin)(piece)
            elif self._hidden_from is not None:
                continue
            elif raw == "title":
                self.title = self.title or _characters(piece)
            elif raw in (None, "textarea"):
                if self._writer.is_full:
                    return True
                self._writer.text(_characters(piece), in_pre=self._count["pre"] > 0)
        return False

    def _begin(self, tag: Tag) -> None:
        while self._open and tag.name in _ENDED_BY.get(self._open[-1], ()):
            self._pop()
        if tag.is_closed and tag.name in _FOREIGN:
            return
        if tag.name not in _VOID:
            self._open.append(tag.name)
            self._count[tag.name] += 1
            if self._hidden_from is None and _is_unseen(tag):
                self._hidden_from = len(self._open) - 1
        if self._hidden_from is None:
            self._writer.begin(tag)

    def _end(self, tag: Tag) -> None:
        if not self._count[tag.name]:
            return
        while self._pop() != tag.name:
            pass

    def _pop(self) -> str:
        name = self._open.pop()
        self._count[name] -= 1
        if self._hidden_from is None:
            self._writer.end(name)
        elif self._hidden_from == len(self._open):
            self._hidden_from = None
        return name


class _Lines:
    """Writes text: a line for each block, an empty line around paragraphs."""

    def __init__(self, chars: int) -> None:
        self._parts: list[str] = []
        self._room = chars
        self._owed = 0
        """Line ends that are due before more text."""
        self._blank = True

    @property
    def is_full(self) -> bool:
        return self._room < 0

    def begin(self, tag: Tag) -> None:
        if tag.name in ("td", "th"):
            self.text(" ", in_pre=False)
        elif tag.name == "br":
            self._owed += 1
        else:
            self.end(tag.name)

    def end(self, name: str) -> None:
        if name in _BLOCKS:
            self._owed = max(self._owed, 2 if name in _PARAGRAPHS else 1)

    def text(self, text: str, *, in_pre: bool) -> None:
        if not in_pre:
            text = _BLANKS.sub(" ", text)
            if self._blank or self._owed:
                text = text.lstrip(" ")
        if not text or self._room < 0:
            return
        if self._parts:
            self._parts.append("\n" * min(self._owed, 2))
        self._owed = 0
        text = text[: self._room + 1]
        self._parts.append(text)
        self._room -= len(text)
        self._blank = text[-1].isspace()

    def finished(self) -> str:
        return re.sub(r"[ \t]{1,64}\n", "\n", "".join(self._parts)).strip()


class _Markup:
    """Writes HTML that is well formed, and turns it into Markdown."""

    def __init__(self, chars: int) -> None:
        self._parts: list[str] = []
        self._text: list[str] = []
        self._room = chars
        self._elements = 0
        self._depth = 0
        self._blanks = 0
        """White space that was written last."""
        self._tags: list[str | None] = []
        """For each open element the one that was written for it, if any."""

    @property
    def is_full(self) -> bool:
        return self._room < 0

    def begin(self, tag: Tag) -> None:
        if tag.name in _VOID:
            if tag.name in ("br", "hr") and self._elements < ELEMENTS_MAX and self._blanks < BLANKS_MAX:
                self._elements += 1
                self._blanks += 1
                self._parts.append(f"<{tag.name}>")
            return
        written = tag.name if tag.name in _KEPT else "div" if tag.name in _BLOCKS else None
        if self._depth >= DEPTH_MAX or self._elements >= ELEMENTS_MAX:
            written = None
        self._tags.append(written)
        if written is None:
            if tag.name in _BLOCKS:
                self.text(" ", in_pre=False)
            return
        self._depth += 1
        self._elements += 1
        link = unescape(tag.attributes.get("href", ""))[:2_001].strip() if written == "a" else ""
        start = tag.attributes.get("start", "") if written == "ol" else ""
        if link and _LINK.fullmatch(link):
            self._parts.append(f'<a href="{escape(link)}">')
        elif start.isascii() and start.isdigit() and len(start) < 6:
            self._parts.append(f'<ol start="{start}">')
        else:
            self._parts.append(f"<{written}>")

    def end(self, name: str) -> None:
        written = self._tags.pop()
        if written is not None:
            self._depth -= 1
            self._parts.append(f"</{written}>")

    def text(self, text: str, *, in_pre: bool) -> None:
        text = text if in_pre else _BLANKS.sub(" ", text)
        text = _MANY_BLANKS.sub(lambda found: found[0][:BLANKS_MAX], text)[: self._room + 1]
        if not text.isspace():
            self._blanks = len(text) - len(text.rstrip())
        elif self._blanks >= BLANKS_MAX:
            return
        else:
            self._blanks += len(text)
        self._parts.append(escape(text, quote=False))
        self._text.append(text)
        self._room -= len(text)

    def finished(self) -> str:
        from bs4 import BeautifulSoup  # noqa: PLC0415 - libraries that only this tool needs are loaded when it does
        from markdownify import MarkdownConverter  # noqa: PLC0415

        ends = "".join(f"</{tag}>" for tag in reversed(self._tags) if tag)
        page = BeautifulSoup("".join(self._parts) + ends, "html.parser")
        try:
            text: str = MarkdownConverter(heading_style="ATX").convert_soup(page)
        except RecursionError:
            text = "".join(self._text)
        return re.sub(r"\n{3,}", "\n\n", text).strip()


def _characters(text: str) -> str:
    return unescape(_LONG_NUMBER.sub("\N{REPLACEMENT CHARACTER}", text))


def _is_unseen(tag: Tag) -> bool:
    attributes = tag.attributes
    return (
        tag.name in _LEFT_OUT
        or "hidden" in attributes
        or attributes.get("aria-hidden", "").strip().lower() == "true"
        or _UNSEEN_STYLE.search(attributes.get("style", "")) is not None
    )
