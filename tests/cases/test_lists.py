"""Lists: their bounds, filters, order and cursors, the same for runs, sessions, transcripts and the ledger."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from tests.kit.client import API
from tests.kit.model_server import error, hold, reply_text
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.service import Service

SESSION = "lists"
TRANSCRIPT = f"{API}/sessions/{SESSION}/transcript"
LISTS: dict[str, dict[str, Any]] = {
    f"{API}/runs": {"sessionKey": SESSION},
    f"{API}/sessions": {"search": SESSION},
    TRANSCRIPT: {},
    f"{API}/audit": {"sessionKey": SESSION},
}
LIMIT_MAX = {path: 500 if path.endswith("audit") else 200 for path in LISTS}
EDGE_TIMES = ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")


@pytest.fixture
async def lists(shared_service: Service) -> Service:
    """A service with at least six runs of one session, and two more sessions whose keys hold its key."""
    one = shared_service
    for number in range(6 - len(await one.runs(sessionKey=SESSION))):
        await one.ended(await one.run(f"message {number}", SESSION))
    for key in (f"{SESSION}-2", f"{SESSION}-3"):
        if not await one.runs(sessionKey=key):
            await one.ended(await one.run("x", key))
    return one


@pytest.mark.parametrize("path", LISTS)
async def test_limits_are_bounded(lists: Service, path: str) -> None:
    top = LIMIT_MAX[path]
    for limit in (1, 2, top):
        page = await lists.get(path, limit=limit, **LISTS[path])
        assert page.keys() == {"items", "nextCursor"}
        assert 0 < len(page["items"]) <= limit
    for limit in ("0", "-1", str(top + 1), "1.5", "x", "", "null", "9" * 40, "1e1"):
        answer = await lists.request("GET", path, limit=limit, **LISTS[path])
        check_problem(answer, 422, "validation-failed", parameter="limit")


@pytest.mark.parametrize("path", LISTS)
async def test_what_is_no_parameter_of_a_list_is_refused(lists: Service, path: str) -> None:
    for name in ("nosuch", "Limit", "offset", "page", "session_key", "order", ""):
        answer = await lists.request("GET", path, **{name: "1"}, **LISTS[path])
        check_problem(answer, 422, "validation-failed", parameter=name)
    twice = await lists.request("GET", path, limit=[1, 2])
    check_problem(twice, 422, "validation-failed", parameter="limit")


@pytest.mark.parametrize("path", LISTS)
async def test_pages_of_any_size_give_every_row_once(lists: Service, path: str) -> None:
    query = LISTS[path]
    whole = (await lists.get(path, limit=LIMIT_MAX[path], **query))["items"]
    assert len(whole) > 2
    for limit in (1, 2, len(whole) - 1, len(whole)):
        pages: list[list[Any]] = []
        cursor = None
        while not pages or cursor is not None:
            page = await lists.get(path, limit=limit, cursor=cursor, **query)
            pages.append(page["items"])
            cursor = page["nextCursor"]
            assert len(page["items"]) == limit or cursor is None
        in_order = reversed(pages) if path == TRANSCRIPT else pages
        assert [item for page in in_order for item in page] == whole, f"limit {limit}"


@pytest.mark.parametrize("path", LISTS)
async def test_a_cursor_that_is_not_of_this_list_is_refused(lists: Service, path: str) -> None:
    query = LISTS[path]
    own = (await lists.get(path, limit=1, **query))["nextCursor"]
    others = [(await lists.get(p, limit=1, **q))["nextCursor"] for p, q in LISTS.items() if p != path]
    mark, at, ident = orjson.loads(base64.urlsafe_b64decode(own + "=="))
    forged = [
        *([mark], [mark, at], [mark, at, ident, 1], ["", at, ident], [mark[::-1], at, ident], [None, at, ident]),
        *([mark, None, ident], [mark, "x", ident], [mark, True, ident], [mark, 1.5, ident], [mark, at, None]),
        *([mark, at, [ident]], {"mark": mark}, mark, 5, [mark, 2**63, ident], [mark, 2**64 - 1, ident]),
        *([mark, at, 2**63], [mark, at, 2**64 - 1], [mark, -(2**63), 2**63]),
    ]
    texts = [base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=") for value in forged]
    bad = [*others, *texts, "", " ", "x", "=", "====", "é", "\0", own + "x", own[:-4], own[1:], "%", "a" * 512]
    for cursor in bad:
        answer = await lists.request("GET", path, cursor=cursor, **query)
        check_problem(answer, 400, "bad-request", parameter="cursor")
    too_long = await lists.request("GET", path, cursor="a" * 513, **query)
    check_problem(too_long, 422, "validation-failed", parameter="cursor")
    assert (await lists.request("GET", path, cursor=own, limit=7, **query)).status == 200, "a limit is no filter"


OTHER_FILTERS: list[tuple[str, dict[str, Any]]] = [
    *((f"{API}/runs", {"sessionKey": key}) for key in (f"{SESSION}-2", None)),
    (f"{API}/runs", {"sessionKey": SESSION, "status": "succeeded"}),
    (f"{API}/runs", {"sessionKey": SESSION, "agent": "main"}),
    (f"{API}/runs", {"sessionKey": SESSION, "since": "2020-01-01T00:00:00Z"}),
    (f"{API}/sessions", {"search": "list"}),
    (f"{API}/sessions", {"search": SESSION, "active": "false"}),
    (f"{API}/sessions/{SESSION}-2/transcript", {}),
    (f"{API}/audit", {"sessionKey": SESSION, "kind": "agent_run"}),
    (f"{API}/audit", {"sessionKey": SESSION, "until": "2999-01-01T00:00:00Z"}),
]


@pytest.mark.parametrize(("path", "query"), OTHER_FILTERS, ids=str)
async def test_a_cursor_of_other_filters_is_refused(lists: Service, path: str, query: dict[str, Any]) -> None:
    same_list = TRANSCRIPT if path.endswith("/transcript") else path
    cursor = (await lists.get(same_list, limit=1, **LISTS[same_list]))["nextCursor"]
    check_problem(await lists.request("GET", path, cursor=cursor, **query), 400, "bad-request", parameter="cursor")


@pytest.mark.parametrize("path", [f"{API}/runs", f"{API}/audit"])
async def test_times_are_inclusive_and_of_any_offset(lists: Service, path: str) -> None:
    query = LISTS[path]
    name = "ts" if path.endswith("audit") else "acceptedAt"
    whole = (await lists.get(path, limit=200, **query))["items"]
    times = [item[name] for item in whole]
    assert times == sorted(times, reverse=True)
    first, last = times[-1], times[0]
    for since, until in ((first, last), (times[2], times[2]), (times[3], times[1]), (last, None), (None, first)):
        expected = [item for item in whole if (since or first) <= item[name] <= (until or last)]
        assert expected
        found = (await lists.get(path, limit=200, since=since, until=until, **query))["items"]
        assert found == expected, (since, until)
    shifted = first.replace("Z", "+00:00")
    assert len((await lists.get(path, limit=200, since=shifted, **query))["items"]) == len(whole)
    nothing = await lists.get(path, since="2999-01-01T00:00:00Z", **query)
    assert nothing == {"items": [], "nextCursor": None}
    assert (await lists.get(path, since=last, until="2001-01-01T00:00:00-12:00", **query))["items"] == []


@pytest.mark.parametrize("path", [f"{API}/runs", f"{API}/audit"])
async def test_what_is_no_time_is_refused(lists: Service, path: str) -> None:
    for name in ("since", "until"):
        for value in ("", "x", "0", "1700000000", "2026-11-30", "2026-11-30T20:31:07", "2026-13-01T00:00:00Z", "now"):
            answer = await lists.request("GET", path, **{name: value}, **LISTS[path])
            check_problem(answer, 422, "validation-failed", parameter=name)
        for value in EDGE_TIMES:
            answer = await lists.request("GET", path, **{name: value}, **LISTS[path])
            assert answer.status in (200, 422), f"{name}={value}: {answer.status} {answer.body}"


async def test_runs_are_found_by_status(shared_service: Service) -> None:
    one, session = shared_service, "lists-status"
    one.model.on("fail-for-the-list", error(400, "no"))
    one.model.on("hold-for-the-list", [hold("list"), *reply_text("x")])
    made: dict[str, str] = {}
    for status, message in (("succeeded", "x"), ("failed", "fail-for-the-list")):
        made[status] = await one.run(message, session)
        await one.ended(made[status])
    made["running"] = await one.run("hold-for-the-list", session)
    await one.model.until_held("list")
    made["queued"] = await one.run("y", session)
    made["cancelled"] = await one.run("z", session)
    await one.abort(made["cancelled"])
    for status, run_id in made.items():
        assert [run["runId"] for run in await one.runs(sessionKey=session, status=status)] == [run_id], status
    several = await one.runs(sessionKey=session, status="queued,running,failed")
    assert [run["runId"] for run in several] == [made["queued"], made["running"], made["failed"]]
    for status in ("timed_out", "merged", "dropped"):
        assert await one.runs(sessionKey=session, status=status) == []
    for status in ("", "recovering", "Queued", "queued,", "queued, running", "nosuch", "queued;running"):
        answer = await one.request("GET", f"{API}/runs", status=status)
        check_problem(answer, 422, "validation-failed", parameter="status")
    active = [item["sessionKey"] for item in await one.sessions(search=session, active="true")]
    assert active == [session]
    one.model.release("list")
    for name in ("running", "queued"):
        await one.ended(made[name])
    assert [item["sessionKey"] for item in await one.sessions(search=session, active="false")] == [session]
    assert await one.sessions(search=session, active="true") == []


async def test_sessions_are_found_by_a_part_of_their_key(lists: Service) -> None:
    keys = [item["sessionKey"] for item in await lists.sessions(search="lists-")]
    assert {f"{SESSION}-2", f"{SESSION}-3"} <= set(keys) and SESSION not in keys
    for search in ("LISTS", "lists%", "l_sts", "%", "*", "\0", "é"):
        assert await lists.sessions(search=search) == [], search
    for search in ("", "x" * 257):
        check_problem(
            await lists.request("GET", f"{API}/sessions", search=search), 422, "validation-failed", parameter="search"
        )
    check_problem(
        await lists.request("GET", f"{API}/sessions", active="maybe"), 422, "validation-failed", parameter="active"
    )
    assert await lists.sessions(agent="nobody") == []
    assert keys == [item["sessionKey"] for item in await lists.sessions(search="lists-", agent="main")]


@pytest.mark.parametrize("path", [f"{API}/runs", f"{API}/audit"])
async def test_a_key_that_cannot_be_is_refused_in_a_query(lists: Service, path: str) -> None:
    """A `+` that was not written `%2B` comes as a blank: it would quietly find nothing."""
    problem = check_problem(
        await lists.request("GET", f"{path}?sessionKey=a+b"), 422, "validation-failed", parameter="sessionKey"
    )
    assert "%2B" in problem["detail"]
    for key in ("", "a b", ".", "..", "a/b", "é", "\0", "x" * 257):
        answer = await lists.request("GET", path, sessionKey=key)
        check_problem(answer, 422, "validation-failed", parameter="sessionKey")
    assert (await lists.get(f"{path}?sessionKey=never%2Bused"))["items"] == []


async def test_the_ledger_is_filtered_by_its_columns(lists: Service) -> None:
    rows = await lists.audit(sessionKey=SESSION)
    run_id = rows[0]["runId"]
    assert {row["runId"] for row in await lists.audit(runId=run_id)} == {run_id}
    assert [row["status"] for row in await lists.audit(runId=run_id)] == ["succeeded", "started"]
    assert [row["status"] for row in await lists.audit(runId=run_id, status="started")] == ["started"]
    assert await lists.audit(sessionKey=SESSION, kind="agent_run", agent="main") == rows
    for fields in (
        {"kind": "message"},
        {"agent": "nobody"},
        {"direction": "inbound"},
        {"channel": "x"},
        {"runId": "x"},
    ):
        assert await lists.audit(sessionKey=SESSION, **fields) == [], fields
    for name, value in (("kind", "run"), ("status", "ok"), ("direction", "in"), ("kind", ""), ("runId", "x" * 65)):
        answer = await lists.request("GET", f"{API}/audit", **{name: value})
        check_problem(answer, 422, "validation-failed", parameter=name)


async def test_a_view_of_a_transcript_that_is_not_there_is_told(lists: Service) -> None:
    assert await lists.transcript(SESSION, view="all") == await lists.transcript(SESSION)
    check_problem(await lists.request("GET", TRANSCRIPT, view="model"), 422, "not-available", parameter="view")
    check_problem(await lists.request("GET", TRANSCRIPT, view="x"), 422, "validation-failed", parameter="view")


async def test_other_reads_take_no_parameters(lists: Service) -> None:
    run_id = (await lists.runs(sessionKey=SESSION))[0]["runId"]
    with nothing_stored(lists):
        for method, path in (
            *(("GET", f"{API}/runs/{run_id}"), ("GET", f"{API}/sessions/{SESSION}"), ("GET", f"{API}/agents")),
            *(("GET", f"{API}/models"), ("POST", f"{API}/runs/{run_id}/abort"), ("POST", f"{API}/runs")),
            *(("GET", f"{API}/runs/{run_id}/events"), ("POST", f"{API}/sessions/{SESSION}/abort")),
        ):
            answer = await lists.request(method, path, nosuch=1)
            check_problem(answer, 422, "validation-failed", parameter="nosuch")
