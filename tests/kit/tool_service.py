"""`python -m tests.kit.tool_service --port 0`: the real service with the tools of `probe` beside its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from app.cli.serve import run_service
from app.errors import StartError
from app.settings import load
from tests.kit.probe import LOG_VARIABLE, Probe


def main() -> None:
    """As `laneway serve --port N`."""
    port = int(sys.argv[sys.argv.index("--port") + 1])
    log = Path(os.environ[LOG_VARIABLE])
    try:
        run_service(
            load(None, os.environ, {"server.port": port}),
            [Probe("probe", log), Probe("probe_in_order", log, sequential=True)],
        )
    except StartError as problem:
        sys.exit(f"laneway: {problem}")


if __name__ == "__main__":
    main()
