"""`laneway audit`: the ledger of a running service."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.remote import JsonOption, UrlOption, remote
from app.cli.tables import print_json, print_table

PAGE = 500
COLUMNS = {
    "time": "ts",
    "kind": "kind",
    "direction": "direction",
    "channel": "channel",
    "status": "status",
    "agent": "agent",
    "run": "runId",
    "action": "action",
    "tool": "toolName",
    "code": "code",
}


def audit(
    agent: Annotated[str | None, typer.Option("--agent", metavar="ID", help="Of this agent.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="KEY", help="Of this session.")] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Of this run.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="agent_run, tool_action, message or approval.")] = None,
    status: Annotated[str | None, typer.Option("--status", help="started, succeeded, failed and so on.")] = None,
    direction: Annotated[str | None, typer.Option("--direction", help="Of messages: inbound or outbound.")] = None,
    channel: Annotated[str | None, typer.Option("--channel", help="Of messages.")] = None,
    after: Annotated[str | None, typer.Option("--after", metavar="TIME", help="At or after.")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="TIME", help="At or before.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many rows at most.")] = 100,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where `nextCursor` of --json stood.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print the audit ledger, newest first. It says who did what and when, and never what was said."""
    query = {
        "agent": agent,
        "sessionKey": session,
        "runId": run,
        "kind": kind,
        "status": status,
        "direction": direction,
        "channel": channel,
        "since": after,
        "until": before,
    }
    with remote(url) as service:
        found, next_cursor = service.pages("/api/v1/audit", limit, PAGE, cursor, **query)
    if as_json:
        print_json({"events": found, "nextCursor": next_cursor})
        return
    rows = [[row.get(field) for field in COLUMNS.values()] for row in found]
    print_table(tuple(COLUMNS), rows, nothing="No such rows.")
