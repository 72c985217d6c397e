# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""EtcdEngine: etcd 3.4 or newer, for many hosts, through etcd3gw and etcd's JSON gateway.

Requests go to the first endpoint that answers. The watch reads the stream itself: etcd3gw's drops the reason why one
ended, and so would turn a compaction into a gap.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kvstore.cluster.engine import Change, Compare, Erase, KeyValue, MetadataEngine, Operation, Snapshot, Txn, Watch
from kvstore.errors import ConfigError, EngineError, LeaseEnded, StaleError

_T = TypeVar("_T")
# Changes a watch holds that nobody polls: far more than there are keys.
_QUEUE_MAX = 100_000


def _encode(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _decode(text: str | None) -> bytes:
    return base64.b64decode(text or "")


def _end_of(prefix: str) -> bytes:
    """The first key after all those with the prefix: etcd's ``range_end``."""
    end = bytearray(prefix.encode())
    while end and end[-1] == 0xFF:
        end.pop()
    if not end:
        return b"\0"  # all keys
    end[-1] += 1
    return bytes(end)


def _key_value(found: dict[str, Any]) -> KeyValue:
    key = _decode(found["key"]).decode()
    return KeyValue(key, _decode(found.get("value")), int(found["mod_revision"]), int(found.get("lease", 0)))


class EtcdEngine(MetadataEngine):
    """A client of one etcd cluster.

    Parameters
    ----------
    endpoints : ``host:port``, several with commas.
    timeout_s : longest time of a request to one endpoint.
    forgets_s : 0, since etcd acknowledges what a majority has flushed to its disks; as much as they may lose where
        they run with ``--unsafe-no-fsync``.
    """

    def __init__(self, endpoints: str, *, timeout_s: float = 5.0, forgets_s: float = 0) -> None:
        try:
            import etcd3gw
            import requests
        except ImportError as error:
            raise ConfigError("etcd needs the package etcd3gw: pip install 'nvme-kvstore[etcd]'") from error
        self.failures = (etcd3gw.exceptions.Etcd3Exception, requests.RequestException)
        self.text = f"etcd at {endpoints}"
        self._forgets_s = forgets_s
        self._clients = []
        for endpoint in endpoints.split(","):
            host, _, port = endpoint.strip().rpartition(":")
            if not host or not port.isdigit():
                raise ConfigError(f"etcd endpoint {endpoint!r} is not host:port")
            self._clients.append(etcd3gw.Etcd3Client(host=host.strip("[]"), port=int(port), timeout=timeout_s))
        self._lock = threading.Lock()
        self._requests = 0
        self._request(lambda client: client.status())

    @property
    def forgets_s(self) -> float:
        return self._forgets_s

    @property
    def requests(self) -> int:
        return self._requests

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Txn:
        done = self._post("/kv/txn", {
            "compare": [self._compare(compare) for compare in compares],
            "success": [self._operation(operation) for operation in operations],
        })  # fmt: skip
        return Txn(applied=bool(done.get("succeeded", False)), revision=int(done["header"]["revision"]))

    def range(self, prefix: str) -> Snapshot:
        end = _encode(_end_of(prefix))
        found = self._post("/kv/range", {"key": _encode(prefix.encode() or b"\0"), "range_end": end})
        items = tuple(_key_value(item) for item in found.get("kvs", ()))
        return Snapshot(items, int(found["header"]["revision"]))

    def watch(self, prefix: str, after: int) -> Watch:
        create = {"key": _encode(prefix.encode() or b"\0"), "range_end": _encode(_end_of(prefix))}
        return _EtcdWatch(self, create, after)

    def grant(self, ttl_s: float) -> int:
        # Whole seconds; etcd itself lengthens what is shorter than its elections.
        return int(self._post("/lease/grant", {"TTL": str(max(1, math.ceil(ttl_s)))})["ID"])

    def renew(self, lease: int) -> None:
        if int(self._post("/lease/keepalive", {"ID": str(lease)})["result"].get("TTL", 0)) <= 0:
            raise LeaseEnded(f"lease {lease} at {self.text} has ended, with its keys; take a new one")

    def revoke(self, lease: int) -> None:
        with contextlib.suppress(LeaseEnded):
            self._post("/lease/revoke", {"ID": str(lease)})

    def close(self) -> None:
        for client in self._clients:
            client.session.close()

    def stream(self, path: str, body: dict[str, Any]) -> Any:
        """Return the open response of a request whose answer does not end."""

        def post(client: Any) -> Any:
            response = client.session.post(
                client.get_url(path), data=json.dumps(body), stream=True, timeout=(client.timeout, None)
            )
            response.raise_for_status()
            return response

        return self._request(post)

    def _compare(self, compare: Compare) -> dict[str, Any]:
        holds = {"key": _encode(compare.key.encode()), "result": "EQUAL"}
        if compare.value is None:
            return {**holds, "target": "VERSION", "version": "0"}
        # Of a key that is absent etcd lets no comparison of values hold, not even with the empty one.
        return {**holds, "target": "VALUE", "value": _encode(compare.value)}

    def _operation(self, operation: Operation) -> dict[str, Any]:
        key = _encode(operation.key.encode())
        if isinstance(operation, Erase):
            return {"request_delete_range": {"key": key}}
        return {"request_put": {"key": key, "value": _encode(operation.value), "lease": str(operation.lease)}}

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request(lambda client: client.post(client.get_url(path), data=json.dumps(body)))

    def _request(self, call: Callable[[Any], _T]) -> _T:
        # A change is sent to one endpoint only: where it was asked for twice, its compares would fail the second time,
        # and the caller believe that somebody else did it.
        with self._lock:
            clients = list(self._clients)
        errors = []
        for client in clients:
            with self._lock:
                self._requests += 1
            try:
                done = call(client)
            except self.failures as error:
                text = f"{error} {getattr(error, 'detail_text', '') or ''}".strip()
                if "requested lease not found" in text:
                    raise LeaseEnded(f"a lease at {self.text} has ended, with its keys; take a new one") from error
                errors.append(f"{client.host}:{client.port}: {text}")
                if not self._never_sent(error):
                    break
            else:
                with self._lock:
                    self._clients.sort(key=lambda other: other is not client)  # who answered is asked first
                return done
        raise EngineError(f"{self.text} does not answer: {'; '.join(errors)}")

    def _never_sent(self, error: BaseException) -> bool:
        import requests

        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, requests.ConnectTimeout) or "NewConnectionError" in str(seen):
                return True
            seen = seen.__context__ if seen.__cause__ is None else seen.__cause__
        return False


