# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible server: streaming ``/v1/completions``, with prompts of token numbers.

The time to the first token ends with the first event that has a choice, as the server sends one for each token. The
store's counters are read from ``/metrics``, where kvstore's doors to vLLM have them.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kvstore.bench.ttft.answers import Answer
from kvstore.errors import ConfigError

__all__ = ["Endpoint", "EndpointOptions"]

_READY_TIMEOUT_S = 900
_POLL_S = 0.5
_COUNTER = re.compile(r"^vllm:kvstore_(\w+?)_total(?:\{[^}]*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class EndpointOptions:
    """How to speak with it, and how to make it forget."""

    url: str
    model: str
    reset_gpu: str = "/reset_prefix_cache"
    reset_all: str = "/reset_prefix_cache?reset_external=true"
    restart: str = ""  # a command that starts the server anew; without it all that it can do is to forget
    settle_s: float = 1.0  # after a pass, for what it still has to store
    timeout_s: float = 600.0


class Endpoint:
    """A server that is running."""

    def __init__(self, options: EndpointOptions) -> None:
        parts = urlsplit(options.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url is {options.url}: write http://HOST:PORT")
        self._options = options
        self._parts = parts

    def facts(self) -> Mapping[str, Any]:
        options = self._options
        reopened = f"by the command {options.restart!r}" if options.restart else f"only by {options.reset_all}"
        return {"target": "endpoint", "url": options.url, "model": options.model, "started_anew": reopened}

    def serve(
        self, prompts: Sequence[Sequence[int]], concurrency: int, output_tokens: int
    ) -> tuple[list[Answer], float]:
        """A thread for each request that may be under way, each with a connection of its own."""
        answers: dict[int, Answer] = {}
        failures: list[Exception] = []
        left = iter(range(len(prompts)))
        lock = threading.Lock()

        def work() -> None:
            while not failures:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                try:
                    answers[number] = self._complete(prompts[number], output_tokens)
                except Exception as error:  # noqa: BLE001 - told by the thread that waits
                    failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(min(concurrency, len(prompts)))]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
        if failures:
            raise failures[0]
        return [answers[number] for number in range(len(prompts))], seconds

    def _complete(self, prompt: Sequence[int], output_tokens: int) -> Answer:
        body = {
            "model": self._options.model,
            "prompt": list(prompt),
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = self._connection()
        try:
            begun = time.perf_counter()
            connection.request("POST", self._path("/v1/completions"), json.dumps(body), _JSON)
            response = connection.getresponse()
            if response.status != 200:
                raise ConfigError(f"{self._options.url} answers {response.status}: {_text(response)}")
            first_s, output = None, ""
            usage: dict[str, Any] = {}
            for event in _events(response):
                if "error" in event:
                    raise ConfigError(f"{self._options.url} answers {event['error']}")
                for choice in event.get("choices", ()):
                    first_s = first_s or time.perf_counter() - begun
                    output += choice.get("text", "")
                usage = event.get("usage") or usage
            seconds = time.perf_counter() - begun
        except (OSError, http.client.HTTPException) as error:
            raise ConfigError(f"{self._options.url}: {error}") from error
        finally:
            connection.close()
        if first_s is None:
            raise ConfigError(f"{self._options.url} ended an answer before its first token")
        details = usage.get("prompt_tokens_details") or {}
        return Answer(
            first_s, seconds, usage.get("completion_tokens", output_tokens), output, details.get("cached_tokens")
        )

    def settle(self) -> None:
        """vLLM hands what it computed to the store with its next step: a request of one token makes one."""
        self._complete([11], 1)
        time.sleep(self._options.settle_s)
        self._complete([12], 1)

    def forget(self, *, host: bool) -> None:
        path = self._options.reset_all if host else self._options.reset_gpu
        status, text = self._ask("POST", path)
        if status != 200:
            raise ConfigError(
                f"{self._options.url}{path} answers {status}, so nothing would be read from the store: a vLLM server "
                f"needs VLLM_SERVER_DEV_MODE=1 for it ({text})"
            )

    def reopen(self) -> None:
        if not self._options.restart:
            self.forget(host=True)
            return
        subprocess.run(self._options.restart, shell=True, check=True)  # the user's own words
        end = time.monotonic() + _READY_TIMEOUT_S
        while self._status("/health") != 200:
            if time.monotonic() > end:
                raise ConfigError(f"{self._options.url}/health does not answer after {self._options.restart!r}")
            time.sleep(_POLL_S)

    def counters(self) -> Mapping[str, float]:
        """Added up over the engines behind the endpoint; empty where it has no such metrics."""
        status, text = self._ask("GET", "/metrics")
        totals: dict[str, float] = {}
        for name, value in _COUNTER.findall(text) if status == 200 else ():
            totals[name] = totals.get(name, 0) + float(value)
        return totals

    def _status(self, path: str) -> int:
        try:
            return self._ask("GET", path)[0]
        except ConfigError:
            return 0  # not up yet

    def _ask(self, method: str, path: str) -> tuple[int, str]:
        connection = self._connection()
        try:
            connection.request(method, self._path(path))
            response = connection.getresponse()
            return response.status, _text(response)
        except (OSError, http.client.HTTPException) as error:
            raise ConfigError(f"{self._options.url}: {error}") from error
        finally:
            connection.close()

    def _path(self, path: str) -> str:
        return self._parts.path.rstrip("/") + path

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=self._options.timeout_s)


_JSON = {"Content-Type": "application/json"}


def _text(response: http.client.HTTPResponse) -> str:
    return response.read().decode(errors="replace").strip()


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Server-sent events, up to ``[DONE]`` or the end."""
    for line in response:
        if line.startswith(b"data:"):
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                response.read()
                return
            yield json.loads(data)
