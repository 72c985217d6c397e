# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The demo itself; run it by scripts/demo, which installs what it needs and cleans up behind it.

A client made of the classes of `lmcache bench server` stands in for an inference engine on a CPU. The server is told to
keep nothing in its own memory (`skip_l1`), so that what is loaded really comes from kvstore. The rates are those that
LMCache measures from submitting a request's blocks to kvstore until they are done.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lmcache_server import LMCacheServer, ServerDied

import kvstore
from kvstore.cli.output import print_facts
from kvstore.doctor import Finding, Machine, find_target
from kvstore.doctor.device import check_direct_io, check_space
from kvstore.errors import KvStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL, LAYERS, KV_HEADS, HEAD_SIZE = "Llama-3.1-8B", 32, 8, 128
CHUNK_TOKENS, PAGE_TOKENS = 256, 16
CHUNK_BYTES = 2 * LAYERS * CHUNK_TOKENS * KV_HEADS * HEAD_SIZE * 2  # K and V in bfloat16: 32 MiB
CHUNKS_A_REQUEST = 4
POOL_BYTES_MIN = 1 << 30
L1_BYTES = 4 * CHUNKS_A_REQUEST * CHUNK_BYTES  # what LMCache moves blocks through; it keeps none there
CLIENT_AND_SERVER_BYTES = 2 << 30  # of two processes with torch in them


class Missing(Exception):
    """What the demo needs and this machine does not have, with the mend."""


class Loaded(NamedTuple):
    """What came back of all requests after the crash."""

    hits: int
    equal: int


def main() -> int:
    """Run the demo; return 0 when every block was there and equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--chunks", type=int, required=True)
    options = parser.parse_args()
    try:
        return run(options.folder, options.chunks)
    except (Missing, ServerDied, KvStoreError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


def run(folder: Path, chunks: int) -> int:
    """The whole story, once."""
    nbytes = chunks * CHUNK_BYTES
    pool = make_pool(folder, 2 * nbytes)
    check_memory(nbytes + L1_BYTES + CLIENT_AND_SERVER_BYTES)

    say("starting an LMCache server on it")
    with LMCacheServer(folder, pool, L1_BYTES / 2**30) as server:
        import_client()  # seconds of imports, while the server has its own
        server.wait_until_ready()
        with connected(server, chunks) as client:
            say(f"storing {chunks} chunks of {CHUNK_TOKENS} tokens of {MODEL}")
            checksums = store(client, server, chunks)
            stored_rate = server.rate("store")
        say("killing the server: SIGKILL")
        server.kill()

    say("starting another on the same pool")
    with LMCacheServer(folder, pool, L1_BYTES / 2**30) as server:
        ready_s = server.wait_until_ready()
        opened = server.l2_status()["pool"]
        with connected(server, chunks) as client:
            say("loading")
            loaded = load(client, checksums)
            loaded_rate = server.rate("load")
        server.stop()
    checked = check(pool)

    print()
    print_facts(
        [
            ("pool", f"a file of {kvstore.format_size(pool.stat().st_size)}, engine {opened['device_kind']}"),
            ("stored", f"{chunks} blocks of {kvstore.format_size(CHUNK_BYTES)}, {stored_rate:.2f} GB/s"),
            ("crash", "SIGKILL of the server, nothing closed"),
            ("opened again", f"in {opened['recovery_seconds'] * 1e3:.1f} ms, {opened['recovery_blocks']} blocks found"),
            ("", f"(LMCache itself was up after {ready_s:.1f} s)"),
            ("hits", f"{loaded.hits} of {chunks}"),
            ("loaded", f"{loaded_rate:.2f} GB/s, every read verified"),
            ("verified", f"{loaded.equal} of {chunks} equal, byte for byte"),
            ("kvstore check", checked),
        ]
    )
    return 0 if loaded == Loaded(chunks, chunks) else 1


def say(text: str) -> None:
    """Tell what happens next."""
    print(f"demo: {text}", flush=True)


# ---- the pool ----


def make_pool(folder: Path, nbytes: int) -> Path:
    """Format a file, and see that its folder is one that a pool works in."""
    path = folder / "pool.img"
    size = max(nbytes, POOL_BYTES_MIN)
    say(f"formatting {path}, {kvstore.format_size(size)}")
    kvstore.format(path, size=size, block_bytes=CHUNK_BYTES)
    machine, target = Machine(), find_target(str(path))
    for finding in (check_direct_io(machine, target), check_space(machine, target)):
        refuse(finding, folder)
    return path


def refuse(finding: Finding, folder: Path) -> None:
    """Raise Missing when a check of the doctor failed."""
    if finding.level == "fail":
        raise Missing(f"{folder}: {finding.text}. Set TMPDIR to a folder on another disk, or {finding.mend}")


def check_memory(needed: int) -> None:
    """Raise Missing rather than be killed half way."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
            if available < needed:
                sizes = f"{kvstore.format_size(needed)} of memory, {kvstore.format_size(available)} are available"
                raise Missing(f"needs {sizes}. Fewer chunks need less: scripts/demo --chunks {CHUNKS_A_REQUEST}")


