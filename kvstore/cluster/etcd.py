# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""EtcdEngine: etcd 3.4 or newer, for many hosts, through etcd3gw and etcd's JSON gateway.

A request goes to one endpoint after the other until one takes it. A change that may have arrived is not sent again: the
second would find its compares broken by the first, and the caller believe that somebody else did it. An endpoint that
failed is asked last from then on. Proxies that the environment names are not used.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kvstore.cluster.engine import (
    Compare,
    Erase,
    MetadataEngine,
    Operation,
    Snapshot,
    Txn,
    Watch,
    demand_txn_fits,
)
from kvstore.cluster.etcd_watch import EtcdWatch, key_value
from kvstore.errors import ConfigError, EngineError, LeaseEnded

_T = TypeVar("_T")
_PORT_MAX = 65_535


def _encode(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _end_of(prefix: str) -> bytes:
    """The first key after all those with the prefix: etcd's ``range_end``."""
    end = bytearray(prefix.encode())
    while end and end[-1] == 0xFF:
        end.pop()
    if not end:
        return b"\0"  # all keys
    end[-1] += 1
    return bytes(end)


def _keys_of(prefix: str) -> dict[str, str]:
    return {"key": _encode(prefix.encode() or b"\0"), "range_end": _encode(_end_of(prefix))}


@dataclass(frozen=True)
class Tls:
    """Files in PEM: who signed the servers' certificates (None: whom the system trusts), and the client's own."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def check(self) -> None:
        """Refuse files that are not there, and half a pair of them."""
        if (self.cert is None) != (self.key is None):
            raise ConfigError("etcd's TLS: a client's certificate and its key go together, as cert= and key=")
        for path in (self.ca, self.cert, self.key):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"etcd's TLS: there is no file {path}")


class EtcdEngine(MetadataEngine):
    """A client of one etcd cluster.

    Parameters
    ----------
    endpoints : ``host:port``, several with commas.
    timeout_s : longest time to reach an endpoint, all tries together, and for its answer then.
    forgets_s : 0, since etcd acknowledges what a majority has flushed to its disks; as much as they may lose where
        they run with ``--unsafe-no-fsync``.
    tls : None: plain HTTP, for a network of one's own.
    """

    def __init__(self, endpoints: str, *, timeout_s: float = 5.0, forgets_s: float = 0, tls: Tls | None = None) -> None:
        places = [_place(endpoint) for endpoint in endpoints.split(",")]
        if tls is not None:
            tls.check()
        try:
            import etcd3gw
            import requests
        except ImportError as error:
            raise ConfigError("etcd needs the package etcd3gw: pip install 'nvme-kvstore[etcd]'") from error
        self.failures: tuple[type[Exception], ...] = (etcd3gw.exceptions.Etcd3Exception, requests.RequestException)
        self.text = f"etcd at {endpoints}"
        self._forgets_s = forgets_s
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._requests = 0
        self._clients = []
        for host, port in places:
            session = requests.Session()
            session.trust_env = False
            if tls is not None:
                session.verify = tls.ca or True
                session.cert = (tls.cert, tls.key) if tls.cert and tls.key else None
            # etcd3gw hands on to requests what it takes for a number: here a limit to connect, and one to answer.
            limits: Any = (timeout_s / len(places), timeout_s)
            client = etcd3gw.Etcd3Client(
                host=host,
                port=port,
                protocol="http" if tls is None else "https",
                timeout=limits,
                session=session,
                api_path="/v3/",
            )
            self._clients.append(client)
        self._request(lambda client: client.status())

    @property
    def forgets_s(self) -> float:
        return self._forgets_s

    @property
    def requests(self) -> int:
        return self._requests

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Txn:
        demand_txn_fits(compares, operations)
        done = self._post("/kv/txn", {
            "compare": [self._compare(compare) for compare in compares],
            "success": [self._operation(operation) for operation in operations],
        })  # fmt: skip
        return Txn(applied=bool(done.get("succeeded", False)), revision=int(done["header"]["revision"]))

    def range(self, prefix: str) -> Snapshot:
        found = self._post("/kv/range", _keys_of(prefix))
        items = tuple(key_value(item) for item in found.get("kvs", ()))
        return Snapshot(items, int(found["header"]["revision"]))

    def watch(self, prefix: str, after: int) -> Watch:
        return EtcdWatch(self, _keys_of(prefix), after)

    def grant(self, ttl_s: float) -> int:
        # Whole seconds; etcd itself lengthens what is shorter than its elections.
        return int(self._post("/lease/grant", {"TTL": str(max(1, math.ceil(ttl_s)))})["ID"])

    def renew(self, lease: int) -> None:
        answer = self._post("/lease/keepalive", {"ID": str(lease)})
        if "result" not in answer:
            raise EngineError(f"{self.text} does not renew lease {lease}: {answer}")
        if int(answer["result"].get("TTL", 0)) <= 0:
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
                client.get_url(path), data=json.dumps(body), stream=True, timeout=client.timeout
            )
            response.raise_for_status()
            # etcd sends the head at once, within the limit of any answer; the rest may be silent for as long as it is.
            # Where the end of the answer is the end of the connection, that is not at hand, and the limit stays.
            connection = response.raw.connection
            if connection is not None and connection.sock is not None:
                connection.sock.settimeout(None)
            return response

        return self._request(post)

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child, where the connections are the parent's."""
        return os.getpid() != self._pid

    def refuse_fork(self) -> None:
        """Raise in a forked child."""
        if self.is_forked:
            raise EngineError(f"the connection to {self.text} is the parent process's: open the pool after fork")

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
        self.refuse_fork()
        with self._lock:
            clients = list(self._clients)
        errors = []
        for client in clients:
            with self._lock:
                self._requests += 1
            try:
                return call(client)
            except self.failures as error:
                text = f"{error} {getattr(error, 'detail_text', '') or ''}".strip()
                if "requested lease not found" in text:
                    raise LeaseEnded(f"a lease at {self.text} has ended, with its keys; take a new one") from error
                errors.append(f"{client.host}:{client.port}: {text}")
                self._ask_last(client)
                if not self._never_sent(error):
                    break
        raise EngineError(f"{self.text} does not answer: {'; '.join(errors)}")

    def _ask_last(self, client: Any) -> None:
        with self._lock:
            self._clients.sort(key=lambda other: other is client)

    def _never_sent(self, error: BaseException) -> bool:
        import requests

        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, requests.ConnectTimeout) or "NewConnectionError" in str(seen):
                return True
            seen = seen.__context__ if seen.__cause__ is None else seen.__cause__
        return False


def _place(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.strip().rpartition(":")
    if "@" in endpoint:
        raise ConfigError(f"etcd endpoint {endpoint!r}: user names and passwords are not supported; write host:port")
    if not _is_host(host) or re.fullmatch(r"[0-9]+", port) is None:
        raise ConfigError(f"etcd endpoint {endpoint!r} is not host:port, such as 10.0.0.1:2379 or [fd00::1]:2379")
    if len(port) > len(str(_PORT_MAX)) or not 1 <= int(port) <= _PORT_MAX:
        raise ConfigError(f"etcd endpoint {endpoint!r}: a port is from 1 to {_PORT_MAX:,}")
    return host.strip("[]"), int(port)


def _is_host(text: str) -> bool:
    if not text.startswith("["):
        return re.fullmatch(r"[A-Za-z0-9._-]+", text) is not None
    try:
        return text.endswith("]") and bool(ipaddress.IPv6Address(text[1:-1]))
    except ValueError:
        return False
