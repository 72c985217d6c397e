# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The client of ``kvstore bench ttft`` beside a server that streams as vLLM's does.

Method: an HTTP server in this process, whose answers wait for events and not for time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvstore.bench.ttft.endpoint import Endpoint, EndpointOptions
from kvstore.errors import ConfigError


class Server(ThreadingHTTPServer):
    """What it was asked, and how it answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.posted: list[str] = []
        self.reset_status, self.completion_status = 200, 200
        self.metrics = ""
        self.events = [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}]
        self.gate = threading.Barrier(1)  # so many requests have to be there before any is answered
        self.usage: dict[str, Any] = {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 7}}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/base/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/base/metrics" else 404, self.server.metrics.encode())

    def do_POST(self) -> None:
        if self.path != "/base/v1/completions":
            self.server.posted.append(self.path)
            self._answer(self.server.reset_status, b"no such path")
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        self.server.gate.wait(30)
        events = [*self.server.events, {"choices": [], "usage": self.server.usage}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self._answer(self.server.completion_status, text.encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def endpoint(server: Server, **more: Any) -> Endpoint:
    return Endpoint(EndpointOptions(server.url, "llama", settle_s=0, **more))


def test_an_answer_has_its_output_its_usage_and_a_first_token_before_its_end(server: Server) -> None:
    answers, seconds = endpoint(server).serve([[11, 12], [13]], 1, 2)
    assert [(one.output, one.tokens, one.cached_tokens) for one in answers] == [("ab", 2, 7)] * 2
    assert all(0 < one.first_token_s <= one.seconds <= seconds for one in answers)
    assert [asked["prompt"] for asked in server.asked] == [[11, 12], [13]]
    assert {(asked["model"], asked["stream"], asked["max_tokens"]) for asked in server.asked} == {("llama", True, 2)}


def test_as_many_requests_are_under_way_as_asked_for(server: Server) -> None:
    server.gate = threading.Barrier(4)  # breaks, and fails the test, unless four are there together
    answers, _ = endpoint(server).serve([[number] for number in range(8)], 4, 1)
    assert len(answers) == 8


def test_the_counters_of_all_engines_are_added_up(server: Server) -> None:
    server.metrics = "\n".join(
        [
            "# TYPE vllm:kvstore_bytes_loaded_total counter",
            'vllm:kvstore_bytes_loaded_total{engine="0"} 1024.0',
            'vllm:kvstore_bytes_loaded_total{engine="1"} 1.0',
            'vllm:kvstore_bytes_loaded_created{engine="1"} 1.7e9',
            "vllm:kvstore_load_jobs_total 3",
        ]
    )
    assert endpoint(server).counters() == {"bytes_loaded": 1025, "load_jobs": 3}


def test_to_forget_is_to_post_and_a_server_that_cannot_is_refused(server: Server) -> None:
    target = endpoint(server)
    target.forget(host=False)
    target.reopen()
    assert server.posted == ["/base/reset_prefix_cache", "/base/reset_prefix_cache?reset_external=true"]
    server.reset_status = 404
    with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
        target.forget(host=True)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"completion_status": 503}, "answers 503"),
        ({"events": []}, "before its first token"),
        ({"events": [{"error": {"message": "too long"}}]}, "too long"),
    ],
)
def test_an_answer_that_is_none_ends_the_measurement(server: Server, changed: dict[str, Any], complaint: str) -> None:
    for name, value in changed.items():
        setattr(server, name, value)
    with pytest.raises(ConfigError, match=complaint):
        endpoint(server).serve([[11]] * 4, 2, 1)


def test_a_server_that_is_not_there_is_named(server: Server) -> None:
    with pytest.raises(ConfigError, match="Connection refused"):
        Endpoint(EndpointOptions("http://127.0.0.1:9", "llama")).serve([[11]], 1, 1)
