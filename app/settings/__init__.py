"""Settings: one frozen tree, loaded once at the start and passed down.

`tree` is what can be set, `load` merges the sources, `sources` reads them, `table` shows the tree as rows.
"""

from app.settings.database import EMBEDDED
from app.settings.load import KEY_VARIABLES, Loaded, describe, effective, load
from app.settings.tree import MAIN_AGENT, Agent, Agents, Provider, ProviderKind, Settings

__all__ = [
    "EMBEDDED",
    "KEY_VARIABLES",
    "MAIN_AGENT",
    "Agent",
    "Agents",
    "Loaded",
    "Provider",
    "ProviderKind",
    "Settings",
    "describe",
    "effective",
    "load",
]
