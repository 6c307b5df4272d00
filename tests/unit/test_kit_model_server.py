"""The scripted model, seen by a plain HTTP client: bytes, borders, holds, ends, strictness, what it records."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from tests.kit.model_server import (
    ModelServer,
    Reply,
    ReplySource,
    Request,
    comment,
    cut,
    data,
    delay_headers,
    done,
    echo,
    end,
    error,
    finish,
    headers,
    hold,
    pause,
    raw,
    recut,
    reply_calls,
    reply_text,
    reset,
    stay_open,
    text,
    thinking,
    tool_call,
    unframed,
    usage,
)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as one:
        yield one


def body_of(words: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": words}], **more}


def ask(server: ModelServer, words: str = "hello", **more: Any) -> httpx.Response:
    url = server.base_url + "/chat/completions"
    return httpx.post(url, json=body_of(words, **more), trust_env=False, timeout=10)


def said(content: bytes) -> str:
    """The text of a stream's chunks."""
    lines = [line.removeprefix(b"data: ") for line in content.split(b"\n") if line.startswith(b"data: {")]
    deltas = [choice["delta"] for line in lines for choice in orjson.loads(line)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_default_reply_is_an_echo_with_usage_and_end_mark(server: ModelServer) -> None:
    answer = ask(server, "say this back")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert said(answer.content) == "say this back"
    assert answer.content.endswith(b"data: [DONE]\n\n")
    assert b'"usage":{' in answer.content
    assert server.requests[0].status == 200
    server.check()


def test_numbered_replies_then_function_then_default(server: ModelServer) -> None:
    def numbered(request: Request) -> Reply:
        return reply_text(f"number {request.number}")

    replies: list[ReplySource] = [reply_text("one"), numbered]
    server.script(replies)
    server.script(reply_text("three"))
    answers = [said(ask(server).content) for _ in range(4)]
    assert answers == ["one", "number 2", "three", "hello"]
    server.script(lambda request: reply_text("picked") if "pick" in request.last_user_text else None)
    assert said(ask(server, "pick me").content) == "picked"
    assert said(ask(server, "leave me").content) == "leave me"


def test_marker_rules_in_turn_newest_rule_first(server: ModelServer) -> None:
    server.on("red", reply_text("r1"), reply_text("r2"))
    server.on("blue", reply_text("b1"), once=True)
    assert [said(ask(server, "a red one").content) for _ in range(3)] == ["r1", "r2", "r2"]
    assert [said(ask(server, "blue").content) for _ in range(2)] == ["b1", "blue"]
    server.on("red", reply_text("new"))
    assert said(ask(server, "red").content) == "new"
    assert server.requests[-1].marker == "red"


def test_a_mixture_of_steps_and_replies_is_refused(server: ModelServer) -> None:
    with pytest.raises(TypeError):
        server.script([text("a"), reply_text("b")])  # type: ignore[arg-type]


def test_each_piece_is_one_http_chunk(server: ModelServer) -> None:
    server.script([[raw(b"ab", b"c"), text("x"), raw(b"\xf0\x9f"), raw(b"\x98\x80")]])
    answer = plain_socket(server, body_of("hi"))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    chunks = unchunk(rest)
    assert chunks[:2] == [b"ab", b"c"]
    assert chunks[2].startswith(b"data: {") and chunks[3:] == [b"\xf0\x9f", b"\x98\x80"]


def test_recut_keeps_the_bytes_and_moves_the_borders(server: ModelServer) -> None:
    whole = "日本 привет 😀"
    server.script([[recut(text(whole), finish(), done(), size=1)]])
    answer = plain_socket(server, body_of("hi"))
    chunks = unchunk(answer.partition(b"\r\n\r\n")[2])
    assert all(len(chunk) == 1 for chunk in chunks)
    assert said(b"".join(chunks)) == whole


def test_close_delimited_body(server: ModelServer) -> None:
    server.script([[headers(200, {"content-type": "text/event-stream"}, framing="close"), text("a"), done()]])
    answer = plain_socket(server, body_of("hi"), read_to_end=True)
    assert b"chunked" not in answer and said(answer) == "a" and answer.endswith(b"[DONE]\n\n")


def test_status_headers_and_error_bodies(server: ModelServer) -> None:
    server.script([error(429, "slow down", kind="rate_limit_error", fields={"retry-after": "7"})])
    server.script([headers(200, {"content-type": "text/html"}), raw(b"<html>")])
    refused = ask(server)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert ask(server).text == "<html>"
    assert [request.status for request in server.requests] == [429, 200]


def test_delayed_headers_and_headers_before_silence(server: ModelServer) -> None:
    server.script([[delay_headers(0.2), text("a")], [headers(), pause(0.2), text("a")]])
    before = time.monotonic()
    ask(server)
    ask(server)
    late, early = server.requests
    assert late.first_byte_at is not None and late.first_byte_at - before >= 0.2
    assert early.first_byte_at is not None and early.first_byte_at - early.arrived_at < 0.15
    assert early.ended_at is not None and early.ended_at - early.arrived_at >= 0.2


def test_reset_comes_after_the_bytes_before_it(server: ModelServer) -> None:
    server.script([[text("a" * 100_000), reset()]])
    came = b""
    with pytest.raises(httpx.ReadError), stream_of(server) as answer:
        for piece in answer.iter_raw():
            came += piece
    assert said(came) == "a" * 100_000


def test_cut_closes_inside_the_body(server: ModelServer) -> None:
    server.script([[text("a"), cut(), text("never")]])
    with pytest.raises(httpx.RemoteProtocolError), stream_of(server) as answer:
        answer.read()


def test_end_leaves_out_the_rest_and_keeps_the_connection(server: ModelServer) -> None:
    server.script([[text("a"), end(), text("never")], reply_text("b")])
    with httpx.Client(trust_env=False) as client:
        url = server.base_url + "/chat/completions"
        assert said(client.post(url, json=body_of("1")).content) == "a"
        assert said(client.post(url, json=body_of("2")).content) == "b"
        assert server.connections == 1


def test_bytes_outside_the_framing_break_http(server: ModelServer) -> None:
    server.script([[text("a"), unframed(b"zz\r\nnot a chunk\r\n")]])
    with pytest.raises(httpx.RemoteProtocolError), stream_of(server) as answer:
        answer.read()


def test_stay_open_behind_the_end_mark(server: ModelServer) -> None:
    server.script([[text("a"), done(), stay_open(0.3)]])
    before = time.monotonic()
    with stream_of(server) as answer:
        pieces = answer.iter_raw()
        came = b""
        while b"[DONE]" not in came:
            came += next(pieces)
        assert time.monotonic() - before < 0.25
    server.wait(lambda: server.requests[0].disconnected_at is not None, "disconnect")


async def test_hold_waits_for_release_and_counts_in_flight(server: ModelServer) -> None:
    server.default([text("a"), hold("gate"), text("b"), done()])
    async with httpx.AsyncClient(trust_env=False) as client:
        url = server.base_url + "/chat/completions"
        posts = [asyncio.create_task(client.post(url, json=body_of(f"[s:{name}] x"))) for name in ("u", "u", "v")]
        await server.until_held("gate", 3)
        assert server.held("gate") == 3
        assert (server.in_flight["u"], server.in_flight["v"], server.in_flight.total()) == (2, 1, 3)
        server.release("gate")
        answers = await asyncio.gather(*posts)
    assert [said(answer.content) for answer in answers] == ["ab"] * 3
    await server.until_idle()
    assert (server.max_in_flight["u"], server.max_in_flight_total) == (2, 3)
    with pytest.raises(AssertionError, match="one session"):
        server.check()
    assert len(server.requests_of("u")) == 2
    server.rearm("gate")
    with pytest.raises(httpx.ReadTimeout):
        await asyncio.to_thread(httpx.post, url, json=body_of("y"), timeout=0.2, trust_env=False)


async def test_a_client_that_left_is_not_in_flight_for_its_successor(server: ModelServer) -> None:
    server.default([text("a"), hold("never")])
    for _ in range(50):
        await asyncio.to_thread(plain_socket, server, body_of("[s:one] x"), until=b"content-type")
    assert server.max_in_flight["one"] == 1
    await server.until(lambda: all(request.disconnected_at for request in server.requests), "all disconnects")
    server.release("never")


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "no message"),
        ([{"role": "system", "content": "s"}], "no message"),
        ([{"role": "assistant", "content": "a"}], "not of the user"),
        ([{"role": "user", "content": "u"}, {"role": "assistant", "content": ""}], "neither text nor calls"),
        ([{"role": "user", "content": "u"}, {"role": "tool", "tool_call_id": "1", "content": ""}], "no assistant"),
        ([{"role": "user", "content": "u"}, "call 1 2", "result 1"], "followed by results"),
        ([{"role": "user", "content": "u"}, "call 1 2", "result 2", "result 1"], "followed by results"),
        ([{"role": "user", "content": "u"}, "call 1", "result 1", "result 1"], "followed by results"),
        ([{"role": "user", "content": "u"}, "call 1 1", "result 1", "result 1"], "repeated"),
        ([{"role": "user", "content": "u"}, "broken 1", "result 1"], "not JSON"),
        ([{"role": "user", "content": "u"}, "call 1", {"role": "user", "content": "!"}, "result 1"], "followed by"),
        ([{"role": "critic", "content": "u"}, {"role": "user", "content": "u"}], "unknown role"),
    ],
)
def test_strict_mode_refuses_what_providers_refuse(server: ModelServer, messages: list[Any], fault: str) -> None:
    server.script([reply_text("not used up")])
    answer = ask(server, messages=[written_out(message) for message in messages])
    assert answer.status_code == 400
    assert fault in answer.json()["error"]["message"]
    assert fault in " ".join(violation.fault for violation in server.violations)
    with pytest.raises(AssertionError):
        server.check()
    assert said(ask(server).content) == "not used up"


