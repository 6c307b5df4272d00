"""Session keys: exact or refused, and the same rule at every place that takes one."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.kit.client import API
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.raw import exchange, head
from tests.kit.rules import check_case, transcript_text
from tests.kit.service import Service

NOWHERE = "0198c0de-0000-7000-8000-000000000001"

STRANGE = [
    *("Key", "key", "KEY", "kEy", "a.b", "a..b", "....", ".a", "a.", "-", "--", "_", "~", "@", "+", ":", "::", "a:b:c"),
    *("0", "00", "-1", "1e3", "null", "None", "true", "undefined", "NaN", "runs", "transcript", "abort", "events"),
    *("agent:main:main", "agent:main:x", "agent:main:hook", "agent:main:Cron:x", "agent", "agent:", "agent::x"),
    *("hook:x", "subagent:x", NOWHERE, "run-" + NOWHERE, "a+b", "a~b", "user@host:1", "x" * 256),
]
REFUSED = [
    *(
        " ",
        "a b",
        "a+b c",
        "a\tb",
        "a\nb",
        "\0",
        "a\0b",
        "é",
        "e\u0301",
        "ﬁ",
        "日本",
        "😀",
        "\u202ea",
        "\ufeffa",
        "\x7f",
    ),
    *("a?b", "a#b", "a&b=c", "a%b", "a%2fb", "%", "a;b", "a,b", "a'b", 'a"b', "<a>", "a|b", "a\\b", "a*", "x" * 257),
]


async def test_keys_are_exact_at_every_place(shared_service: Service) -> None:
    """Two turns each; the second sees the first one's history and nobody else's. AUDIT-05"""
    one = shared_service
    run_ids: dict[str, list[str]] = {}
    for turn in (1, 2):
        for place, key in enumerate(STRANGE):
            run_ids.setdefault(key, []).append(await one.run(f"turn {turn} of <{place}>", key))
    for place, key in enumerate(STRANGE):
        for run_id in run_ids[key]:
            record = await one.ended(run_id)
            assert (record["status"], record["sessionKey"]) == ("succeeded", key)
        said = [f"turn 1 of <{place}>", f"turn 2 of <{place}>"]
        if key != "agent:main:main":  # other tests talk in the main session
            asked = one.model.requests_with(f"turn 2 of <{place}>")[-1]
            assert asked.user_texts == said, key
            kept = [transcript_text(item) for item in await one.transcript(key) if item["role"] == "user"]
            assert kept == said
        listed = {run["runId"] for run in await one.runs(sessionKey=key)}
        assert set(run_ids[key]) <= listed and all(run["sessionKey"] == key for run in await one.runs(sessionKey=key))
        assert {row["sessionKey"] for row in await one.audit(sessionKey=key)} == {key}
        assert (await one.session(key))["sessionKey"] == key
        assert key in [item["sessionKey"] for item in await one.sessions(search=key)]
        assert (await one.abort_session(key))["runs"] == []
    session_ids = {(await one.session(key))["sessionId"] for key in STRANGE}
    assert len(session_ids) == len(STRANGE), "two keys share a session"


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: ascii(key)[:24])
async def test_what_is_no_key_is_refused_at_every_place(shared_service: Service, key: str) -> None:
    one, path = shared_service, f"{API}/sessions/{quote(key, safe='')}"
    with nothing_stored(one):
        check_problem(await one.post("x", key), 422, "validation-failed", pointer="#/sessionKey")
        for method, rest in (("GET", ""), ("GET", "/transcript"), ("POST", "/abort")):
            answer = await one.request(method, path + rest)
            if "/" in key:
                assert answer.status == 404, answer
            else:
                check_problem(answer, 422, "validation-failed", parameter="sessionKey")
        for listed in ("runs", "audit"):
            answer = await one.request("GET", f"{API}/{listed}", sessionKey=key)
            check_problem(answer, 422, "validation-failed", parameter="sessionKey")


@pytest.mark.parametrize("path", ["..", ".", "%2e%2e", "%2E", "x/..", "../runs", "a%2fb", "%2F", "..%2fruns", "a//b"])
async def test_paths_do_not_climb(shared_service: Service, path: str) -> None:
    """As they are sent, without a client that tidies them."""
    for rest in ("", "/transcript"):
        answer = await exchange(shared_service.address, head("GET", f"{API}/sessions/{path}{rest}"))
        assert answer.status in (404, 422), (path, answer)
        check_problem(answer, answer.status, str(answer.code))


async def test_a_plus_stands_as_it_is_in_a_path(shared_service: Service) -> None:
    key = "plus+in+path"
    run_id = await shared_service.run("x", key)
    await shared_service.ended(run_id)
    for written in (key, "plus%2Bin%2bpath"):
        answer = await exchange(shared_service.address, head("GET", f"{API}/sessions/{written}"))
        assert answer.status == 200 and answer.body["sessionKey"] == key
    await check_case(shared_service, [run_id])


async def test_reserved_keys_are_the_services_own(shared_service: Service) -> None:
    with nothing_stored(shared_service):
        for name in ("subagent", "cron", "hook", "acp"):
            answer = await shared_service.post("x", f"agent:main:{name}:1")
            problem = check_problem(answer, 422, "validation-failed", pointer="#/sessionKey")
            assert "reserved" in problem["detail"]
            check_problem(await shared_service.request("GET", f"{API}/sessions/agent:main:{name}:1"), 404,
                          "session-not-found")  # fmt: skip
