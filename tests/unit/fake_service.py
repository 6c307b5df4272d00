"""A service that answers as it was told, byte for byte, on a free loopback port; and blocks as Laneway sends them.

It can cut a connection in the middle, be silent, and refuse. It decides nothing: a test scripts every answer.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RUN = "0198c0de-0000-7000-8000-000000000001"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """One answer. `cut`: the connection dies behind the last piece. `hold`: it stays open until the service closes."""

    pieces: list[bytes] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hold: bool = False
    unanswered: bool = False


def block(
    name: str, data: dict[str, Any], event_id: int | None = None, retry_ms: int | None = 10, **more: Any
) -> bytes:
    """An event in the service's envelope."""
    envelope = {"runId": RUN, "stream": name, "ts": "2026-11-30T20:31:07.123Z", **more, "data": data}
    lines = [f"retry: {retry_ms}"] if retry_ms is not None else []
    lines += [f"id: {event_id}"] if event_id is not None else []
    lines += [f"event: {name}", f"data: {json.dumps(envelope, ensure_ascii=False)}"]
    return ("\n".join(lines) + "\n\n").encode()


def accepted() -> bytes:
    return block("accepted", {"runId": RUN, "sessionKey": "agent:main:main", "status": "queued"}, 0)


def delta(seq: int, text: str, offset: int, message: str = "m1") -> bytes:
    return block("assistant", {"messageId": message, "delta": text, "offset": offset}, seq)


def end(seq: int, text: str, message: str = "m1") -> bytes:
    data = {"messageId": message, "phase": "end", "text": text, "stopReason": "stop", "length": len(text)}
    return block("assistant", data, seq)


def done(seq: int, status: str = "ok", **more: Any) -> bytes:
    return block("done", {"runId": RUN, "status": status, "waitExpired": False, **more}, seq)


def problem(status: int, code: str, detail: str, **more: Any) -> Answer:
    document = {"title": "x", "status": status, "detail": detail, "code": code, "retryable": status == 503, **more}
    return Answer([json.dumps(document).encode()], status, {"Content-Type": "application/problem+json"})


class FakeService:
    """Gives its answers in order, whatever is asked; an abort is always answered 200."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[Request] = []
        self.answers = list(answers)
        self.closing = threading.Event()
        self.streaming = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Quiet."""

            def do_GET(self) -> None:
                self._reply(None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._reply(json.loads(body))

            def _reply(self, body: Any) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                service.requests.append(Request(self.command, self.path, headers, body))
                if self.path.endswith("/abort"):
                    answer = Answer([b'{"status":"running"}'], headers={"Content-Type": "application/json"})
                else:
                    answer = service.answers.pop(0)
                self._send(answer)

            def _send(self, answer: Answer) -> None:
                self.close_connection = True
                if answer.unanswered:
                    return
                self.send_response(answer.status)
                headers = {"Content-Type": "text/event-stream", "Connection": "close", **answer.headers}
                for name, value in headers.items():
                    self.send_header(name, value)
                if answer.status != 204:
                    self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                if answer.status == 204:
                    return
                for piece in answer.pieces:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    self.wfile.flush()
                service.streaming.set()
                if answer.hold:
                    service.closing.wait(30)
                if not answer.cut and not answer.hold:
                    self.wfile.write(b"0\r\n\r\n")

        return Handler
