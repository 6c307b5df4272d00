"""The reference page of all settings, as Markdown, made from the settings tree.

`docs/configuration.md` is this page; a test holds the two equal.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

from app.settings.table import Row

_DEFAULT_IN_WORDS = {
    ("state_dir",): "`$XDG_STATE_HOME/laneway`, else `~/.local/state/laneway`",
    ("agents", "defaults", "model"): "picked, see above",
    ("providers", "<id>", "kind"): "the id",
}
"""Where the default is worked out at the start, not written in the tree."""

_HEAD = """\
# Configuration

This page is printed by `laneway config reference`; do not edit it by hand.

Everything has a default that works. What is set goes by this order, the first one wins:

1. options of the command line (`laneway serve --help`)
2. environment: `LANEWAY_` and the key in capitals, levels joined by two underscores: `LANEWAY_SERVER__PORT=9000`.
   An empty variable counts as not set.
3. the settings file, TOML: the one named by `--config` or `LANEWAY_CONFIG`, else `./laneway.toml`, else
   `laneway.toml` in the state directory
4. the defaults below

A key that is not listed here, or a value out of its bounds, stops the start with one line that names the source, the
key and what is allowed. `laneway config show` prints what is in force and where each value came from.

```toml
[server]
port = 8420

[agents.main]
model = "local:llama3.2"

[providers.local]
kind = "openai"                        # every OpenAI-compatible endpoint
base_url = "http://127.0.0.1:11434/v1"
api_key = "env:LOCAL_API_KEY"
```

**Secrets** are written as `env:NAME` (a variable of the environment) or `file:/path` (a file that holds nothing else).
Written out they work too, with a warning at the start. They are never shown.

**Which model runs with nothing configured**: `openai:gpt-5-mini` when `OPENAI_API_KEY` stands in the environment, else
`anthropic:claude-sonnet-5-5` when `ANTHROPIC_API_KEY` does, else the built-in, offline `demo`. These two keys are
given to the vendor's own address only, never to a `base_url`.

**Variables that are no settings**: `LANEWAY_STATE_DIR` (the state directory), `LANEWAY_CONFIG` (the settings file),
`LANEWAY_URL` (the service that `laneway agent` talks to), `LANEWAY_FAULTS` (crash points, for tests only).
"""


def page(rows: Iterable[Row]) -> str:
    """The whole page, ending in a newline."""
    parts = [_HEAD]
    for table, members in itertools.groupby(rows, key=lambda row: row.key[:-1]):
        listed = list(members)
        parts.append(f"\n## {'`[' + '.'.join(table) + ']`' if table else 'State'}\n\n{listed[0].section}\n\n")
        parts.append("| key | allowed | default | what |\n| --- | --- | --- | --- |\n")
        parts += [_line(row) for row in listed]
    return "".join(parts)


def _line(row: Row) -> str:
    default = _DEFAULT_IN_WORDS.get(row.key) or _shown(row.default)
    return f"| `{row.key[-1]}` | {row.allowed} | {default} | {row.description} |\n"


def _shown(value: Any) -> str:
    """A default as TOML writes it; none at all for what is not set."""
    return "-" if value is None else f"`{json.dumps(value, default=str)}`"
