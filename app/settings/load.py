"""Merge all sources into one Settings tree and say of each value where it came from.

Command line goes before environment, environment before file, file before defaults. Whatever is unknown, out of
bounds or not there yet stops the start with one line. Reading the sources is `sources`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from app.errors import SettingsError
from app.settings import database, sources
from app.settings.sources import Key, Raw, dotted
from app.settings.table import Row, find, known, rows
from app.settings.tree import KINDS, ProviderKind, Settings

STORE_URL: Key = ("store", "url")
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_NAMED = ("agents", "providers")
_ID_ALLOWED = "1 to 64 characters of a-z, 0-9, _ and -, the first a letter or digit"

KEY_VARIABLES: dict[ProviderKind, str] = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_PICKS = (("OPENAI_API_KEY", "openai:gpt-5-mini"), ("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-5-5"))
"""The model of a service with no model configured: the first of these whose key stands in the environment."""

_NOT_YET = frozenset({
    "events.redis_url", "auth", "queue.debounce_ms", "queue.drop", "tools.exec.ask", "sandbox", "plugins",
    "diagnostics", "workers", "agents.*.model_fallbacks",
})  # fmt: skip
"""Keys that are designed but have no reader in this build: refused, never accepted and ignored."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and where each came from, by dotted key. `warnings` are lines for the operator."""

    settings: Settings
    sources: dict[str, str]
    warnings: list[str]


def load(
    config: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any], *, secrets: bool = True
) -> Loaded:
    """Merge all sources: command line, then environment, then file, then defaults.

    `overrides` are by dotted key; None there means not given. `secrets=False` leaves secrets as they are written,
    for commands that have no use for them. Raises SettingsError: one line that names source, key and what is allowed.
    """
    state = sources.state_dir(environ, overrides)
    path = sources.config_path(config, environ, state.value)
    given = {
        **(sources.from_file(path) if path else {}),
        **sources.from_environment(environ),
        **sources.from_overrides(overrides),
    }
    for key, raw in given.items():
        _check_key(key, raw)
    warnings = _fill_providers(given, environ, secrets)
    warnings += _resolve_store(given, environ, secrets)
    _absolute_workspaces(given, environ)
    _pick_model(given, environ)
    given = {("state_dir",): state, **given}
    settings = _build(given)
    origin = {dotted(key): given[key].source if key in given else "default" for key, _ in _values(settings, ())}
    return Loaded(settings, origin, warnings)


def describe() -> list[Row]:
    """A row for each key there is, with `<id>` where the id of an agent or provider stands."""
    return list(_ROWS)


def effective(loaded: Loaded) -> list[tuple[str, Any, str]]:
    """Key, value and source of everything that is in force; secrets as `***`, empty ones as an empty text."""
    listed: list[tuple[str, Any, str]] = []
    for key, value in _values(loaded.settings, ()):
        shown = ("***" if value.get_secret_value() else "") if isinstance(value, SecretStr) else value
        if key == STORE_URL:
            shown = database.shown(value)
        listed.append((dotted(key), shown, loaded.sources[dotted(key)]))
    return listed


_ROWS = tuple(rows(Settings))


def _values(section: BaseModel, above: Key) -> Iterator[tuple[Key, Any]]:
    """Every leaf of a tree of settings, in the order of the code."""
    for name, value in section:
        if isinstance(value, BaseModel):
            yield from _values(value, (*above, name))
        elif isinstance(value, dict):
            for inner, entry in value.items():
                yield from _values(entry, (*above, name, inner))
        else:
            yield (*above, name), value


def _wrong(raw: Raw, key: Key, problem: str) -> SettingsError:
    """The one line that stops the start."""
    return SettingsError(" ".join(f"{raw.source}: {dotted(key)}: {problem}".split()))


