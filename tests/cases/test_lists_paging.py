"""Paging while rows arrive: what was there at the first page comes once, whatever is added or changed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit.client import API
from tests.kit.model_server import error
from tests.kit.service import Service

LISTS: dict[str, tuple[str, str, str]] = {
    "runs": (f"{API}/runs", "sessionKey", "runId"),
    "sessions": (f"{API}/sessions", "search", "sessionKey"),
    "transcript": (f"{API}/sessions/%s/transcript", "", "entryId"),
    "ledger": (f"{API}/audit", "sessionKey", "eventId"),
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("limit", [1, 3])
async def test_rows_that_arrive_neither_hide_nor_repeat_one(shared_service: Service, kind: str, limit: int) -> None:
    one, session = shared_service, f"paging-{kind}-{limit}"
    path, parameter, name = LISTS[kind]
    path, query = path.replace("%s", session), {parameter: session} if parameter else {}
    for number in range(4):
        await _add_rows(one, session, number)
    there = [item[name] for item in await one.items(path, **query)]
    page = await one.get(path, limit=limit, **query)
    found = [item[name] for item in page["items"]]
    while page["nextCursor"] is not None:
        await _add_rows(one, session, 4 + len(found))
        page = await one.get(path, limit=limit, cursor=page["nextCursor"], **query)
        found += [item[name] for item in page["items"]]
    assert len(found) == len(set(found)), "a row came twice"
    assert set(found) == set(there), "rows that came later were given, or earlier ones left out"


async def test_rows_of_one_millisecond_are_all_given(shared_service: Service) -> None:
    """Many at once share a time; their ids tell them apart."""
    one, session = shared_service, "paging-at-once"
    posts = await asyncio.gather(*(one.post(f"x {n}", session, queue={"cap": 100}) for n in range(40)))
    run_ids = {answer.run_id for answer in posts}
    for limit in (1, 7, 39, 40):
        seen = await _walk(one, f"{API}/runs", "runId", limit, {"sessionKey": session})
        assert len(seen) == 40 and set(seen) == run_ids, f"limit {limit}"
    for run_id in run_ids:
        await one.ended(run_id)


async def test_readers_that_page_while_runs_end_see_each_once(shared_service: Service) -> None:
    """The status changes under the reader; its place does not."""
    one, session = shared_service, "paging-busy"
    one.model.on("fails-now", error(400, "no"))
    words = ["x", "fails-now"]
    run_ids = {await one.run(words[n % 2], session, queue={"cap": 100}) for n in range(12)}
    while len(await one.runs(sessionKey=session, status="succeeded,failed")) < 12:
        seen = await _walk(one, f"{API}/runs", "runId", 5, {"sessionKey": session})
        assert len(seen) == 12 and set(seen) == run_ids
        rows = await _walk(one, f"{API}/audit", "eventId", 3, {"sessionKey": session})
        assert len(rows) == len(set(rows))
    assert len(await one.audit(sessionKey=session)) == 24


async def test_a_cursor_outlives_the_rows_it_was_made_of(shared_service: Service) -> None:
    """Also with filters whose rows have left them since."""
    one, session = shared_service, "paging-filter"
    run_ids = [await one.run(f"x {n}", session, queue={"cap": 100}) for n in range(3)]
    query = {"sessionKey": session, "status": "queued,running,succeeded"}
    page = await one.get(f"{API}/runs", limit=1, **query)
    assert [run["runId"] for run in page["items"]] == [run_ids[2]]
    for run_id in run_ids:
        await one.ended(run_id)
    page = await one.get(f"{API}/runs", limit=2, cursor=page["nextCursor"], **query)
    assert [run["runId"] for run in page["items"]] == [run_ids[1], run_ids[0]]
    assert page["nextCursor"] is None


async def _add_rows(one: Service, session: str, number: int) -> None:
    """A run more of the session, and a session more."""
    for key in (session, f"{session}-{number}"):
        await one.ended(await one.run(f"row {number}", key))


async def _walk(one: Service, path: str, name: str, limit: int, query: dict[str, Any]) -> list[str]:
    return [item[name] for item in await one.items(path, limit=limit, **query)]
