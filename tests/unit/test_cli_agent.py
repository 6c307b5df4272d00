"""`laneway agent` against a service that cuts, refuses, restarts and takes text back."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.stream import Event, RunStream, StreamError, TimedOut
from tests.kit.environment import clean_environ
from tests.unit.fake_service import RUN, Answer, FakeService, accepted, block, delta, done, end, problem

HELLO = [accepted(), delta(1, "Hel", 0), delta(2, "lo", 3), end(3, "Hello"), done(5)]


def command(url: str, *args: str) -> list[str]:
    return [sys.executable, "-m", "app.cli", "agent", "hi", "--url", url, *args]


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return clean_environ({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}) | more


def ask(tmp_path: Path, service: FakeService, *args: str) -> subprocess.CompletedProcess[str]:
    """The command in a pipe."""
    return subprocess.run(
        command(service.url, *args),
        cwd=tmp_path,
        env=environ(tmp_path),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def ask_on_terminal(tmp_path: Path, service: FakeService) -> str:
    """The command with a terminal for all three streams; what the terminal got."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        command(service.url),
        cwd=tmp_path,
        env=environ(tmp_path, TERM="xterm-256color"),
        stdin=other,
        stdout=other,
        stderr=other,
    )
    os.close(other)
    got = b""
    try:
        while select.select([main], [], [], 60)[0]:
            piece = os.read(main, 65536)
            if not piece:
                break
            got += piece
    except OSError:
        pass  # the other side is closed: the process has ended
    finally:
        os.close(main)
        process.wait(60)
    return got.decode()


def test_one_post_streams_the_reply(tmp_path: Path) -> None:
    with FakeService(Answer(HELLO)) as service:
        result = ask(
            tmp_path, service, "--session", "agent:x:1", "--agent", "x", "--model", "demo", "--thinking", "low",
            "--timeout", "60",
        )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (0, "Hello\n", "")
    (request,) = service.requests
    assert (request.method, request.path) == ("POST", "/api/v1/runs")
    assert request.headers["accept"] == "text/event-stream"
    assert 1 <= len(request.headers["idempotency-key"]) <= 256
    assert request.body == {
        "message": "hi",
        "sessionKey": "agent:x:1",
        "agent": "x",
        "model": "demo",
        "thinking": "low",
        "timeoutSeconds": 60,
    }


def test_only_what_was_said_is_sent(tmp_path: Path) -> None:
    with FakeService(Answer(HELLO)) as service:
        ask(tmp_path, service)
    assert service.requests[0].body == {"message": "hi"}


def test_a_cut_in_the_middle_loses_and_repeats_nothing(tmp_path: Path) -> None:
    half = block("assistant", {"messageId": "m1", "delta": "half", "offset": 3}, 2)[:-30]
    first = Answer([accepted(), delta(1, "Hel", 0), half], cut=True)
    second = Answer([block("ready", {"cursor": "1", "heartbeatSeconds": 15}, 1), delta(2, "lo", 3)])
    third = Answer([end(3, "Hello"), done(5)])
    with FakeService(first, second, third) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    assert [(r.method, r.path, r.headers.get("last-event-id")) for r in service.requests] == [
        ("POST", "/api/v1/runs", None),
        ("GET", f"/api/v1/runs/{RUN}/events", "1"),
        ("GET", f"/api/v1/runs/{RUN}/events", "2"),
    ]


def test_a_cut_before_the_answer_posts_the_same_again(tmp_path: Path) -> None:
    with FakeService(Answer(unanswered=True), Answer(HELLO)) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    first, second = service.requests
    assert (first.method, second.method) == ("POST", "POST")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body


def test_the_run_is_known_from_the_head_of_the_answer(tmp_path: Path) -> None:
    first = Answer([], headers={"Location": f"/api/v1/runs/{RUN}"}, cut=True)
    with FakeService(first, Answer(HELLO[1:])) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    assert service.requests[1].path == f"/api/v1/runs/{RUN}/events"
    assert "last-event-id" not in service.requests[1].headers


def test_an_empty_answer_of_a_proxy_and_its_502_are_no_end(tmp_path: Path) -> None:
    first = Answer([accepted(), delta(1, "Hel", 0)], cut=True)
    with FakeService(
        first, Answer([]), Answer([b"bad"], 502), Answer([delta(2, "lo", 3), end(3, "Hello"), done(5)])
    ) as s:
        result = ask(tmp_path, s)
    assert (result.returncode, result.stdout) == (0, "Hello\n")


