"""Where raw settings come from: command line, environment, TOML file, and references to secrets.

Yields plain values by path, each with the name of its source. What a key means and which values it may have is
not known here; that is `settings`. Nothing here reads the process's own environment: it is passed in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import SettingsError

PREFIX = "LANEWAY_"
COMMAND_LINE = "command line"

Key = tuple[str, ...]
"""A settings key, one item a level: `("server", "port")`. An id of an agent or provider is one item."""

NOT_SETTINGS = frozenset({"LANEWAY_STATE_DIR", "LANEWAY_CONFIG", "LANEWAY_FAULTS", "LANEWAY_SECRET_KEY", "LANEWAY_URL"})
"""Variables with our prefix that have a reader of their own."""

_SECOND_NAMES: dict[str, Key] = {
    "LANEWAY_SESSION_WRITE_LOCK_ACQUIRE_TIMEOUT_MS": ("session", "write_lock", "acquire_timeout_ms")
}
"""Variables that name a setting beside its usual variable, which goes before them."""

_ORCHESTRATOR = re.compile(r"LANEWAY_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
"""Variables that container orchestrators put into every container beside a service named `laneway`."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A value as it was written, and by whom. `folder` is what a relative path in it is relative to."""

    value: Any
    source: str
    folder: Path


def dotted(key: Key) -> str:
    """The key as people write it."""
    return ".".join(key)


def state_dir(environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Raw:
    """The state directory, absolute: command line, LANEWAY_STATE_DIR, or the XDG default."""
    here = Path.cwd()
    if overrides.get("state_dir") is not None:
        return Raw(absolute(str(overrides["state_dir"]), here, environ), COMMAND_LINE, here)
    if environ.get("LANEWAY_STATE_DIR"):
        return Raw(absolute(environ["LANEWAY_STATE_DIR"], here, environ), "environment LANEWAY_STATE_DIR", here)
    xdg = environ.get("XDG_STATE_HOME", "")
    # The XDG rules say that a relative path there is to be ignored.
    base = Path(xdg) if xdg.startswith("/") else _home(environ) / ".local" / "state"
    return Raw(base / "laneway", "default", here)


def config_path(config: Path | None, environ: Mapping[str, str], state: Path) -> Path | None:
    """The file to read, or None when none was named and none lies where one is looked for."""
    named = config or (Path(environ["LANEWAY_CONFIG"]) if environ.get("LANEWAY_CONFIG") else None)
    if named is not None:
        return named
    return next((path for path in (Path("laneway.toml"), state / "laneway.toml") if path.is_file()), None)


def from_file(path: Path) -> dict[Key, Raw]:
    """Every value of a TOML file. Raises SettingsError when it cannot be read or is not TOML."""
    try:
        tree = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise SettingsError(f"{path}: is not valid TOML: {error}") from error
    folder = path.absolute().parent
    return {key: Raw(value, f"file {path}", folder) for key, value in _leaves(tree, ())}


def from_environment(environ: Mapping[str, str]) -> dict[Key, Raw]:
    """Every `LANEWAY_SECTION__KEY` variable. An empty one counts as not set."""
    here = Path.cwd()
    found: dict[Key, Raw] = {}
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or not value:
            continue
        if _ORCHESTRATOR.fullmatch(name) or (name == "LANEWAY_PORT" and "://" in value):
            continue
        key = _SECOND_NAMES.get(name) or tuple(name.removeprefix(PREFIX).lower().split("__"))
        if name not in _SECOND_NAMES or key not in found:
            found[key] = Raw(value, f"environment {name}", here)
    return found


def from_overrides(overrides: Mapping[str, Any]) -> dict[Key, Raw]:
    """Values by dotted key; None means that the option was not given."""
    here = Path.cwd()
    given = {key: value for key, value in overrides.items() if value is not None and key != "state_dir"}
    return {tuple(key.split(".")): Raw(value, COMMAND_LINE, here) for key, value in given.items()}


def secret(reference: str, environ: Mapping[str, str]) -> str:
    """What `env:NAME` or `file:/path` stands for; else the text itself. Raises ValueError with the reason."""
    if reference.startswith("env:"):
        name = reference.removeprefix("env:")
        if not environ.get(name):
            raise ValueError(f"the environment variable {name} is not set")
        return environ[name]
    if reference.startswith("file:"):
        path = Path(reference.removeprefix("file:"))
        if not path.is_absolute():
            raise ValueError("file: needs an absolute path, such as file:/run/secrets/key")
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return reference


def is_reference(value: str) -> bool:
    """Whether a secret is named rather than written out."""
    return value.startswith(("env:", "file:"))


def _leaves(table: Mapping[str, Any], above: Key) -> Iterator[tuple[Key, Any]]:
    """The values of nested tables; an empty table is a value too, since it may declare an agent or a provider."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _home(environ: Mapping[str, str]) -> Path:
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path.home()
    except RuntimeError as error:
        raise SettingsError("state_dir: there is no home directory; set LANEWAY_STATE_DIR or --state-dir") from error


def absolute(text: str, folder: Path, environ: Mapping[str, str]) -> Path:
    """The path as the process will open it, whatever folder it runs in."""
    if text == "~" or text.startswith("~/"):
        return _home(environ) / text[2:]
    return folder / text