def test_strict_mode_takes_valid_rounds(server: ModelServer) -> None:
    talk = ["call 1 2", "result 1", "result 2", "call 3", "result 3"]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    messages += [written_out(message) for message in talk]
    messages += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "again"}]
    assert ask(server, messages=messages).status_code == 200
    request = server.requests[0]
    assert request.last_user_text == "again" and request.user_texts == ["u", "again"]
    assert request.tool_results == ["r1", "r2", "r3"]
    server.check()


def test_strictness_can_be_off() -> None:
    with ModelServer(strict=False) as server:
        assert ask(server, messages=[{"role": "tool", "tool_call_id": "x", "content": ""}]).status_code == 200
        assert not server.violations


def test_a_reply_function_that_raises_is_told(server: ModelServer) -> None:
    def broken(request: Request) -> None:
        raise LookupError(request.last_user_text)

    server.script(broken)
    assert ask(server).status_code == 500
    with pytest.raises(AssertionError, match="raised"):
        server.check()


def test_pieces_of_calls_thinking_comments_and_errors(server: ModelServer) -> None:
    call = tool_call("c1", "look", {"at": "sky"}, pieces=3)
    server.script([[comment(), thinking("hm"), call, usage(7, 3), data({"error": {"message": "x"}}), finish("length")]])
    content = ask(server).content
    values = [orjson.loads(line[6:]) for line in content.split(b"\n") if line.startswith(b"data: {")]
    calls = [value["choices"][0]["delta"]["tool_calls"][0] for value in values[1:5]]
    assert values[0]["choices"][0]["delta"] == {"reasoning_content": "hm"}
    assert [call.get("id") for call in calls] == ["c1", None, None, None]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"at":"sky"}'
    assert values[5]["usage"]["total_tokens"] == 10 and values[6] == {"error": {"message": "x"}}
    assert values[7]["choices"][0]["finish_reason"] == "length"
    assert content.startswith(b": keep-alive\n\n")