class _Stream:
    """One answer of ``/watch``, read on a thread of its own so that a poll can end in time."""

    def __init__(self, engine: EtcdEngine, response: Any, parse: Callable[[bytes], list[Change]]) -> None:
        self._failures = engine.failures
        self._response = response
        self._parse = parse
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
        ended: Exception = EngineError("etcd ended the watch; it goes on with the next poll")
        try:
            for line in self._response.iter_lines():
                changes = self._parse(line) if line.strip() else []
                if changes:
                    self._put(changes)
        except StaleError as error:
            ended = error
        except (*self._failures, OSError, ValueError) as error:
            ended = EngineError(f"the watch was interrupted: {error}; it goes on with the next poll")
        self._response.close()
        self._socket.close()
        self._put(ended)

    def _put(self, event: list[Change] | Exception) -> None:
        # Full: nobody polls. Then etcd is not read from either, until somebody does.
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self.events.put(event, timeout=0.2)
                return


class _EtcdWatch(Watch):
    def __init__(self, engine: EtcdEngine, create: dict[str, Any], after: int) -> None:
        self._engine = engine
        self._create = create
        self._after = after
        self._stream: _Stream | None = self._connect()

    def poll(self, timeout_s: float) -> list[Change]:
        if self._stream is None:
            self._stream = self._connect()
        events: list[list[Change] | Exception] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._stream.events.get(block=timeout_s > 0, timeout=timeout_s))
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
        if stream is not None:
            stream.stop()

    def _connect(self) -> _Stream:
        create = {**self._create, "start_revision": str(self._after + 1)}
        response = self._engine.stream("/watch", {"create_request": create})
        return _Stream(self._engine, response, self._parse)

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
        return [Change(_key_value(event["kv"]), event.get("type") == "DELETE") for event in result.get("events", ())]
