# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""EtcdWatch: etcd's stream of changes, read by ourselves.

etcd3gw's own watch drops the reason why a stream ended, and so would turn a compaction into a gap. A stream that ends
otherwise is opened again after the last change that was given out.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvstore.cluster.engine import Change, KeyValue, Watch
from kvstore.errors import EngineError, StaleError

if TYPE_CHECKING:
    from kvstore.cluster.etcd import EtcdEngine

# Changes a watch holds that nobody polls: far more than there are keys.
_QUEUE_MAX = 100_000
# A poll may be asked to wait for longer than Python can.
_WAIT_S_MAX = 86400.0


def _decode(text: str | None) -> bytes:
    return base64.b64decode(text or "")


def key_value(found: dict[str, Any]) -> KeyValue:
    """A key as etcd's JSON has it."""
    key = _decode(found["key"]).decode()
    return KeyValue(key, _decode(found.get("value")), int(found["mod_revision"]), int(found.get("lease", 0)))


class _Stream:
    """One answer of ``/watch``, read on a thread of its own so that a poll can end in time."""

    def __init__(self, response: Any, parse: Callable[[bytes], list[Change]], failures: tuple[type[Exception], ...]):
        self._response = response
        self._parse = parse
        self._failures: tuple[type[Exception], ...] = (
            *failures,
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        )
        self._socket = socket.socket(fileno=os.dup(response.raw.fileno()))
        self._stopped = threading.Event()
        self.events: queue.Queue[list[Change] | Exception] = queue.Queue(_QUEUE_MAX)
        threading.Thread(target=self._read, name="kvs-etcd-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        # Closing the response would wait for its reader, who waits for etcd. The end of the stream wakes it.
        with contextlib.suppress(OSError):  # the reader has closed it
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        # Whatever happens the queue ends with it: a poll must not take an end for silence.
        ended: Exception = EngineError("etcd ended the watch; it goes on with the next poll")
        try:
            for line in self._response.iter_lines():
                changes = self._parse(line) if line.strip() else []
                if changes:
                    self._put(changes)
        except StaleError as error:
            ended = error
        except self._failures as error:
            ended = EngineError(f"the watch was interrupted: {error!r}; it goes on with the next poll")
        finally:
            self._response.close()
            self._socket.close()
            self._put(ended)

    def _put(self, event: list[Change] | Exception) -> None:
        # Full: nobody polls. Then etcd is not read from either, until somebody does.
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self.events.put(event, timeout=0.2)
                return


class EtcdWatch(Watch):
    """The changes of a range of keys after revision ``after``."""

    def __init__(self, engine: EtcdEngine, keys: dict[str, str], after: int) -> None:
        self._engine = engine
        self._keys = keys
        self._after = after
        self._stream: _Stream | None = self._connect()

    def poll(self, timeout_s: float) -> list[Change]:
        self._engine.refuse_fork()
        if self._stream is None:
            if self._engine.forgets_s > 0:
                raise StaleError(
                    f"the watch of {self._engine.text} was interrupted, and what it went on from may be forgotten "
                    "(forgets_s); make a range and a watch anew"
                )
            self._stream = self._connect()
        events: list[list[Change] | Exception] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._stream.events.get(block=timeout_s > 0, timeout=min(timeout_s, _WAIT_S_MAX)))
            while True:
                events.append(self._stream.events.get_nowait())
        changes: list[Change] = []
        for event in events:
            if isinstance(event, Exception):
                self.close()
                if not changes:
                    raise event
                break  # the next poll connects again, and meets the same reason if it lasts
            changes += event
        if changes:
            self._after = changes[-1].item.modified
        return changes

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and not self._engine.is_forked:  # the connection is the parent's there
            stream.stop()

    def _connect(self) -> _Stream:
        create = {**self._keys, "start_revision": str(self._after + 1)}
        response = self._engine.stream("/watch", {"create_request": create})
        return _Stream(response, self._parse, self._engine.failures)

    def _parse(self, line: bytes) -> list[Change]:
        message = json.loads(line)
        result = message.get("result", {})
        if int(result.get("compact_revision", 0)):
            raise StaleError(
                f"changes after revision {self._after} are not kept by {self._engine.text}: it has compacted up to "
                f"{result['compact_revision']}; make a range and a watch anew"
            )
        if "error" in message or result.get("canceled"):
            raise OSError(str(message.get("error") or result.get("cancel_reason") or "canceled"))
        return [Change(key_value(event["kv"]), event.get("type") == "DELETE") for event in result.get("events", ())]
