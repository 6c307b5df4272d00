"""`laneway runs`, `sessions` and `audit` against a running service: what they print, as what they end."""

from __future__ import annotations

import json

import pytest

from app.cli.tables import fitted
from tests.kit.model_server import hold, reply_calls, reply_text
from tests.kit.service import Service
from tests.kit.starting import Command, Ended


async def laneway(one: Service, *arguments: str) -> Ended:
    """The command with its output in a file."""
    return await Command(*arguments, environ={"LANEWAY_URL": one.address}).until_ended()


def rows_of(printed: Ended) -> list[list[str]]:
    """Cells of a table, without its head."""
    return [line.split() for line in printed.out.splitlines()[1:]]


async def test_runs_are_listed_shown_and_followed(shared_service: Service) -> None:
    one = shared_service
    one.model.on("[s:cli-1]", reply_text("the answer"))
    run_id = await one.run("hello [s:cli-1]", "cli-1", label="a label")
    await one.ended(run_id)
    listed = await laneway(one, "runs", "list", "--session", "cli-1")
    assert (
        [row[0] for row in rows_of(listed)] == [run_id]
        and "completed" in listed.out
        and listed.out.isprintable() is False
    )
    as_json = await laneway(one, "runs", "list", "--session", "cli-1", "--status", "succeeded", "--json")
    assert json.loads(as_json.out) == await one.runs(sessionKey="cli-1")
    shown = await laneway(one, "runs", "show", run_id)
    assert f"runId             {run_id}" in shown.out and "the answer" in shown.out
    followed = await laneway(one, "runs", "events", run_id)
    events = [json.loads(line) for line in followed.out.splitlines()]
    assert (events[0]["stream"], events[-1]["stream"]) == ("ready", "done") and followed.code == 0
    rest = await laneway(one, "runs", "events", run_id, "--after", str(events[-2]["seq"] - 1))
    assert [json.loads(line).get("seq") for line in rest.out.splitlines()] == [None, events[-2]["seq"], None]


async def test_a_run_is_stopped_with_a_reason(shared_service: Service) -> None:
    one = shared_service
    one.model.on("[s:cli-2]", [hold("cli-2")])
    run_id = await one.run("hello [s:cli-2]", "cli-2")
    await one.model.until_held("cli-2")
    stopped = await laneway(one, "runs", "abort", run_id, "--reason", "no need")
    assert stopped.code == 0 and f"{run_id} is asked to stop" in stopped.out
    assert (await one.ended(run_id))["abortReason"] == "no need"
    again = await laneway(one, "runs", "abort", run_id, "--json")
    assert json.loads(again.out)["status"] == "cancelled"


async def test_sessions_and_what_was_said(shared_service: Service) -> None:
    one = shared_service
    one.model.on("[s:cli-3]", reply_calls(("c", "list", {}), words="looking"), reply_text("an\x1b[31m answer"))
    await one.ended(await one.run("hello [s:cli-3]", "cli-3"))
    listed = await laneway(one, "sessions", "list", "--search", "cli-3")
    assert [row[0] for row in rows_of(listed)] == ["cli-3"]
    assert json.loads((await laneway(one, "sessions", "show", "cli-3", "--json")).out)["entries"] == 4
    said = (await laneway(one, "sessions", "transcript", "cli-3")).out
    places = [said.index(words) for words in ("hello", "looking", "-> list {}", "<- list", "answer")]
    assert places == sorted(places) and "\x1b" not in said
    last = await laneway(one, "sessions", "transcript", "cli-3", "--limit", "1", "--json")
    assert [entry["entryNo"] for entry in json.loads(last.out)] == [4]


@pytest.mark.sqlite
async def test_a_note_is_printed_as_one(shared_service: Service) -> None:
    one = shared_service
    one.model.on("[s:cli-note]", reply_text("the answer"))
    await one.ended(await one.run("hello [s:cli-note]", "cli-note"))
    state_dir = str(one.state_dir)
    noted = await laneway(one, "sessions", "note", "cli-note", "by hand", "--local", "--state-dir", state_dir)
    assert noted.code == 0, noted
    printed = await laneway(one, "sessions", "transcript", "cli-note")
    heads = [line.rpartition("] ")[2] for line in printed.out.splitlines() if line.startswith("[")]
    assert heads == ["user", "assistant", "note"] and printed.out.endswith("by hand\n\n")


