# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""An etcd of one's own for a test run: Debian's etcd-server on free ports, its data in a temporary folder."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

START_S_MAX = 30.0


def free_port() -> int:
    """A port below the kernel's range for outgoing connections, one of which would take it before the server does."""
    range_begins = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(range_begins // 2, range_begins), 100):
        with contextlib.suppress(OSError), socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("of 100 ports none is free")


def missing() -> str | None:
    """Why there can be none here; None when there can."""
    if shutil.which("etcd") is None:
        return "etcd is not installed: apt-get install etcd-server"
    if importlib.util.find_spec("etcd3gw") is None:
        return "etcd3gw is not installed: pip install 'nvme-kvstore[etcd]'"
    return None


class Certificates:
    """An authority, and one certificate that does for server and client, made with openssl."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.cert, self.key = (str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem"))
        ca_key, request = str(folder / "ca.key"), str(folder / "cert.csr")
        names = folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        extensions = ["-CAcreateserial", "-days", "2", "-extfile", str(names)]
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        for command in (
            ["req", "-x509", *new_key, "-keyout", ca_key, "-out", self.ca, "-subj", "/CN=authority", "-days", "2"],
            ["req", *new_key, "-keyout", self.key, "-out", request, "-subj", "/CN=etcd"],
            ["x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", ca_key, "-out", self.cert, *extensions],
        ):
            subprocess.run(["openssl", *command], check=True, capture_output=True)


class EtcdServer:
    """A server that answers at ``endpoint``, until it is killed; it starts again on the same data and ports."""

    def __init__(self, folder: Path, pki: Certificates | None = None) -> None:
        self._folder = folder
        self._pki = pki
        self._peer = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"127.0.0.1:{free_port()}"

    def __enter__(self) -> EtcdServer:
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.kill()

    def start(self) -> None:
        client = f"http{'' if self._pki is None else 's'}://{self.endpoint}"
        peer = f"http://127.0.0.1:{self._peer}"
        command = ["etcd", "--data-dir", str(self._folder / "data"), "--name", "test", "--log-level", "error"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster=test={peer}"]
        context = None
        if self._pki is not None:
            command += ["--client-cert-auth", f"--trusted-ca-file={self._pki.ca}"]
            command += [f"--cert-file={self._pki.cert}", f"--key-file={self._pki.key}"]
            context = ssl.create_default_context(cafile=self._pki.ca)
            context.load_cert_chain(self._pki.cert, self._pki.key)
        with (self._folder / "etcd.log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S_MAX
        while True:
            # It listens before it has elected itself, and does not answer until then.
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{client}/health", timeout=1, context=context) as answer,
            ):
                if json.load(answer)["health"] == "true":
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self._folder / "etcd.log").read_text()[-2000:]
                self.kill()
                raise RuntimeError(f"etcd did not start: {text}")
            time.sleep(0.05)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
