# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Measure the time to the first token: cold, from the engine's own caches, and from the store after a restart.

  kvstore bench ttft --url http://localhost:8000 --model Qwen/Qwen2.5-32B --tokens 8192,32768 --concurrency 1,8,16,32
  kvstore bench ttft --model /models/llama --pool /dev/nvme1n1 --tokens 512,2048,8192 --report report
  kvstore bench ttft --from result.json --report report

The first drives a server that is running, the second starts a vLLM of its own on a formatted pool. docs/bench.md has
more.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstore.cli.exits import EXIT_BAD, EXIT_OK
from kvstore.cli.output import be_writable, print_json, print_table
from kvstore.errors import ConfigError
from kvstore.sizes import parse_size

if TYPE_CHECKING:
    from kvstore.bench.ttft.answers import Served
    from kvstore.bench.ttft.engine import EngineOptions
    from kvstore.bench.ttft.passes import TtftSpec

HELP = "the time to the first token, with and without the store"

MEASUREMENT = "ttft"
_CPU_BYTES = "4GiB"
_SPEC = "vllm.v1.kv_offload.tiering.spec:TieringOffloadingSpec"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    parser.add_argument("--model", default="", help="as the server calls it; or a folder or name that vLLM loads")
    parser.add_argument("--tokens", default="1024", metavar="A,B", help="of a prompt (1024)")
    parser.add_argument("--concurrency", default="1", metavar="A,B", help="requests at a time (1)")
    parser.add_argument("--requests", type=int, default=8, metavar="N", help="of a pass, at least those at a time (8)")
    parser.add_argument("--output-tokens", type=int, default=8, metavar="N", help="of an answer (8)")
    parser.add_argument("--passes", default="cold,gpu,host,kvstore", metavar="A,B", help="cold,gpu,host,kvstore")
    parser.add_argument(
        "--vocabulary", type=int, default=0, metavar="N", help="tokens are drawn below it (config.json's)"
    )
    parser.add_argument("--model-config", default="", metavar="FILE", help="its config.json, for what is predicted")
    parser.add_argument("--randseed", type=int, default=1, metavar="N", help="of prompts (1)")
    parser.add_argument("--output", metavar="FILE", help="write the JSON there, too")
    parser.add_argument("--report", metavar="FOLDER", help="write result.json, ttft.md and ttft.png there")
    parser.add_argument("--from", dest="result", metavar="RESULT", help="measure nothing, tell a result again")
    server = parser.add_argument_group("a server that is running")
    server.add_argument("--url", default="", help="http://HOST:PORT of an OpenAI-compatible one")
    server.add_argument("--restart", default="", metavar="COMMAND", help="starts it anew, for the last pass")
    server.add_argument(
        "--reset-gpu", default="/reset_prefix_cache", metavar="PATH", help="POST: forget the GPU's cache"
    )
    server.add_argument(
        "--reset-all", default="/reset_prefix_cache?reset_external=true", metavar="PATH", help="POST: forget all caches"
    )
    engine = parser.add_argument_group("a vLLM of its own")
    engine.add_argument("--pool", default="", metavar="PATH", help="a formatted pool")
    engine.add_argument("--python", default=sys.executable, metavar="PATH", help="that has vLLM (this one)")
    engine.add_argument("--engine-args", default="{}", metavar="JSON", help="arguments of vllm.LLM")
    engine.add_argument("--cpu-bytes", default=_CPU_BYTES, metavar="SIZE", help=f"of vLLM's host tier ({_CPU_BYTES})")
    engine.add_argument("--spec", default=_SPEC, metavar="MODULE:CLASS", help="in the place of vLLM's tiering spec")
    engine.add_argument(
        "--kv-transfer-config", default="", metavar="JSON", help="in the place of the one made of these"
    )


def run(options: argparse.Namespace) -> int:
    """Measure, and tell."""
    if options.output:
        be_writable(options.output)
    if options.report:
        Path(options.report).mkdir(parents=True, exist_ok=True)
    made = _read(Path(options.result)) if options.result else _measure(options)
    if options.output:
        Path(options.output).write_text(json.dumps(made, indent=2) + "\n")
    if options.report:
        _write_report(made, Path(options.report))
    if options.json:
        print_json(made)
    else:
        _print(made)
    return EXIT_BAD if _trouble(made) else EXIT_OK


def _read(path: Path) -> dict[str, Any]:
    try:
        made = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    if not isinstance(made, dict) or made.get("measurement") != MEASUREMENT:
        raise ConfigError(f"{path} is not a result of `kvstore bench ttft`")
    return made


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    from kvstore.bench.ttft.endpoint import Endpoint, EndpointOptions
    from kvstore.bench.ttft.engine import VllmEngine
    from kvstore.bench.ttft.passes import measure_ttft

    if not options.model:
        raise ConfigError("--model is missing: what the server calls it, or what vLLM is to load")
    if bool(options.url) == bool(options.pool or options.kv_transfer_config):
        raise ConfigError("either --url, a server that is running, or --pool, for a vLLM of its own")
    config = _config(options)
    spec = _spec(options, config)
    if options.url:
        named = {name: getattr(options, name) for name in ("url", "model", "reset_gpu", "reset_all", "restart")}
        endpoint = Endpoint(EndpointOptions(**named))
        return document(spec, measure_ttft(spec, endpoint, _tell), endpoint.facts(), config, ())
    with VllmEngine(_engine_options(options)) as engine:
        results = measure_ttft(spec, engine, _tell)
        return document(spec, results, engine.facts(), config, (options.pool,) if options.pool else ())


