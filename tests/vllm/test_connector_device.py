# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the connector takes a KV cache in GPU memory as it takes one in host memory, and in the engine's order.

Method: vLLM's own classes; objects that say of memory of a fake GPU (tests/fakes) what a CUDA tensor says, since no
torch with CUDA is here. By which way the bytes come, ``bytes_bounced`` and ``bytes_direct`` tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from connector_halves import (
    BLOCK_TOKENS,
    BLOCKS,
    HEAD,
    HEADS,
    LAYER_BYTES,
    FakeTensor,
    Halves,
    cache_config,
    request,
    vllm_config,
)
from gpu_direct_support import direct_environment, run_direct
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.base import make_offload_key

import kvstore
from kvstore._transfer import Block
from kvstore.errors import ConfigError
from kvstore.testing import SimDisk
from kvstore.vllm import compat
from kvstore.vllm.connector_worker import device_of, host_regions
from kvstore.vllm.device_regions import device_regions


@pytest.fixture
def stream(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The engine's."""
    made = int(gpu.stream())
    monkeypatch.setattr(compat, "current_stream", lambda device: made)
    return made


@pytest.fixture
def halves(disk: SimDisk, gpu: Any, stream: int) -> Iterator[Callable[..., Halves]]:
    made: list[Halves] = []

    def make(**settings: Any) -> Halves:
        made.append(Halves(disk.path, gpu=gpu, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def keys_of(blocks: int, group: int = 0) -> list[bytes]:
    return [bytes(make_offload_key(one, group)) for one in request(blocks).block_hashes[:blocks]]


def stored(engine: Halves, blocks: int) -> list[bytes]:
    keys = keys_of(blocks)
    for number in range(blocks):
        engine.fill(number + 1)
    engine.step(stores=(keys, list(range(1, blocks + 1))))
    return keys


@pytest.mark.parametrize("by_layer", [False, True])
def test_what_was_stored_is_loaded_into_other_blocks(halves: Any, gpu: Any, stream: int, by_layer: bool) -> None:
    engine = halves(layerwise=by_layer)
    keys = stored(engine, 3)
    engine.step(loads=(keys, [20, 9, 31]), by_layer=by_layer)
    if not by_layer:
        engine.worker._worker._transfer.wait(range(1000))
        engine.worker.get_transfer_results(set())
    gpu.synchronize(stream)
    assert [engine.bytes_of(number) for number in (20, 9, 31)] == [engine.bytes_of(number) for number in (1, 2, 3)]
    assert engine.worker._worker._opened.pool.stats()["bytes_bounced"] == 2 * 3 * 2 * LAYER_BYTES
    assert engine.worker._worker.counts.totals["blocks_loaded"] == 3


@pytest.mark.parametrize("by_layer", [False, True])
def test_what_cufile_reads_into_the_cache_is_the_blocks(tmp_path: Path, by_layer: bool) -> None:
    path = tmp_path / "pool.img"
    kvstore.format(path, size="128MiB", region_bytes="4MiB", min_block_bytes=4096)
    told = run_direct(
        direct_environment(tmp_path),
        f"""
        import test_connector_device as cases
        from connector_halves import Halves
        from kvstore.vllm import compat
        stream = gpu.stream()
        compat.current_stream = lambda device: stream
        engine = Halves({str(path)!r}, gpu=gpu, layerwise={by_layer}, gpu_direct="on")
        keys = cases.stored(engine, 3)
        engine.step(loads=(keys, [20, 9, 31]), by_layer={by_layer})
        if not {by_layer}:
            engine.worker._worker._transfer.wait(range(1000))
            engine.worker.get_transfer_results(set())
        gpu.synchronize(stream)
        same = [engine.bytes_of(n) for n in (20, 9, 31)] == [engine.bytes_of(n) for n in (1, 2, 3)]
        stats = engine.worker._worker._opened.pool.stats()
        engine.close()
        print(json.dumps([same, stats["gpu_direct"], stats["bytes_direct"], stats["bytes_bounced"]]))
        """,
        Path(__file__).parent,
    )
    moved = 3 * 2 * LAYER_BYTES
    assert told == [True, "GPU 0: direct", moved, moved]


def test_blocks_are_stored_once_the_forward_pass_has_written_them(halves: Any, gpu: Any, stream: int) -> None:
    engine = halves()
    keys = stored(engine, 1)
    space = engine.worker._worker._opened.space(0, "")
    space.delete(keys)
    gate = gpu.lib.fake_cuda_gate(stream)
    for tensor in engine.cache.values():
        tensor[2] = 7
    transfer = engine.worker._worker._transfer
    transfer.store(100, [Block(keys[0], 0, 2)])
    for tensor in engine.cache.values():
        tensor[2] = 9  # by the forward pass, before the gate
    gpu.lib.fake_cuda_open_gate(gate)
    transfer.wait([100])
    assert [done.good for done in transfer.poll()] == [[True]]
    out = bytearray(2 * LAYER_BYTES)
    space.get(keys[0], out)
    assert bytes(out) == b"".join(engine.bytes_of(2))


def test_a_block_that_fails_is_named(halves: Any, disk: SimDisk) -> None:
    engine = halves()
    keys = stored(engine, 3)
    block = engine.worker._worker._opened.space(0, "").describe([keys[1]])[0]
    disk.fault(
        "error",
        op="read",
        first_byte=block.offset_bytes,
        last_byte=block.offset_bytes + block.nbytes - 1,
        times=1_000_000,
    )
    output = engine.step(loads=(keys, [20, 21, 22]))
    assert (output.finished_recving, output.invalid_block_ids) == ({"r"}, {21})
    assert engine.bytes_of(22) == engine.bytes_of(3)


def test_several_groups_and_a_step_that_reuses_blocks(halves: Any) -> None:
    engine = halves(groups=2)
    keys = [*keys_of(2), *keys_of(2, group=1)]
    for number in (1, 2, 3, 4):
        engine.fill(number)
    engine.step(stores=(keys, [1, 2, 3, 4]))
    good = engine.step(loads=(keys, [11, 12, 13, 14]))
    assert (good.finished_recving, good.failed_recving) == ({"r"}, set())
    assert [engine.bytes_of(11)[:2], engine.bytes_of(14)[2:]] == [engine.bytes_of(1)[:2], engine.bytes_of(4)[2:]]


def test_memory_for_extents_that_no_block_fits_into_is_refused_by_its_size(
    disk: SimDisk, gpu: Any, stream: int
) -> None:
    with pytest.raises(ConfigError, match="65,535 bytes of GPU memory for extents"):
        Halves(disk.path, gpu=gpu, gpu_extents_bytes=65535)


# ---- regions ----


def of_host(tensors: dict[str, torch.Tensor], config: KVCacheConfig) -> Any:
    """By vLLM's own view."""
    engine = vllm_config({"path": "none"})
    return host_regions(tensors, engine, config, build_offloading_config(engine, config))


def cache_tensors(order: str, names: list[str]) -> dict[str, torch.Tensor]:
    """Views (block, head, token, content) of one allocation, of two layers, in a physical order."""
    sizes = {"L": len(names), "B": BLOCKS, "H": HEADS, "N": BLOCK_TOKENS, "C": 2 * HEAD}
    whole = torch.zeros([sizes[axis] for axis in order], dtype=torch.bfloat16)
    logical = whole.permute([order.index(axis) for axis in "LBHNC"])
    return {name: logical[number] for number, name in enumerate(names)}


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC"])
def test_regions_are_those_of_vllms_own_view(order: str) -> None:
    config = cache_config(1)
    tensors = cache_tensors(order, list(config.kv_cache_groups[0].layer_names))
    here = device_regions(tensors, config, [0])
    assert {group: [one._replace(blocks=0) for one in regions] for group, regions in here.items()} == of_host(
        tensors, config
    )
    assert {one.blocks for one in here[0]} == {BLOCKS}


def test_blocks_of_several_kernel_blocks_are_those_of_vllms_own_view() -> None:
    spec = FullAttentionSpec(block_size=4 * BLOCK_TOKENS, num_kv_heads=HEADS, head_size=HEAD, dtype=torch.bfloat16)
    config = KVCacheConfig(
        num_blocks=BLOCKS // 4, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a", "b"], spec)]
    )
    tensors = cache_tensors("LBHNC", ["a", "b"])
    here = device_regions(tensors, config, [0])
    assert [one.nbytes for one in here[0]] == [4 * LAYER_BYTES] * 2
    assert [one._replace(blocks=0) for one in here[0]] == of_host(tensors, config)[0]


def test_cross_layer_blocks_are_regions_of_the_block(gpu: Any) -> None:
    config = cache_config(1)
    names = list(config.kv_cache_groups[0].layer_names)
    tensors = cache_tensors("BLHNC", names)
    regions = device_regions(tensors, config, [0])[0]
    assert [(one.stride, one.nbytes) for one in regions] == [(2 * LAYER_BYTES, LAYER_BYTES)] * 2
    assert regions[1].address - regions[0].address == LAYER_BYTES


def test_layers_of_the_same_memory_are_one_region() -> None:
    config = cache_config(1)
    names = list(config.kv_cache_groups[0].layer_names)
    tensor = cache_tensors("LBHNC", names)[names[0]]
    (region,) = device_regions(dict.fromkeys(names, tensor), config, [0])[0]
    assert region.layers == tuple(names)


@pytest.mark.parametrize("order", ["LHBNC", "BHLNC"])
def test_a_layout_with_blocks_in_pieces_is_refused(order: str) -> None:
    config = cache_config(1)
    tensors = cache_tensors(order, list(config.kv_cache_groups[0].layer_names))
    with pytest.raises(ConfigError, match=r"in pieces.*VLLM_KV_CACHE_LAYOUT"):
        device_regions(tensors, config, [0])


def test_what_is_not_understood_is_refused_by_its_layer() -> None:
    config = cache_config(1)
    names = list(config.kv_cache_groups[0].layer_names)
    tensors = cache_tensors("LBHNC", names)
    with pytest.raises(ConfigError, match=f"layer {names[0]}: a block has 4096 bytes, and vLLM says {LAYER_BYTES}"):
        device_regions({name: tensor[:, :, :, :HEAD].contiguous() for name, tensor in tensors.items()}, config, [0])
    config.kv_cache_groups[0].kv_cache_spec = SimpleNamespace()
    with pytest.raises(ConfigError, match="takes attention layers in GPU memory"):
        device_regions(tensors, config, [0])


def test_other_memory_is_refused(gpu: Any) -> None:
    tensor = FakeTensor(gpu, (BLOCKS, HEADS, BLOCK_TOKENS, 2 * HEAD))
    assert device_of({"a": tensor}) == 0
    assert device_of({"a": torch.zeros(1)}) is None
    other = SimpleNamespace(device=SimpleNamespace(type="cuda", index=1))
    xpu = SimpleNamespace(device=SimpleNamespace(type="xpu", index=0))
    for caches in ({"a": tensor, "b": other}, {"a": xpu}, {"a": tensor, "b": torch.zeros(1)}):
        with pytest.raises(ConfigError, match="one CUDA device"):
            device_of(caches)