def _check_key(key: Key, raw: Raw) -> None:
    """Refuse keys that are unknown, that this build has no reader for, or whose value is for a later build."""
    if any(fnmatchcase(dotted(key[: n + 1]), later) for n in range(len(key)) for later in _NOT_YET):
        raise _wrong(raw, key, "is not available in this build yet")
    if key == ("state_dir",):
        raise _wrong(raw, key, "is set by --state-dir or LANEWAY_STATE_DIR only")
    if len(key) > 1 and key[0] in _NAMED and key[1] != "defaults" and not _ID.fullmatch(key[1]):
        raise _wrong(raw, key, f"{key[1]!r} is not an id; allowed are {_ID_ALLOWED}")
    row = find(_ROWS, key)
    if row is None:
        _check_table(key, raw)
        return
    later_mode = key == ("queue", "mode") and raw.value in ("steer", "collect", "interrupt")
    if later_mode:
        choice = str(raw.value).partition(":")[0]
        raise _wrong(raw, key, f"{choice} is not available in this build yet; allowed is {row.allowed}")


def _check_table(key: Key, raw: Raw) -> None:
    """What is no key may be an empty table: of a section, or one that declares an agent or a provider."""
    is_table = any(row.key[: len(key)] == key for row in _ROWS) or (len(key) == 2 and key[0] in _NAMED)
    if is_table and raw.value == {}:
        return
    if is_table:
        raise _wrong(raw, key, "is a table, not a value")
    names = [name for name in known(_ROWS, key) if name != "state_dir"]
    allowed = f"; allowed here are {', '.join(names)}" if names else ""
    raise _wrong(raw, key, f"is not a setting{allowed}")


def _fill_providers(given: dict[Key, Raw], environ: Mapping[str, str], resolve: bool) -> list[str]:
    """Complete the provider tables in place: kind, secret, absolute script. Returns warnings."""
    warnings: list[str] = []
    ids = {key[1] for key in given if key[0] == "providers" and len(key) > 1}
    ids |= {kind for kind, variable in KEY_VARIABLES.items() if environ.get(variable)}
    for provider_id in sorted(ids):
        table: Key = ("providers", provider_id)
        declared = next((raw for key, raw in given.items() if key[:2] == table), None)
        if (*table, "kind") not in given:
            if provider_id not in KINDS:
                assert declared is not None, "only kinds are added by the environment"
                raise _wrong(declared, (*table, "kind"), f"is missing; allowed are {', '.join(KINDS)}")
            given[*table, "kind"] = Raw(provider_id, "default", Path())
        kind = given[*table, "kind"].value
        variable = KEY_VARIABLES.get(kind) if kind in KINDS else None
        # The vendor's key goes to the vendor's own address only, never to one that was configured.
        own_address = not given.get((*table, "base_url"), Raw("", "", Path())).value
        if variable and environ.get(variable) and own_address and (*table, "api_key") not in given:
            given[*table, "api_key"] = Raw(f"env:{variable}", "default", Path())
        warnings += _resolve_secret(given, (*table, "api_key"), environ, resolve)
        script = given.get((*table, "script"))
        if script and isinstance(script.value, str) and script.value:
            absolute = str(sources.absolute(script.value, script.folder, environ))
            given[*table, "script"] = Raw(absolute, script.source, script.folder)
    return warnings


def _absolute_workspaces(given: dict[Key, Raw], environ: Mapping[str, str]) -> None:
    """A workspace is relative to the file that names it."""
    for key, raw in given.items():
        if key[0] == "agents" and key[-1] == "workspace" and isinstance(raw.value, str) and raw.value:
            given[key] = Raw(str(sources.absolute(raw.value, raw.folder, environ)), raw.source, raw.folder)


def _check_workspaces(settings: Settings, given: dict[Key, Raw]) -> None:
    """File tools must not reach the service's own state."""
    for key, raw in given.items():
        if key[0] == "agents" and key[-1] == "workspace" and raw.value:
            folder = Path(str(raw.value)).resolve()
            if settings.state_dir.resolve().is_relative_to(folder):
                raise _wrong(raw, key, "holds the state directory, which tools must not reach; choose another folder")


