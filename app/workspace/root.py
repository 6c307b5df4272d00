"""An agent's workspace: the one folder that its file tools see, made when it is missing."""

from __future__ import annotations

from pathlib import Path

README = """\
# Workspace

This folder is the agent's workspace. Its tools read and write files here and nowhere else.

Put in what the agent should work with, and take out what it has made. This file was written when the folder was made;
change it or delete it as you like.
"""


class WorkspaceUnusable(Exception):
    """The folder cannot be made, or is none. The text says which and why."""


def make_workspace(path: Path) -> None:
    """Make the folder, for its owner alone, with a README.md in it; one that is there is left as it is.

    Raises WorkspaceUnusable.
    """
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if path.is_dir():
            return
        raise WorkspaceUnusable(f"The workspace {path} is no folder.") from None
    except OSError as problem:
        raise WorkspaceUnusable(f"The workspace {path} cannot be made: {problem.strerror}.") from None
    try:
        (path / "README.md").write_text(README, encoding="utf-8")
    except OSError as problem:
        raise WorkspaceUnusable(f"The workspace {path} cannot be written: {problem.strerror}.") from None