def _spec(options: argparse.Namespace, config: Mapping[str, Any]) -> TtftSpec:
    from kvstore.bench.ttft.passes import PASSES, TtftSpec
    from kvstore.bench.ttft.sessions import Point

    passes = options.passes.split(",")
    unknown = [name for name in passes if name not in PASSES]
    if unknown:
        raise ConfigError(f"--passes has {unknown[0]!r}: allowed are {', '.join(PASSES)}")
    for name in ("requests", "output_tokens"):
        if not 1 <= getattr(options, name) <= 1 << 16:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(options, name)}: allowed are 1 to 65536")
    points = [
        Point(tokens, concurrency, max(options.requests, concurrency))
        for concurrency in _numbers(options.concurrency, "--concurrency")
        for tokens in _numbers(options.tokens, "--tokens")
    ]
    vocabulary = options.vocabulary or int(config.get("vocab_size", 1000))
    return TtftSpec(points, passes, options.output_tokens, vocabulary, options.randseed)


def _numbers(text: str, name: str) -> list[int]:
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if min(numbers) < 1:
        raise ConfigError(f"{name} is {text}: write numbers from 1 on, with commas between them")
    return numbers


def _config(options: argparse.Namespace) -> dict[str, Any]:
    """The model's ``config.json``; empty where nobody has it."""
    path = Path(options.model_config) if options.model_config else Path(options.model) / "config.json"
    if not options.model_config and not path.is_file():
        return {}
    try:
        read: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    return read


def _engine_options(options: argparse.Namespace) -> EngineOptions:
    from kvstore.bench.ttft.engine import EngineOptions

    transfer = _json(options.kv_transfer_config, "--kv-transfer-config") if options.kv_transfer_config else None
    if transfer is None:
        module, _, name = options.spec.partition(":")
        transfer = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "spec_name": name,
                "spec_module_path": module,
                "cpu_bytes_to_use": parse_size(options.cpu_bytes),
                "secondary_tiers": [{"type": "KVStoreTier", "module_path": "kvstore.vllm", "path": options.pool}],
            },
        }
    return EngineOptions(options.model, transfer, _json(options.engine_args, "--engine-args"), options.python)


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {text}: write an object")
    return value


def document(
    spec: TtftSpec, results: Sequence[Served], facts: Mapping[str, Any], config: Mapping[str, Any], paths: Sequence[str]
) -> dict[str, Any]:
    """The result as JSON values."""
    from kvstore.bench.machine import machine

    made = {
        "measurement": MEASUREMENT,
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": f"kvstore {shlex.join(sys.argv[1:])}",
        "output_tokens": spec.output_tokens,
        "seed": spec.seed,
        "facts": dict(facts),
        "machine": machine(paths),
        "rows": [served.as_json() for served in results],
    }
    found = _crossover(results, config)
    return made | ({"crossover": found} if found else {})


def _crossover(results: Sequence[Served], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of the fewest requests at a time, when there are lengths enough and it is known what the model computes."""
    from kvstore.bench.ttft.crossover import find_crossover, shape_of

    loaded = [served for served in results if served.which == "kvstore"]
    if not loaded or not config:
        return None
    concurrency = min(served.point.concurrency for served in loaded)
    loaded = [served for served in loaded if served.point.concurrency == concurrency]
    cold = {served.point: served for served in results if served.which == "cold"}
    blocks = sum(served.counters.get("blocks_loaded", 0) for served in loaded)
    try:
        shape = shape_of(config)
        block_tokens = (
            round(sum(served.bytes_read for served in loaded) / shape.bytes_per_token / blocks) if blocks else 1
        )
        found = find_crossover(
            shape,
            block_tokens,
            [served.point.tokens for served in loaded],
            [cold[served.point].median_s for served in loaded],
            [served.median_s for served in loaded],
        )
    except ConfigError as error:
        print(f"no crossover: {error}", file=sys.stderr)
        return None
    return found.as_json()


def _tell(served: Served) -> None:
    point = served.point
    print(
        f"{served.which:8} {point.tokens:7,} tokens, {point.concurrency:3} at a time: {served.median_s * 1e3:,.1f} ms",
        file=sys.stderr,
    )


def _write_report(made: Mapping[str, Any], folder: Path) -> None:
    import importlib.util

    from kvstore.bench.ttft.text import markdown

    (folder / "result.json").write_text(json.dumps(made, indent=2) + "\n")
    (folder / "ttft.md").write_text(markdown(made))
    if importlib.util.find_spec("matplotlib") is None:
        again = f"kvstore bench ttft --from {folder / 'result.json'} --report {folder}"
        print(f"no picture: pip install 'nvme-kvstore[bench]', then {again}", file=sys.stderr)
        return
    from kvstore.bench.ttft.picture import draw

    draw(made, folder / "ttft.png")


def _trouble(made: Mapping[str, Any]) -> list[str]:
    from kvstore.bench.ttft.text import trouble

    return trouble(made)


def _print(made: Mapping[str, Any]) -> None:
    from kvstore.bench.ttft.text import CALL_COLUMNS, COLUMNS, call_rows, crossover_lines, rows

    print_table(list(COLUMNS), rows(made))
    calls = call_rows(made)
    if calls:
        print("\nof one request:")
        print_table(list(CALL_COLUMNS), calls)
    for line in [*crossover_lines(made), *_trouble(made)]:
        print(line)
