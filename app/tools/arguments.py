"""Arguments of the built-in tools: a pydantic model gives the schema for the model and the check of what it sent."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from app.tools.contract import ArgumentsInvalid


class Arguments(BaseModel):
    """Base of every tool's arguments: camelCase is written as the field is named, and nothing else is taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_A = TypeVar("_A", bound=Arguments)


def schema(kind: type[Arguments]) -> dict[str, Any]:
    """The JSON schema as models take it: an object, without titles and without null where a field may be left out."""
    shaped: dict[str, Any] = _plain(kind.model_json_schema())
    shaped.pop("description", None)  # that of the class, for whoever reads the code
    return shaped


def parse(kind: type[_A], args: dict[str, Any]) -> _A:
    """Raises ArgumentsInvalid, whose text names each argument that is wrong and why."""
    try:
        return kind.model_validate(args)
    except ValidationError as error:
        problems = [_problem(kind, item) for item in error.errors(include_url=False)]
        raise ArgumentsInvalid("The arguments are wrong: " + "; ".join(problems) + ".") from None


def _problem(kind: type[Arguments], item: Any) -> str:
    place = ".".join(str(step) for step in item["loc"]) or "the arguments"
    if item["type"] == "extra_forbidden":
        return f"{place[:64]!r} is not an argument; there are {', '.join(kind.model_fields)}"
    return f"{place}: {item['msg'][:1].lower()}{item['msg'][1:]}"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _plain(item) for name, item in value.items() if name != "title" or isinstance(item, dict)}
    options = kept.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options and len(options) == 2:
        del kept["anyOf"]
        kept = {**next(option for option in options if option != {"type": "null"}), **kept}
        if kept.get("default", ...) is None:
            del kept["default"]
    return kept