def test_a_request_without_stream_gets_a_plain_completion(server: ModelServer) -> None:
    server.script([reply_calls(("a", "look", {"x": 1}), ("b", "hear", "{}"), words="wait")])
    message = ask(server, stream=False).json()["choices"][0]["message"]
    assert message["content"] == "wait"
    assert [call["id"] for call in message["tool_calls"]] == ["a", "b"]
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"x":1}'}


def test_models_and_unknown_paths(server: ModelServer) -> None:
    assert httpx.get(server.base_url + "/models", trust_env=False).json()["data"][0]["id"] == "scripted"
    assert httpx.get(server.base_url + "/nothing", trust_env=False).status_code == 404


async def test_many_connections_at_once(server: ModelServer) -> None:
    server.default([hold("all"), *reply_text("ok", deltas=1)])
    limits = httpx.Limits(max_connections=300)
    async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=30, verify=False) as client:
        url = server.base_url + "/chat/completions"
        posts = [asyncio.create_task(client.post(url, json=body_of(f"[s:{at}] x"))) for at in range(300)]
        await server.until_held("all", 300, 20)
        server.release("all")
        answers = await asyncio.gather(*posts)
    assert all(said(answer.content) == "ok" for answer in answers)
    assert server.max_in_flight_total == 300
    server.check()


def test_pace_of_many_deltas(server: ModelServer) -> None:
    server.default(reply_text("x" * 2000, deltas=2000, delay_s=0.001))
    before = time.monotonic()
    assert said(ask(server).content) == "x" * 2000
    assert 1.9 < time.monotonic() - before < 6


def test_echo_of_many_sessions_keeps_numbers_rising(server: ModelServer) -> None:
    server.default(echo(1))
    for at in range(20):
        ask(server, f"m{at}")
    assert [request.number for request in server.requests] == list(range(1, 21))
    server.clear()
    assert not server.requests
    ask(server)
    assert server.requests[0].number == 21


def stream_of(server: ModelServer) -> Any:
    return httpx.stream("POST", server.base_url + "/chat/completions", json=body_of("hi"), trust_env=False, timeout=10)


def plain_socket(
    server: ModelServer, body: dict[str, Any], *, read_to_end: bool = False, until: bytes = b"\r\n0\r\n\r\n"
) -> bytes:
    content = orjson.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(head.encode() + content)
        came = b""
        while read_to_end or until not in came:
            piece = connection.recv(65536)
            if not piece:
                break
            came += piece
    return came


def unchunk(rest: bytes) -> list[bytes]:
    chunks: list[bytes] = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            break
        chunks.append(rest[:length])
        rest = rest[length + 2 :]
    return chunks


def written_out(message: Any) -> Any:
    """`call 1 2`: an assistant message with these calls; `result 1`: a tool message; `broken 1`: arguments cut."""
    if not isinstance(message, str):
        return message
    kind, *ids = message.split()
    if kind == "result":
        return {"role": "tool", "tool_call_id": ids[0], "content": f"r{ids[0]}"}
    arguments = "{}" if kind == "call" else '{"a":'
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": arguments}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}