def _resolve_secret(given: dict[Key, Raw], key: Key, environ: Mapping[str, str], resolve: bool) -> list[str]:
    """Put the secret in place of its reference. Returns a warning when it stands in a file in clear."""
    raw = given.get(key)
    if raw is None or not isinstance(raw.value, str):
        return []
    if sources.is_reference(raw.value):
        source = f"{raw.source}, {raw.value}" if raw.source != "default" else f"environment {raw.value[4:]}"
        try:
            value = sources.secret(raw.value, environ) if resolve else raw.value
        except ValueError as error:
            raise _wrong(raw, key, str(error)) from error
        given[key] = Raw(value, source, raw.folder)
        return []
    if raw.value and raw.source.startswith("file "):
        return [f"{raw.source}: {dotted(key)}: a secret is written out; use env:NAME or file:/path"]
    return []


def _resolve_store(given: dict[Key, Raw], environ: Mapping[str, str], resolve: bool) -> list[str]:
    """The database's address may be a reference as a whole. Returns a warning when its password stands in a file."""
    raw = given.get(STORE_URL)
    if raw is None or not isinstance(raw.value, str):
        return []
    warnings = _resolve_secret(given, STORE_URL, environ, resolve)
    try:
        harmless = not database.passwords(database.database_url(raw.value))
    except ValueError:
        return []
    return [] if harmless else warnings


def _pick_model(given: dict[Key, Raw], environ: Mapping[str, str]) -> None:
    """With no model configured, take the first whose key is there, else the offline one."""
    key = ("agents", "defaults", "model")
    if given.get(key, Raw("", "", Path())).value != "":
        return
    for variable, model in _PICKS:
        if environ.get(variable):
            given[key] = Raw(model, f"picked: {variable} is set", Path())
            return
    given[key] = Raw("demo", "picked: no provider key is set", Path())


def _check_models(settings: Settings, given: dict[Key, Raw]) -> None:
    """A model must name a provider that exists; found at the start, not at the first run."""
    for key, raw in given.items():
        if key[0] != "agents" or key[-1] != "model" or raw.value == "":
            continue
        provider_id, _, name = str(raw.value).partition(":")
        provider = settings.provider(provider_id)
        if provider is None:
            configured = sorted({*settings.providers, *KINDS})
            raise _wrong(raw, key, f"no provider {provider_id!r}; there are {', '.join(configured)}")
        if not name and provider.kind in KEY_VARIABLES:
            raise _wrong(raw, key, f"{raw.value!r} names no model; allowed is provider:model")


def _build(given: dict[Key, Raw]) -> Settings:
    """Validate the merged values; the first one that is wrong is told."""
    tree: dict[str, Any] = {}
    for key, raw in given.items():
        table = tree
        for name in key[:-1]:
            table = table.setdefault(name, {})
        if raw.value == {}:
            table.setdefault(key[-1], {})  # another source may fill it
        else:
            table[key[-1]] = raw.value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise _explained(error, given) from error
    _check_models(settings, given)
    _check_workspaces(settings, given)
    return settings


def _explained(error: ValidationError, given: dict[Key, Raw]) -> SettingsError:
    first = error.errors(include_url=False)[0]
    key = tuple(str(item) for item in first["loc"])
    while key and key not in given:
        key = key[:-1]  # inside a list, say
    assert key, f"not a value that was given: {first['loc']}"
    raw, row = given[key], find(_ROWS, key)
    shown = "the value" if key[-1] == "api_key" or key == STORE_URL else repr(raw.value)[:60]
    reason = str(first["ctx"]["error"]) if first["type"] == "value_error" else "is not allowed"
    allowed = "" if "; allowed" in reason or row is None else f"; allowed is {row.allowed}"
    return _wrong(raw, key, f"{shown} {reason}{allowed}")
