"""NVIDIA DALI's pipeline on the CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.peers.adapter import SEED, Delivery, Peer, Work
from benchmarks.photograph_loaders import dali_batches, dali_iterator, dali_pipeline


class Dali(Peer):
    """The pipeline of DALI's ImageNet example; numbers come from its parallel external source."""

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        pipeline = dali_pipeline(
            work.files,
            work.numbers,
            work.batch_size,
            work.num_workers,
            enable_checkpointing=True,
            checkpoint=state,
        )
        iterator = dali_iterator(pipeline)
        return Delivery(dali_batches(iterator), lambda: bytes(iterator.checkpoints()[0]))

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        def graph() -> Any:
            return fn.external_source(
                _Shuffled(work.num_samples, work.batch_size),
                batch=True,
                batch_info=True,
                parallel=True,
                dtype=types.INT64,
                ndim=1,
            )

        pipeline = pipeline_def(graph)(
            batch_size=work.batch_size,
            num_threads=1,
            device_id=None,
            seed=SEED,
            py_num_workers=work.num_workers,
            py_start_method="spawn",
            enable_checkpointing=True,
            checkpoint=state,
        )
        iterator = DALIGenericIterator(
            pipeline, ["numbers"], last_batch_policy=LastBatchPolicy.PARTIAL
        )

        def batches() -> Iterator[torch.Tensor]:
            for (batch,) in iterator:
                yield batch["numbers"].squeeze(1)

        return Delivery(batches(), lambda: bytes(iterator.checkpoints()[0]))

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        """Advance DALI's checkpoint, a protobuf message that ends with two JSON texts.

        They hold the pipeline's and the iterator's counters, in fields 1 and 2 of the message's
        field 2. All lengths are below 128, so each is a single byte.
        """
        head, _, texts = state.partition(b'{"iter"')
        pipeline = json.loads(b'{"iter"' + texts[: texts.index(b"}") + 1])
        iterator = json.loads(texts[texts.rindex(b"{") :])
        pipeline["iter"] += batches
        iterator["_counter"] += batches * work.batch_size
        fields = b"".join(
            bytes([tag, len(text)]) + text
            for tag, text in (
                (0x0A, json.dumps(pipeline).encode()),
                (0x12, json.dumps(iterator).encode()),
            )
        )
        return head[:-4] + bytes([0x12, len(fields)]) + fields


class _Shuffled:
    """Draws the order of each epoch in the callable, as in DALI's shuffling example."""

    def __init__(self, n: int, batch_size: int) -> None:
        self._n = n
        self._batch_size = batch_size
        self._order: tuple[int, np.ndarray] | None = None

    def __call__(self, info: Any) -> list[np.ndarray]:
        if info.iteration >= self._n // self._batch_size:
            raise StopIteration
        if self._order is None or self._order[0] != info.epoch_idx:
            generator = np.random.default_rng([SEED, info.epoch_idx])
            self._order = info.epoch_idx, generator.permutation(self._n)
        first = info.iteration * self._batch_size
        return list(self._order[1][first : first + self._batch_size, None])