def test_204_is_the_end(tmp_path: Path) -> None:
    first = Answer([accepted(), delta(1, "Hello", 0), end(2, "Hello")], cut=True)
    wait = Answer(
        [json.dumps({"runId": RUN, "status": "ok", "waitExpired": False}).encode()],
        headers={"Content-Type": "application/json"},
    )
    with FakeService(first, Answer(status=204), wait) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    assert service.requests[2].path == f"/api/v1/runs/{RUN}/wait?timeoutMs=0"


def test_what_was_taken_back_never_reaches_a_pipe(tmp_path: Path) -> None:
    reset = block("assistant", {"messageId": "m1", "phase": "reset"}, 2)
    pieces = [accepted(), delta(1, "wrong", 0), reset, delta(3, "right", 0, "m2"), end(4, "right", "m2"), done(6)]
    with FakeService(Answer(pieces)) as service:
        assert ask(tmp_path, service).stdout == "right\n"


def test_numbers_that_were_not_kept_take_back_unfinished_messages(tmp_path: Path) -> None:
    resumed = block("lifecycle", {"phase": "resumed", "attempt": 2}, 40, notKept={"fromSeq": 2, "toSeq": 39})
    pieces = [accepted(), delta(1, "wrong", 0), resumed, delta(41, "right", 0, "m2"), end(42, "right", "m2"), done(44)]
    with FakeService(Answer(pieces)) as service:
        assert ask(tmp_path, service).stdout == "right\n"


def test_on_a_terminal_a_reset_starts_again_on_a_new_line(tmp_path: Path) -> None:
    reset = block("assistant", {"messageId": "m1", "phase": "reset"}, 2)
    pieces = [accepted(), delta(1, "wrong", 0), reset, delta(3, "right", 0), end(4, "right"), done(6)]
    with FakeService(Answer(pieces)) as service:
        screen = ask_on_terminal(tmp_path, service)
    wrong, note, right = (
        screen.index("wrong\r\n"),
        screen.index("starting this message again"),
        screen.index("right\r\n"),
    )
    assert wrong < note < right


def test_a_terminal_gets_no_control_characters_from_the_model(tmp_path: Path) -> None:
    text = "a\x1b]0;owned\x07b\x9b31mc\x08\r\td\n"
    with FakeService(Answer([accepted(), delta(1, text, 0), end(2, text), done(4)])) as service:
        screen = ask_on_terminal(tmp_path, service)
    assert "a]0;ownedb31mc\td\r\n" in screen


def test_a_pipe_gets_the_text_as_it_is(tmp_path: Path) -> None:
    text = "line\u2028sep\u0085nel\x0bvt \x1b[1m\U0001f600 end"
    with FakeService(Answer([accepted(), delta(1, text, 0), end(2, text), done(4)])) as service:
        assert ask(tmp_path, service).stdout == text + "\n"


def test_any_line_ends_and_data_of_several_lines(tmp_path: Path) -> None:
    envelope = json.dumps({"stream": "assistant", "data": {"messageId": "m", "delta": "x", "offset": 0}}, indent=1)
    spread = "id: 1\nevent: assistant\n" + "".join(f"data: {line}\n" for line in envelope.splitlines()) + "\n"
    pieces = b"".join(
        [accepted().replace(b"\n", b"\r\n"), spread.encode().replace(b"\n", b"\r"), end(2, "x", "m"), done(4)]
    )
    bytewise = [bytes([byte]) for byte in pieces]
    with FakeService(Answer(bytewise)) as service:
        assert ask(tmp_path, service).stdout == "x\n"


def test_messages_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    pieces = [accepted(), delta(1, "one", 0), end(2, "one"), delta(3, "two", 0, "m2"), end(4, "two", "m2"), done(6)]
    with FakeService(Answer(pieces)) as service:
        assert ask(tmp_path, service).stdout == "one\ntwo\n"


