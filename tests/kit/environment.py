"""The environment of a service under test: nothing of the caller's own settings, keys or proxies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def leftover_names(environ: Iterable[str]) -> list[str]:
    """Names of variables that would change what a service does."""
    return [name for name in environ if name.startswith("LANEWAY_") or name.endswith(("_API_KEY", "_AUTH_TOKEN"))]


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without those and proxies, and with our packages importable from any folder."""
    dropped = {*leftover_names(environ), *(name for name in environ if name.lower().endswith("_proxy"))}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def variable(key: str) -> str:
    """The variable of a dotted settings key: `queue.mode` is `LANEWAY_QUEUE__MODE`."""
    return "LANEWAY_" + key.upper().replace(".", "__")


def written(value: Any) -> str:
    """A setting as text: lists with commas, switches in lower case."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(written(item) for item in value)
    return str(value)
