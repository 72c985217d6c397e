# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``kvstore bench ttft``: what is counted of answers, which passes run on what, and what the formulas predict.

Method: an engine in this process that knows which caches a prompt is in; times are made up, so all figures are known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstore.bench.ttft.answers import Answer, percentile
from kvstore.bench.ttft.crossover import Crossover, find_crossover, loaded_tokens, shape_of
from kvstore.bench.ttft.passes import TtftSpec, measure_ttft
from kvstore.bench.ttft.sessions import Point, warm_up_prompt
from kvstore.bench.ttft.text import trouble
from kvstore.cli import main
from kvstore.cli.bench_ttft import document
from kvstore.errors import ConfigError

LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 1000,
}  # fmt: skip
SHAPE = shape_of(LLAMA_8B)
BLOCK, BLOCK_BYTES = 256, 256 * SHAPE.bytes_per_token
#: Seconds of the made-up engine.
BASE_S, OPERATIONS_PER_S, BYTES_PER_S = 0.05, 4e14, 4e9


class MadeUpEngine:
    """Computes and loads at those rates, and forgets what it is told to."""

    def __init__(self) -> None:
        self.gpu: set[str] = set()
        self.host: set[str] = set()
        self.store: set[str] = set()
        self.bytes_loaded, self.blocks_loaded, self.opened = 0, 0, 1
        self.log: list[str] = []

    def facts(self) -> Mapping[str, Any]:
        return {"target": "made up", "model": "llama"}

    def serve(
        self, prompts: Sequence[Sequence[int]], concurrency: int, output_tokens: int
    ) -> tuple[list[Answer], float]:
        answers = [self._answer(str(prompt), len(prompt), output_tokens) for prompt in prompts]
        return answers, sum(answer.seconds for answer in answers)

    def _answer(self, prompt: str, tokens: int, output_tokens: int) -> Answer:
        loaded = loaded_tokens(tokens, BLOCK)
        known = next((name for name in ("gpu", "host", "store") if prompt in getattr(self, name)), None)
        self.log.append(known or "computed")
        first_s = BASE_S
        if known == "store":
            self.bytes_loaded += loaded // BLOCK * BLOCK_BYTES
            self.blocks_loaded += loaded // BLOCK
            first_s += loaded * SHAPE.bytes_per_token / BYTES_PER_S
        first_s += SHAPE.prefill.operations(loaded if known else 0, tokens) / OPERATIONS_PER_S
        for cache in (self.gpu, self.host, self.store):
            cache.add(prompt)
        return Answer(first_s, first_s, output_tokens, prompt[:20], loaded if known else 0)

    def settle(self) -> None:
        self.log.append("settled")

    def forget(self, *, host: bool) -> None:
        self.gpu.clear()
        if host:
            self.host.clear()

    def reopen(self) -> None:
        self.forget(host=True)
        self.opened += 1
        self.bytes_loaded = self.blocks_loaded = 0  # as a process that has just started

    def counters(self) -> Mapping[str, float]:
        return {"bytes_loaded": self.bytes_loaded, "blocks_loaded": self.blocks_loaded}


def measured(engine: MadeUpEngine, *lengths: int, **spec: Any) -> dict[str, Any]:
    asked = TtftSpec([Point(tokens, 1, 2) for tokens in lengths], **spec)
    return document(asked, measure_ttft(asked, engine), engine.facts(), LLAMA_8B, ())