def test_history_that_is_gone_is_made_good_by_the_snapshot(tmp_path: Path) -> None:
    first = [accepted(), delta(1, "one", 0), end(2, "one"), delta(3, "tw", 0, "m2")]
    gap = block("gap", {"reason": "unknown-cursor", "oldestSeq": 1}, 9)
    messages = [
        {"messageId": "m1", "stream": "assistant", "text": "one", "ended": True},
        {"messageId": "m2", "stream": "thinking", "text": "hm", "ended": True},
        {"messageId": "m2", "stream": "assistant", "text": "two", "ended": True},
        {"messageId": "m3", "stream": "assistant", "text": "thr", "ended": False},
    ]
    snapshot = block("snapshot", {"runs": [{"runId": RUN, "messages": messages}]}, 9)
    rest = [delta(10, "ee", 3, "m3"), end(11, "three", "m3"), done(13)]
    with FakeService(Answer([*first, gap, snapshot, *rest])) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout) == (0, "one\ntwo\nthree\n")


def test_history_that_is_gone_is_made_good_by_the_reply(tmp_path: Path) -> None:
    gap = block("gap", {"reason": "retention", "oldestSeq": 9}, 8)
    reply = {"payloads": [{"kind": "text", "text": "whole"}]}
    gone = block("snapshot", {"runs": []}, 8)
    with FakeService(Answer([accepted(), delta(1, "who", 0), gap, gone, done(10, reply=reply)])) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout) == (0, "whole\n")
    assert "no longer kept" in result.stderr


def test_a_restart_is_waited_for(tmp_path: Path) -> None:
    down = block("shutdown", {"reason": "restart", "restartExpectedMs": 200}, retry_ms=100)
    with FakeService(Answer([accepted(), delta(1, "Hel", 0), down]), Answer([delta(2, "lo", 3), done(5)])) as service:
        started = time.monotonic()
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    assert "going down" in result.stderr
    assert time.monotonic() - started > 0.2


@pytest.mark.parametrize(
    ("last", "code", "line"),
    [
        (
            done(
                2,
                "error",
                error={"code": "provider-auth", "message": "The key is wrong.", "retryable": False},
                reply={"payloads": [{"kind": "error", "text": "The key is wrong.", "code": "provider-auth"}]},
            ),
            1,
            "laneway: The key is wrong. [provider-auth]\n",
        ),
        (
            done(2, "timeout", error={"code": "timed-out", "message": "Over its limit."}),
            124,
            "laneway: Over its limit. [timed-out]\n",
        ),
        (done(2, "error"), 1, "laneway: the run failed [error]\n"),
    ],
)
def test_how_the_run_ended_is_the_exit_code(tmp_path: Path, last: bytes, code: int, line: str) -> None:
    with FakeService(Answer([accepted(), last])) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", line)


def test_a_refusal_is_one_line(tmp_path: Path) -> None:
    errors = [{"detail": "unknown field", "pointer": "#/queue/mode"}]
    with FakeService(problem(422, "validation-failed", "The body is\nwrong.", errors=errors)) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "laneway: The body is wrong. (#/queue/mode: unknown field) [validation-failed]\n"


@pytest.mark.parametrize("code", ["queue-full", "draining"])
def test_a_full_queue_and_a_draining_service_are_told_at_once(tmp_path: Path, code: str) -> None:
    with FakeService(problem(503, code, "Not now.")) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stderr) == (1, f"laneway: Not now. [{code}]\n")


def test_a_busy_store_is_asked_again_with_the_same_key(tmp_path: Path) -> None:
    with FakeService(problem(503, "store-busy", "Busy.", retryAfterMs=20, runId=RUN), Answer(HELLO)) as service:
        result = ask(tmp_path, service)
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    assert len({request.headers["idempotency-key"] for request in service.requests}) == 1


