# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: does what the tests on the host say, one JSON line a request, one a reply.

A call runs in a process of its own, forked when everything is imported: process starts are slow on an emulated
processor. A call that names a worker runs in that worker's process, which stays, with what it has open. One that is not
done in its time is killed, and the reply tells where it was; one that cannot even be killed is told as such.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DIES_WITHIN_S = 30.0  # after SIGKILL; what waits in the kernel for a device may take for ever


class Worker:
    """A process that runs calls one after the other."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._stacks = tempfile.TemporaryFile()
        self.has_ended = False
        self.pid = os.fork()
        if self.pid == 0:
            self._pipe.close()
            serve_calls(theirs, self._stacks)
        theirs.close()

    def call(self, request: dict[str, Any]) -> list[Any]:
        self._pipe.send(request)
        # The worker writes its stacks down when the time is over, so it gets a little longer to do that.
        if self._pipe.poll(request["timeout_s"] + 5):
            try:
                return self._pipe.recv()
            except EOFError:
                _, status = os.waitpid(self.pid, 0)
                self.has_ended = True
                return ["error", f"the worker ended by itself: wait status {status}\n{self._told()}"]
        is_gone = self.kill()
        return ["hang", f"{'' if is_gone else 'cannot be killed: '}{self._told()}"]

    def _told(self) -> str:
        self._stacks.seek(0)
        return self._stacks.read().decode(errors="replace")

    def kill(self) -> bool:
        """False when it is still there."""
        os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + DIES_WITHIN_S
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def serve_calls(pipe: Connection, stacks: Any) -> None:
    """Never returns."""
    faulthandler.enable(stacks)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            os._exit(0)
        faulthandler.dump_traceback_later(request["timeout_s"], file=stacks)
        try:
            module, _, name = request["function"].rpartition(".")
            value = getattr(importlib.import_module(module), name)(*request["arguments"], **request["options"])
            pipe.send(["ok", value])
        except BaseException:  # noqa: BLE001  # a failed assertion is what the test wants to see, whatever it is
            pipe.send(["error", traceback.format_exc()])
        faulthandler.cancel_dump_traceback_later()


class Agent:
    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}

    def call(self, request: dict[str, Any]) -> list[Any]:
        name = request["worker"]
        worker = self._workers.get(name) or Worker()
        if name is not None:
            self._workers[name] = worker
        reply = worker.call(request)
        if reply[0] == "hang" or worker.has_ended:
            self._workers.pop(name, None)
        elif name is None:
            worker.kill()
        return reply

    def kill(self, request: dict[str, Any]) -> list[Any]:
        worker = self._workers.pop(request["worker"], None)
        return ["ok", worker is None or worker.kill()]


def lines(port: int) -> Any:
    text = b""
    while True:
        select.select([port], [], [])
        more = os.read(port, 65_536)
        if not more:
            return  # nobody is at the other end any more
        text += more
        while b"\n" in text:
            line, _, text = text.partition(b"\n")
            yield line


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    (name,) = Path("/sys/class/virtio-ports").iterdir()
    port = os.open(f"/dev/{name.name}", os.O_RDWR)
    agent = Agent()
    reply: list[Any] = ["ok", float(Path("/proc/uptime").read_text().split()[0])]
    for line in lines(port):
        request = json.loads(line)
        if request["what"] == "end":
            return
        if request["what"] != "hello":
            reply = getattr(agent, request["what"])(request)
        text = memoryview((json.dumps(reply) + "\n").encode())
        while text:
            text = text[os.write(port, text) :]


if __name__ == "__main__":
    main()