async def test_the_ledger_with_its_filters(shared_service: Service) -> None:
    one = shared_service
    one.model.on("[s:cli-4]", reply_calls(("c", "list", {})), reply_text("fine"))
    run_id = await one.run("hello [s:cli-4]", "cli-4")
    await one.ended(run_id)
    rows = rows_of(await laneway(one, "audit", "--run", run_id))
    assert [row[7] for row in rows] == ["run.end", "tool.end", "tool.start", "run.start"]
    tools = await laneway(one, "audit", "--run", run_id, "--kind", "tool_action", "--status", "succeeded")
    assert [row[8] for row in rows_of(tools)] == ["list"]
    first = json.loads((await laneway(one, "audit", "--run", run_id, "--limit", "3", "--json")).out)
    rest = await laneway(one, "audit", "--run", run_id, "--cursor", first["nextCursor"], "--json")
    # A cursor goes with the filters and the size of its list.
    assert [row["action"] for row in first["events"] + json.loads(rest.out)["events"]] == [row[7] for row in rows]
    nothing = await laneway(one, "audit", "--after", "2999-01-01T00:00:00Z")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "No such rows.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("runs", "show", "nothing"), 1, "No such run. [run-not-found]"),
        (("runs", "events", "nothing"), 1, "[run-not-found]"),
        (("runs", "list", "--status", "wrong"), 1, "status: allowed: queued"),
        (("sessions", "show", "no-such-session"), 1, "[session-not-found]"),
        (("sessions", "show", "bad key"), 1, "laneway: "),
        (("audit", "--after", "yesterday"), 1, "[validation-failed]"),
        (("runs", "list", "--limit", "0"), 2, "--limit"),
        (("runs", "nosuch"), 2, "nosuch"),
        (("audit", "--url", "ftp://x"), 2, "is not a URL"),
        (("audit", "--url", "http://127.0.0.1:1"), 1, "No Laneway answers"),
    ],
)
async def test_what_goes_wrong_is_one_line_and_a_code(
    shared_service: Service, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = await laneway(shared_service, *arguments)
    assert (done.code, done.out) == (code, "") and words in done.err and "Traceback" not in done.err
    assert code == 2 or done.err.count("\n") == 1


async def test_what_names_a_run_or_session_reaches_nothing_else(shared_service: Service) -> None:
    one = shared_service
    for command in (("runs", "show"), ("runs", "abort"), ("runs", "events"), ("sessions", "show")):
        for given in ("../audit", "../../../healthz", "a/../b", "?limit=1", "x#y", "%2e%2e"):
            printed = await laneway(one, *command, given)
            assert (printed.code, printed.out) == (1, ""), (command, given, printed)
        for given in ("..", ".", ""):
            printed = await laneway(one, *command, given)
            assert printed.code == 2 and printed.out == "", (command, given, printed)


async def test_the_ledger_as_json_is_as_long_as_was_asked_for_and_goes_on(shared_service: Service) -> None:
    """Over the pages of the service, of 500 rows at most."""
    one = shared_service
    for number in range(9):
        calls = [(f"c-{number}-{call}", "read", {"path": f"none-{call}"}) for call in range(30)]
        one.model.on(f"number {number} [s:cli-long]", reply_calls(*calls), reply_text("done"))
        await one.ended(await one.run(f"number {number} [s:cli-long]", "cli-long"))
    rows = await one.audit(sessionKey="cli-long")
    assert len(rows) > 520
    first = json.loads((await laneway(one, "audit", "--session", "cli-long", "--json", "--limit", "510")).out)
    assert first["events"] == rows[:510]
    rest = await laneway(
        one, "audit", "--session", "cli-long", "--json", "--limit", "10000", "--cursor", first["nextCursor"]
    )
    assert json.loads(rest.out) == {"events": rows[510:], "nextCursor": None}


def test_tables_fit_and_cut_names_last() -> None:
    assert fitted([10, 20], 80) == [10, 20]
    assert fitted([36, 24, 9], 60, {0}) == [36, 11, 9]
    assert fitted([36, 24, 9], 30, {0}) == [14, 6, 6]
    assert fitted([36, 24, 9], 5, {0}) == [6, 6, 6], "so narrow that nothing fits"
