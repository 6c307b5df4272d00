"""The settings tree as rows: key, what is allowed, default, description.

Read off the pydantic models, so that messages, `config show` and the printed reference cannot differ from the
code. Knows models in general; which keys there are is `settings`' business.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

ANY_ID = "<id>"
"""Stands in a key for the id of an agent or provider."""


@dataclass(frozen=True, slots=True)
class Row:
    """One key. `section` is the docstring of the table that it stands in."""

    key: tuple[str, ...]
    allowed: str
    default: Any
    description: str
    section: str


def rows(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[Row]:
    """A row for each leaf of a tree of models, in the order of the code."""
    for name, field in model.model_fields.items():
        inner = _model_of(field.annotation)
        if inner is None:
            section = (model.__doc__ or "").strip()
            yield Row((*above, name), _allowed(field), _default(field), field.description or "", section)
        elif typing.get_origin(field.annotation) is dict:
            yield from rows(inner, (*above, name, ANY_ID))
        else:
            yield from rows(inner, (*above, name))
    extra = _model_of(typing.get_type_hints(model).get("__pydantic_extra__"))
    if extra is not None:
        yield from rows(extra, (*above, ANY_ID))


def find(table: Iterable[Row], key: tuple[str, ...]) -> Row | None:
    """The row that a real key belongs to; a key spelled out goes before one with an id in it."""
    fitting = [row for row in table if _fits(row.key, key)]
    return min(fitting, key=lambda row: row.key.count(ANY_ID), default=None)


def known(table: Iterable[Row], key: tuple[str, ...]) -> list[str]:
    """The names that may stand where `key` first leaves the table, in order, for a message."""
    for length in range(len(key)):
        names = [row.key[length] for row in table if len(row.key) > length and _fits(row.key[:length], key[:length])]
        if not any(name in (key[length], ANY_ID) for name in names):
            return list(dict.fromkeys(names))
    return []


def _fits(pattern: tuple[str, ...], key: tuple[str, ...]) -> bool:
    return len(pattern) == len(key) and all(p in (k, ANY_ID) for p, k in zip(pattern, key, strict=True))


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model` or `dict[str, Model]`."""
    if typing.get_origin(annotation) is dict:
        annotation = typing.get_args(annotation)[1]
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _default(field: FieldInfo) -> Any:
    value = None if field.is_required() else field.get_default(call_default_factory=False)
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _allowed(field: FieldInfo) -> str:
    annotation = field.annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        annotation = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is Literal:
        return " or ".join(typing.get_args(annotation))
    if annotation is bool:
        return "true or false"
    if annotation in (int, float):
        kind = "a whole number" if annotation is int else "a number"
        return f"{kind} from {_bound(field, 'ge')} to {_bound(field, 'le')}"
    if typing.get_origin(annotation) is tuple:
        return "a list of texts"
    if annotation is Path:
        return "a path"
    longest = _bound(field, "max_length")
    return "a text" if longest is None else f"a text of at most {longest} characters"


def _bound(field: FieldInfo, name: str) -> Any:
    """A limit among the field's constraints."""
    for constraint in field.metadata:
        if (value := getattr(constraint, name, None)) is not None:
            return f"{value:g}" if isinstance(value, float) else value
    return None