@pytest.mark.parametrize(("percent", "value"), [(50, 3), (90, 5), (99, 5), (20, 1), (21, 2), (0, 1)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, value: float) -> None:
    assert percentile([5, 3, 1, 2, 4], percent) == value


def test_prompts_are_the_same_in_another_process_and_no_two_begin_alike() -> None:
    points = [Point(64, 1, 20), Point(64, 8, 20), Point(65, 1, 20)]
    prompts = [prompt for point in points for prompt in point.prompts(500, seed=3)]
    assert prompts[:20] == points[0].prompts(500, seed=3)
    heads = [tuple(prompt[:16]) for prompt in [*prompts, warm_up_prompt(64, 500, 3, 0), warm_up_prompt(64, 500, 3, 1)]]
    assert len(set(heads)) == len(heads)
    assert {token for prompt in prompts for token in prompt} <= set(range(10, 500))


def test_each_pass_is_served_from_where_it_is_named_after() -> None:
    engine = MadeUpEngine()
    made = measured(engine, 1000)
    warm_up, warm_up_again = ["computed", "settled"], ["computed", "settled"]
    passes = [["computed"] * 2, ["gpu"] * 2, ["host"] * 2]
    expected = [step for one in passes for step in [*one, "settled"]]
    assert engine.log == [*warm_up, *expected, *warm_up_again, "store", "store", "settled"]
    assert engine.opened == 2
    assert [(row["pass"], row["bytes_read"] // BLOCK_BYTES) for row in made["rows"]] == [
        ("cold", 0), ("gpu", 0), ("host", 0), ("kvstore", 2 * 3),
    ]  # fmt: skip
    assert [row["differing"] for row in made["rows"]] == [0, 0, 0, 0]
    assert trouble(made) == []


def test_a_pass_that_came_from_elsewhere_is_trouble() -> None:
    engine = MadeUpEngine()
    engine.counters = lambda: {"bytes_loaded": 0.0, "lookups": 1.0}  # type: ignore[method-assign]
    (told,) = trouble(measured(engine, 1000, passes=("cold", "kvstore")))
    assert "nothing was read from the store" in told


def test_the_formulas_find_the_rates_and_the_length_at_which_loading_wins() -> None:
    lengths = [257, 513, 1025, 2049, 4097, 16385]
    found = measured(MadeUpEngine(), *lengths)["crossover"]
    assert found["operations_per_s"] == pytest.approx(OPERATIONS_PER_S)
    assert found["bytes_per_s"] == pytest.approx(BYTES_PER_S)
    assert (found["block_tokens"], found["bytes_per_token"]) == (BLOCK, 131072)
    assert [one["tokens"] for one in found["deviations"]] == lengths[1:-1]
    assert all(abs(one["loaded"]) < 1e-9 and abs(one["computed"]) < 1e-9 for one in found["deviations"])


def crossing(load_base_s: float) -> Crossover:
    """Loading costs this much more to begin with."""
    lengths = [257, 513, 1025, 2049, 4097]
    computed = [SHAPE.prefill.operations(0, n) / OPERATIONS_PER_S for n in lengths]
    loaded = [
        load_base_s
        + loaded_tokens(n, BLOCK) * SHAPE.bytes_per_token / 5e9
        + SHAPE.prefill.operations(loaded_tokens(n, BLOCK), n) / OPERATIONS_PER_S
        for n in lengths
    ]
    return find_crossover(SHAPE, BLOCK, lengths, computed, loaded)


def test_prediction_and_measurement_cross_at_the_same_length() -> None:
    found = crossing(load_base_s=0.02)
    assert found.predicted is not None
    assert found.measured[0] is not None
    assert found.measured[0] < found.predicted <= found.measured[1]
    assert found.interpolated == pytest.approx(found.predicted, rel=0.3)


def test_loading_that_always_wins_or_never_does_has_no_length_in_between() -> None:
    always, never = crossing(load_base_s=0.0), crossing(load_base_s=10.0)
    assert (always.predicted, always.measured, always.interpolated) == (BLOCK + 1, (None, 257), None)
    assert (never.predicted, never.measured, never.interpolated) == (None, (4097, None), None)


def test_too_few_lengths_have_no_crossover_and_a_model_of_another_kind_no_shape() -> None:
    with pytest.raises(ConfigError, match="three prompt lengths"):
        find_crossover(SHAPE, BLOCK, [257, 513], [1, 2], [1, 2])
    with pytest.raises(ConfigError, match="above a block of 256"):
        find_crossover(SHAPE, BLOCK, [256, 513, 1025], [1, 2, 3], [1, 2, 3])
    with pytest.raises(ConfigError, match="not of a dense model"):
        shape_of({**LLAMA_8B, "kv_lora_rank": 512})
    assert "crossover" not in measured(MadeUpEngine(), 1000, 2000)


def test_a_result_is_told_and_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    result = tmp_path / "result.json"
    result.write_text(json.dumps(measured(MadeUpEngine(), 257, 1025, 4097)))
    assert main(["bench", "ttft", "--from", str(result), "--report", str(tmp_path / "report")]) == 0
    assert "loading is quicker than computing from" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"result.json", "ttft.md", "ttft.png"}
    assert (tmp_path / "report/ttft.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "--model is missing"),
        (["--model=m"], "either --url"),
        (["--model=m", "--url=http://h", "--pool=p"], "either --url"),
        (["--model=m", "--url=h:80"], "write http://HOST:PORT"),
        (["--model=m", "--url=http://h", "--tokens=1,x"], "--tokens is 1,x"),
        (["--model=m", "--url=http://h", "--passes=warm"], "allowed are cold, gpu, host, kvstore"),
        (["--model=m", "--pool=p", "--engine-args=[]"], "write an object"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "ttft", *words]) == 2
    assert complaint in capsys.readouterr().err