def check(pool: Path) -> str:
    """What `kvstore check` finds."""
    done = subprocess.run(
        [sys.executable, "-m", "kvstore", "check", pool, "--json"], stdout=subprocess.PIPE, check=False
    )
    report = json.loads(done.stdout)
    if "error" in report:
        return str(report["error"]["message"])
    bad = report["corrupt_blocks"] + report["unreadable_blocks"]
    rate = report["checked_bytes"] / report["seconds"] / 1e9
    return f"{report['checked_blocks']} blocks read back, {bad} bad, {rate:.2f} GB/s"


# ---- the client ----


def import_client() -> None:
    """Import what the client needs; torch takes its time."""
    import lmcache.cli.commands.bench.server_bench.client
    import lmcache.cli.commands.bench.server_bench.helpers  # noqa: F401


@contextmanager
def connected(server: LMCacheServer, chunks: int) -> Iterator[Any]:
    """An engine's stand-in, with KV tensors for all requests of the demo, registered with the server."""
    from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
    from lmcache.cli.commands.bench.server_bench.config import BenchConfig

    # Room for one request more than there are: requests are placed modulo the pages before the last request's.
    pages = (chunks + CHUNKS_A_REQUEST) * CHUNK_TOKENS // PAGE_TOKENS
    client = ServerBenchClient(
        BenchConfig(
            rpc_url=f"tcp://127.0.0.1:{server.port}",
            http_url=f"http://127.0.0.1:{server.http_port}",
            mode="cpu",
            transfer_mode="engine_driven",
            tp_size=1,
            use_mla=False,
            num_tokens=CHUNKS_A_REQUEST * CHUNK_TOKENS,
            kvcache_shape_spec=f"(2,{pages},{PAGE_TOKENS},{KV_HEADS},{HEAD_SIZE}):bfloat16:{LAYERS}",
            num_blocks=pages,
            block_size=PAGE_TOKENS,
        ),
        lambda _: None,
    )
    client.start()
    try:
        yield client
    finally:
        client.close()


def requests(client: Any, chunks: int, kind: str) -> Iterator[Any]:
    """The demo's requests: the same tokens each time, other names."""
    for number in range(chunks // CHUNKS_A_REQUEST):
        yield client.create_request(number, f"{kind}-{number}", kind)


def store(client: Any, server: LMCacheServer, chunks: int) -> list[str]:
    """Store all requests, wait until they are durable; return a checksum for each chunk."""
    checksums: list[str] = []
    for request in requests(client, chunks, "cold"):
        if client.lookup(request).hit_chunks:
            raise ServerDied("a new pool had hits")
        checksums += client.compute_checksums(request, 0, request.num_full_tokens)
        if not client.store(request, 0, request.num_full_tokens).succeeded:
            raise ServerDied("LMCache did not take a request's blocks")
        client.end_session(request)
    server.wait_until_stored(chunks)
    return checksums


def load(client: Any, checksums: list[str]) -> Loaded:
    """Load all requests over zeroed tensors; count what came, and what of it is equal."""
    hits, found = 0, []
    for request in requests(client, len(checksums), "warm"):
        client.zero_destination(request, 0, request.num_full_tokens)
        lookup = client.lookup(request)
        hits += lookup.hit_chunks
        client.retrieve(request, 0, lookup.hit_chunks * CHUNK_TOKENS)
        found += client.compute_checksums(request, 0, request.num_full_tokens)
        client.end_session(request)
    return Loaded(hits, sum(a == b for a, b in zip(found, checksums, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
