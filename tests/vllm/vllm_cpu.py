# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""vLLM's tiering on a machine without a GPU: its spec, with a worker that copies between host and host.

Only ``get_worker`` differs from vLLM's own class, which refuses every platform without a device.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostCopyWorker(OffloadingWorker):
    """Copies at once what vLLM's worker copies on a stream."""

    def __init__(self, kv_caches: Any, region: Any, blocks_per_chunk: int) -> None:
        self._tensors = kv_caches.tensors
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._rows = [region.create_next_worker_view(t.page_size_bytes * blocks_per_chunk) for t in self._tensors]
        self._finished: list[TransferResult] = []

    def _copy(self, job_id: int, device: Any, host: Any, *, is_store: bool) -> bool:
        skipped = device.block_indices[0] % self._blocks_per_chunk
        for number, block in enumerate(device.block_ids):
            chunk, part = divmod(number + skipped, self._blocks_per_chunk)
            for tensor, rows in zip(self._tensors, self._rows, strict=True):
                page = tensor.page_size_bytes
                row = rows[int(host.block_ids[chunk]), part * page : (part + 1) * page]
                if is_store:
                    row.copy_(tensor.tensor[int(block)])
                else:
                    tensor.tensor[int(block)].copy_(row)
        self._finished.append(TransferResult(job_id, True, len(device.block_ids), 0.0))
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, is_store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        return self._copy(job_id, dst_spec, src_spec, is_store=False)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Every copy ended in its submission."""

    def shutdown(self) -> None:
        self._rows.clear()
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    """vLLM's own spec on the CPU platform."""

    def get_worker(self, kv_caches: Any) -> HostCopyWorker:
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostCopyWorker(kv_caches, region, self.blocks_per_chunk)
        return self._worker
