"""SPDL: a pipeline of threads.

Its own decoder needs the shared libraries of FFmpeg, which pip does not install. The pipeline runs
any function that releases the GIL, such as torchvision's decoder.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from spdl.pipeline import PipelineBuilder
from spdl.source import DistributedRandomSampler

from benchmarks.peers.adapter import SEED, Delivery, Replaying, Work, replayed
from benchmarks.peers.torch_loader import tensor_photographs


class Spdl(Replaying):
    """Items of a map-style dataset, loaded by the threads of a pipeline."""

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        dataset = tensor_photographs(work)
        return replayed(_batches(dataset.__getitem__, _collated, work), state)

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        return replayed(_batches(int, torch.tensor, work), state)


def _batches(load: Any, collate: Any, work: Work) -> Iterator[Any]:
    """Load in a stage with one thread for each worker, and collate in another stage."""
    torch.set_num_threads(1)
    random.seed(SEED)
    torch.manual_seed(SEED)
    pipeline = (
        PipelineBuilder()
        .add_source(DistributedRandomSampler(work.num_samples, rank=0, world_size=1, seed=SEED))
        .pipe(load, concurrency=work.num_workers, output_order="input")
        .aggregate(work.batch_size)
        .pipe(collate)
        .add_sink(2)
        .build(num_threads=work.num_workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


def _collated(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([image for image, _ in samples]), torch.tensor([n for _, n in samples])