def test_nothing_listens_there(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        result = subprocess.run(
            command(url), cwd=tmp_path, env=environ(tmp_path), capture_output=True, text=True, timeout=60, check=False
        )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"laneway: No Laneway answers on {url}; start one with `make run` or `laneway serve`\n"


def test_another_service_on_the_port_is_told(tmp_path: Path) -> None:
    with FakeService(Answer([b"<html>"], headers={"Content-Type": "text/html"})) as service:
        result = ask(tmp_path, service)
    assert result.returncode == 1
    assert "does not answer as Laneway does" in result.stderr


@pytest.mark.parametrize(
    "args", [["--thinking", "lots"], ["--timeout", "-1"], ["--timeout", "x"], ["--url", "nowhere"]]
)
def test_wrong_usage(tmp_path: Path, args: list[str]) -> None:
    result = subprocess.run(
        command("http://127.0.0.1:1", *args),
        cwd=tmp_path,
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2


def test_an_empty_message_is_wrong_usage(tmp_path: Path) -> None:
    args = [sys.executable, "-m", "app.cli", "agent", " "]
    assert subprocess.run(args, cwd=tmp_path, env=environ(tmp_path), capture_output=True, check=False).returncode == 2


def test_the_url_is_taken_from_the_environment_past_a_proxy(tmp_path: Path) -> None:
    with FakeService(Answer(HELLO)) as service:
        surroundings = environ(tmp_path, LANEWAY_URL=service.url + "/", HTTP_PROXY="http://127.0.0.1:1")
        args = [sys.executable, "-m", "app.cli", "agent", "hi"]
        result = subprocess.run(args, cwd=tmp_path, env=surroundings, capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, b"Hello\n")


def test_events_as_json_lines(tmp_path: Path) -> None:
    beat = block("heartbeat", {}, 1)
    with FakeService(Answer([accepted(), delta(1, "ü\u2028", 0), beat, done(3)])) as service:
        result = ask(tmp_path, service, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    lines: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.split("\n") if line]
    assert [line["stream"] for line in lines] == ["accepted", "assistant", "done"]
    assert lines[1]["data"]["delta"] == "ü\u2028"


def test_ctrl_c_aborts_the_run(tmp_path: Path) -> None:
    with FakeService(Answer([accepted(), delta(1, "Hel", 0)], hold=True)) as service:
        process = subprocess.Popen(
            command(service.url, "--json"),
            cwd=tmp_path,
            env=environ(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background jobs, and what they start, do not listen to Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - one thread here
        )
        assert process.stdout is not None
        assert "accepted" in process.stdout.readline() and "Hel" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "aborted\n"
    assert (service.requests[-1].method, service.requests[-1].path) == ("POST", f"/api/v1/runs/{RUN}/abort")


def follow(service: FakeService, **options: Any) -> list[Event]:
    with httpx.Client(base_url=service.url, trust_env=False) as client:
        return list(RunStream(client, {"message": "hi"}, "key", **options).events())


def test_a_run_whose_answer_never_came_is_aborted_too() -> None:
    answers = [Answer(unanswered=True), Answer([b"{}"], 202, {"Location": f"/api/v1/runs/{RUN}"})]
    with FakeService(*answers) as service, httpx.Client(base_url=service.url, trust_env=False) as client:
        stream = RunStream(client, {"message": "hi"}, "key", deadline_s=0.2)
        with pytest.raises(TimedOut):
            list(stream.events())
        stream.abort()
    assert {request.headers["idempotency-key"] for request in service.requests[:2]} == {"key"}
    assert service.requests[2].path == f"/api/v1/runs/{RUN}/abort"


def test_nothing_is_posted_only_to_be_aborted() -> None:
    with FakeService() as service, httpx.Client(base_url=service.url, trust_env=False) as client:
        RunStream(client, {"message": "hi"}, "key").abort()
    assert service.requests == []


def test_a_service_that_says_nothing_is_left_at_the_deadline() -> None:
    with FakeService(Answer([accepted()], hold=True)) as service, pytest.raises(TimedOut):
        follow(service, deadline_s=0.3)


def test_silence_longer_than_three_heartbeats_is_a_dead_connection() -> None:
    ready = block("ready", {"cursor": "1", "status": "running", "heartbeatSeconds": 0.05}, 1)
    first = Answer([accepted(), delta(1, "Hel", 0)], cut=True)
    # The first stream tells no heartbeat, the second does, and the third is dead without an error.
    answers = [first, Answer([ready], cut=True), Answer([ready], hold=True), Answer([delta(2, "lo", 3), done(5)])]
    with FakeService(*answers) as service:
        names = [event.name for event in follow(service, deadline_s=20)]
    assert names == ["accepted", "assistant", "ready", "ready", "assistant", "done"]


def test_a_run_that_is_gone_ends_the_following() -> None:
    answers = [Answer([accepted()], cut=True), problem(404, "run-not-found", "No such run.")]
    with FakeService(*answers) as service, pytest.raises(StreamError, match="run-not-found"):
        follow(service)
