"""The body of `POST /runs`: every field wrong in every way is refused with its place, and nothing of it is stored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.client import API
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.service import Service

RUNS = f"{API}/runs"

NO_KEYS = [
    *("", " ", "a b", "a+b ", "a\n", "a\tb", "a\0b", ".", "..", "a/b", "/", "a\\b", "a%20b", "%", "a?b", "a#b", "a&b"),
    *("a=b", "a,b", "a;b", "(a)", "a'b", 'a"b', "a*b", "a!b", "a$b", "a|b", "<a>", "[a]", "{a}", "a^b", "a`b"),
    *("é", "e\u0301", "日本", "\u202e", "😀", "\u00a0", "\uff41", "x" * 257),
]
RESERVED = [
    *("agent:main:subagent:1", "agent:main:cron:nightly", "agent:main:hook:x", "agent:main:acp:x"),
    *("agent:main:cron:", "agent:other:hook:x"),
]
DEEP: Any = {}
for _ in range(300):
    DEEP = {"a": DEEP}

WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"message": value}, "#/message") for value in (None, 5, 1.5, True, {}, "", " ", "\n\t ", "\u3000", [])),
    ({"message": ["x"]}, "#/message/0"),
    ({"message": [{}]}, "#/message/0/type"),
    ({"message": [{"type": "text"}]}, "#/message/0/text"),
    ({"message": [{"type": "text", "text": ""}]}, "#/message/0/text"),
    ({"message": [{"type": "text", "text": 5}]}, "#/message/0/text"),
    ({"message": [{"type": "text", "text": "  "}]}, "#/message"),
    ({"message": [{"type": "image", "text": "x"}]}, "#/message/0/type"),
    ({"message": [{"type": "text", "text": "x"}, {"type": "text", "text": "y", "more": 1}]}, "#/message/1/more"),
    *(({"sessionKey": value}, "#/sessionKey") for value in (*NO_KEYS, *RESERVED, 5, True, [], {})),
    *(({"sessionId": value}, "#/sessionId") for value in (5, True, [], "", "x" * 65)),
    *(({"agent": value}, "#/agent") for value in ("", " ", "nobody", "MAIN", "main ", 5, True, [], "x" * 65)),
    ({"sessionKey": "agent:nobody:x"}, "#/sessionKey"),
    ({"sessionKey": "agent:main:x", "agent": "other"}, "#/agent"),
    *(({"model": value}, "#/model") for value in ("", " ", "nosuch:model", "test", "test:", 5, [], "x" * 257)),
    *(({"thinking": value}, "#/thinking") for value in ("", "very", "LOW", 5, True, [])),
    *(({"reasoning": value}, "#/reasoning") for value in ("", "yes", True, None, 1)),
    *(({"queue": value}, "#/queue") for value in (5, "followup", [], None, True)),
    *(({"queue": {"mode": value}}, "#/queue/mode") for value in ("", "nosuch", "Followup", 5, True, [])),
    *(({"queue": {"cap": value}}, "#/queue/cap") for value in (0, -1, 10_001, "5", True, 1.5, [])),
    ({"queue": {"more": 1}}, "#/queue/more"),
    *(({"timeoutSeconds": value}, "#/timeoutSeconds") for value in (-1, -0.001, 31_536_001, "5", True, [], {})),
    *(({"extraSystemPrompt": value}, "#/extraSystemPrompt") for value in (5, True, None, [], "x" * 100_001)),
    *(({"replyRequired": value}, "#/replyRequired") for value in ("true", 1, 0, None, [])),
    *(({"metadata": value}, "#/metadata") for value in (5, "x", [], None, {"a": "x" * 16_384})),
    *(({"label": value}, "#/label") for value in ("", 5, True, [], "x" * 257)),
]
UNKNOWN = [
    *("stream", "string", "strict", "messages", "Message", "MESSAGE", "session_key", "sessionkey", "timeout", "n", ""),
    *(
        "query",
        "path",
        "header",
        "body",
        "constrained",
        "list[x]",
        "a/b",
        "~",
        "é",
        "message ",
        "parts",
        "model_config",
    ),
]
LATER: list[tuple[dict[str, Any], str]] = [
    ({"tools": []}, "#/tools"),
    ({"tools": [{"name": "x", "parameters": {}}]}, "#/tools"),
    ({"attachments": []}, "#/attachments"),
    ({"verbose": "off"}, "#/verbose"),
    ({"trace": "off"}, "#/trace"),
    ({"queue": {"debounceMs": 500}}, "#/queue/debounceMs"),
    ({"queue": {"drop": "summarize"}}, "#/queue/drop"),
    *(({"queue": {"mode": mode}}, "#/queue/mode") for mode in ("steer", "collect", "interrupt")),
]


def shown(value: object) -> str:
    return repr(value)[:60].encode("unicode_escape").decode()


def escaped(name: str) -> str:
    return "#/" + name.replace("~", "~0").replace("/", "~1")


@pytest.mark.parametrize(("fields", "pointer"), WRONG, ids=[shown(fields) for fields, _ in WRONG])
async def test_a_wrong_field_is_refused_with_its_place_and_stores_nothing(
    shared_service: Service, fields: dict[str, Any], pointer: str
) -> None:
    body = {"message": "x", "sessionKey": "wrong-fields", **fields}
    with nothing_stored(shared_service):
        answer = await shared_service.request("POST", RUNS, json=body, headers={"idempotency-key": "wrong-field"})
    check_problem(answer, 422, "validation-failed", pointer=pointer)


@pytest.mark.parametrize("name", UNKNOWN, ids=shown)
async def test_an_unknown_field_is_named(shared_service: Service, name: str) -> None:
    with nothing_stored(shared_service):
        answer = await shared_service.request("POST", RUNS, json={"message": "x", name: None})
    check_problem(answer, 422, "validation-failed", pointer=escaped(name))


@pytest.mark.parametrize(("fields", "pointer"), LATER, ids=[shown(fields) for fields, _ in LATER])
async def test_what_this_build_does_not_have_is_refused_as_such(
    shared_service: Service, fields: dict[str, Any], pointer: str
) -> None:
    with nothing_stored(shared_service):
        answer = await shared_service.request("POST", RUNS, json={"message": "x", **fields})
    problem = check_problem(answer, 422, "not-available", pointer=pointer)
    assert pointer.removeprefix("#/") in problem["detail"]


async def test_a_missing_message_is_named(shared_service: Service) -> None:
    with nothing_stored(shared_service):
        answer = await shared_service.request("POST", RUNS, json={"sessionKey": "x"})
    check_problem(answer, 422, "validation-failed", pointer="#/message")


async def test_all_wrong_places_are_told_at_once(shared_service: Service) -> None:
    body = {"label": "", "queue": {"cap": 0}, "timeoutSeconds": -1, "nosuch": 1}
    answer = await shared_service.request("POST", RUNS, json=body)
    problem = check_problem(answer, 422, "validation-failed", pointer="#/message")
    pointers = {error["pointer"] for error in problem["errors"]}
    assert pointers == {"#/message", "#/label", "#/queue/cap", "#/timeoutSeconds", "#/nosuch"}


@pytest.mark.parametrize("with_key", [False, True], ids=["without a key", "with a key"])
async def test_a_body_that_is_nested_too_deeply_is_refused(shared_service: Service, with_key: bool) -> None:
    """Whatever the reader takes, the writer has to take too."""
    levels = [200, 253, 254, 255, 300, 900, 1022, 1023, 1024, 2000]
    for depth in levels:
        body = b'{"message": "x", "sessionKey": "deep", "metadata": {"a": ' + b"[" * depth + b"]" * depth + b"}}"
        headers = {"content-type": "application/json"}
        if with_key:
            headers["idempotency-key"] = f"deep-{depth}"
        answer = await shared_service.request("POST", RUNS, content=body, headers=headers)
        assert answer.status in (202, 400, 422), f"{depth} levels: {answer.status} {answer.body}"
        if answer.status == 202:
            record = await shared_service.ended(answer.run_id)
            assert record["status"] == "succeeded"


async def test_a_session_id_that_is_unknown_is_404(shared_service: Service) -> None:
    with nothing_stored(shared_service):
        answer = await shared_service.post("x", sessionId="0198c0de-0000-7000-8000-000000000001")
    check_problem(answer, 404, "session-not-found", pointer="#/sessionId")


async def test_key_and_id_of_different_sessions_are_a_conflict(shared_service: Service) -> None:
    one, other = "conflict-one", "conflict-other"
    for key in (one, other):
        await shared_service.ended(await shared_service.run("x", key))
    session_id = (await shared_service.session(one))["sessionId"]
    with nothing_stored(shared_service):
        check_problem(await shared_service.post("x", other, sessionId=session_id), 409, "session-conflict")
        check_problem(await shared_service.post("x", "conflict-new", sessionId=session_id), 409, "session-conflict")
    fitting = await shared_service.post("x", one, sessionId=session_id)
    alone = await shared_service.post("y", sessionId=session_id)
    for answer in (fitting, alone):
        assert answer.status == 202 and (answer.body["sessionKey"], answer.body["sessionId"]) == (one, session_id)
        await shared_service.ended(answer.run_id)


GOOD: list[dict[str, Any]] = [
    {"message": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"sessionKey": "k"},
    {"sessionKey": "K" * 256},
    {"sessionKey": "aA0._:@+~-"},
    {"sessionKey": "..."},
    {"sessionKey": "agent:main:cron"},
    {"sessionKey": "agent:main:CRON:x"},
    {"sessionKey": "cron:x"},
    {"sessionId": None, "agent": None, "model": None, "thinking": None, "timeoutSeconds": None, "label": None},
    {"agent": "main"},
    {"model": "test:scripted"},
    *({"thinking": level} for level in ("off", "minimal", "low", "medium", "high", "xhigh")),
    *({"reasoning": mode} for mode in ("off", "on", "stream")),
    {"queue": {}},
    {"queue": {"mode": None, "cap": None}},
    {"queue": {"mode": "followup", "cap": 1}},
    {"queue": {"cap": 10_000}},
    {"timeoutSeconds": 0},
    {"timeoutSeconds": 31_536_000},
    {"timeoutSeconds": 599.5},
    {"extraSystemPrompt": "x" * 100_000},
    {"replyRequired": False},
    {"metadata": {"a": "x" * (16_384 - len('{"a":""}'))}},
    {"metadata": {"a": [1, 1.5, None, True, {"": "\0"}], "z": -(2**63), "y": 2**64 - 1}},
    {"label": "x" * 256},
]


async def test_values_at_their_bounds_are_taken(shared_service: Service) -> None:
    """What is yours comes back as it was given."""
    for fields in GOOD:
        body = {"message": "x", "sessionKey": "good-fields", **fields}
        answer = await shared_service.request("POST", RUNS, json=body)
        assert answer.status == 202, f"{shown(fields)}: {answer.status} {answer.body}"
        record = await shared_service.ended(answer.run_id)
        assert record["status"] == "succeeded", f"{shown(fields)}: {record}"
        assert record["metadata"] == body.get("metadata", {}), fields
        assert record["label"] == body.get("label"), fields
        assert record["sessionKey"] == body["sessionKey"], fields


async def test_without_a_session_it_is_the_main_one(shared_service: Service) -> None:
    bare = await shared_service.post("x")
    named = await shared_service.post("y", agent="main")
    assert bare.body["sessionKey"] == named.body["sessionKey"] == "agent:main:main"
    assert bare.body["sessionId"] == named.body["sessionId"]
    for answer in (bare, named):
        await shared_service.ended(answer.run_id)
