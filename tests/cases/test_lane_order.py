"""Runs of one session go one after the other in the order of acceptance; sessions go side by side."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from tests.kit.gauges import until_quiet
from tests.kit.model_server import Reply, Request, done, finish, hold, pause, reply_text, role, text
from tests.kit.rules import check_case, check_run, reply_texts
from tests.kit.service import Service
from tests.kit.steps import cut_text

DEEP = {"mode": "followup", "cap": 100}


async def test_fifty_messages_at_once_to_one_session_are_answered_in_the_order_of_acceptance(
    shared_service: Service,
) -> None:
    """LANE-01"""
    session = "order-fifty"
    shared_service.model.on(f"[s:{session}]", lambda request: [pause(0.02), *reply_text(request.last_user_text)])
    posts = (shared_service.post(f"[s:{session}] number {n}", session, queue=DEEP) for n in range(50))
    answers = await asyncio.gather(*posts)
    assert [answer.status for answer in answers] == [202] * 50
    run_ids = {answer.run_id for answer in answers}
    assert len(run_ids) == 50

    ended = await asyncio.gather(*(shared_service.ended(run_id, 60_000) for run_id in run_ids))
    assert {record["status"] for record in ended} == {"succeeded"}
    assert shared_service.model.max_in_flight[session] == 1

    accepted = _in_order_of_acceptance(shared_service, session)
    asked = [item["runId"] for item in await shared_service.transcript(session) if item["role"] == "user"]
    assert asked == accepted
    receipts = {answer.run_id: answer.body["receipt"] for answer in answers}
    for before, after in pairwise(sorted(ended, key=lambda record: accepted.index(record["runId"]))):
        assert after["startedAt"] >= before["endedAt"], (before, after)
        assert receipts[after["runId"]]["behind"] in (before["runId"], None)
    await check_case(shared_service, run_ids, sessions=[session])
    await until_quiet(shared_service)


async def test_runs_of_several_sessions_overlap_and_never_mix_their_words(shared_service: Service) -> None:
    """LANE-02"""
    model = shared_service.model
    sessions = [f"mix-{name}" for name in ("a", "b", "c", "d")]
    places = [(session, number) for session in sessions for number in range(5)]

    def reply(request: Request) -> Reply:
        """Says its marker in 30 deltas; the first of each session waits in the middle for the other sessions."""
        words = cut_text(f"{_marker(request.last_user_text)} " * 30, 30)
        middle = [hold("all sessions are at it")] if request.last_user_text.endswith("-0>") else []
        return [role(), text(*words[:15], delay_s=0.005), *middle, text(*words[15:], delay_s=0.005), finish(), done()]

    model.on("[s:mix-", reply)
    run_ids = await asyncio.gather(
        *(shared_service.run(f"[s:{session}] <{session}-{number}>", session) for session, number in places)
    )
    followers = [shared_service.follow(run_id).start() for run_id in run_ids]
    await model.until_held("all sessions are at it", len(sessions), 30)
    assert model.max_in_flight_total >= len(sessions)
    model.release("all sessions are at it")
    await asyncio.gather(*(follower.finish() for follower in followers))

    for (session, number), run_id, follower in zip(places, run_ids, followers, strict=True):
        marker = f"<{session}-{number}>"
        checked = await check_run(shared_service, run_id)
        told = "".join(event.payload.get("delta", "") for event in follower.events)
        stored = "".join(reply_texts(await shared_service.record(run_id)))
        for words in (told, stored, *checked.texts):
            assert words == f"{marker} " * 30, f"{run_id}: {words!r:.200}"
        assert follower.violations == []
    await check_case(shared_service, sessions=sessions)
    await until_quiet(shared_service)


def _marker(words: str) -> str:
    return "<" + words.rpartition("<")[2]


def _in_order_of_acceptance(service: Service, session: str) -> list[str]:
    rows = service.query(
        "SELECT run.id FROM run JOIN session ON session.id = run.session_id WHERE key = ? ORDER BY accept_no", session
    )
    return [row["id"] for row in rows]
