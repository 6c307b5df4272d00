"""Lists and records on standard output: as JSON, or as a table that fits the terminal and is whole in a pipe."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from app.cli.output import json_text

MISSING = "-"
GAP = "  "
NAMES = frozenset({"run", "session"})
WIDTH_MIN = 6
"""Of a column, when a table is squeezed into a narrow terminal."""


def print_json(value: Any) -> None:
    print(json_text(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, nothing: str) -> None:
    """`nothing` is said, on standard error, when there are no rows. Missing values are `-`.

    On a terminal a column in which all are missing is left out, and names are cut last: a part of an id is of no use.
    """
    if not rows:
        print(nothing, file=sys.stderr)
        return
    texts = [[name.upper() for name in columns], *([_text(value) for value in row] for row in rows)]
    kept = list(range(len(columns)))
    if sys.stdout.isatty():
        kept = [at for at in kept if any(row[at] != MISSING for row in texts[1:])]
    texts = [[row[at] for at in kept] for row in texts]
    widths = [max(len(row[at]) for row in texts) for at in range(len(kept))]
    if sys.stdout.isatty():
        whole = {place for place, at in enumerate(kept) if columns[at] in NAMES}
        widths = fitted(widths, shutil.get_terminal_size().columns, whole)
    for row in texts:
        cells = [_cut(text, width).ljust(width) for text, width in zip(row, widths, strict=True)]
        print(GAP.join(cells).rstrip())


def print_record(record: Mapping[str, Any]) -> None:
    """A name and its value a line; values of several parts as JSON."""
    width = max(len(name) for name in record)
    for name, value in record.items():
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else _text(value)
        print(f"{name.ljust(width)}{GAP}{shown}")


def fitted(widths: Sequence[int], total: int, whole: Collection[int] = ()) -> list[int]:
    """Widths that fit into a terminal: the widest column gives way first, those of `whole` only when no other can."""
    fitting = list(widths)
    while sum(fitting) + len(GAP) * (len(fitting) - 1) > total:
        wide = [at for at, width in enumerate(fitting) if width > WIDTH_MIN]
        if not wide:
            break
        at = max([at for at in wide if at not in whole] or wide, key=lambda place: fitting[place])
        fitting[at] -= 1
    return fitting


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _text(value: Any) -> str:
    """One line, whatever it holds."""
    if value is None or value == "":
        return MISSING
    return "".join(char if char.isprintable() else " " for char in str(value))
