"""webdataset, as in its README: tar shards, a shuffle buffer, batches made in the workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
import webdataset as wds

from benchmarks.peers.adapter import SEED, Delivery, Replaying, Work, replayed
from benchmarks.peers.torch_loader import pillow_transform

_SHUFFLE_BUFFER = 1000
_MOST_A_SHARD = 64
_LEAST_SHARDS = 8


class Webdataset(Replaying):
    """Tar shards through the fluid interface."""

    def build_photographs(self, work: Work) -> None:
        a_shard = min(_MOST_A_SHARD, work.num_samples // _LEAST_SHARDS)
        with wds.ShardWriter(str(work.folder / "%05d.tar"), maxcount=a_shard, verbose=0) as writer:
            for number, file in enumerate(work.files):
                with open(file, "rb") as opened:
                    sample = {"__key__": f"{number:08d}", "jpg": opened.read(), "cls": number}
                writer.write(sample)

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        shards = sorted(str(path) for path in work.folder.glob("*.tar"))
        dataset = (
            wds.WebDataset(shards, shardshuffle=len(shards), detshuffle=True, seed=SEED)
            .shuffle(_SHUFFLE_BUFFER, rng=random.Random(SEED))
            .decode("pil")
            .to_tuple("jpg", "cls")
            .map_tuple(pillow_transform(), int)
            .batched(work.batch_size)
        )
        return replayed(_batches(dataset, work), state)

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        dataset = wds.DataPipeline(
            _Shards(work.num_samples, work.num_workers),
            wds.split_by_worker,
            _numbers_of_shards,
            wds.shuffle(_SHUFFLE_BUFFER, rng=random.Random(SEED)),
            wds.batched(work.batch_size),
        )
        return replayed((numbers for (numbers,) in _batches(dataset, work)), state)


def _batches(dataset: Any, work: Work) -> Iterator[Any]:
    torch.manual_seed(SEED)
    return iter(wds.WebLoader(dataset, batch_size=None, num_workers=work.num_workers))


class _Shards:
    """One range of numbers for each worker."""

    def __init__(self, n: int, count: int) -> None:
        self._bounds = [n * i // count for i in range(count + 1)]

    def __call__(self) -> Iterator[tuple[int, int]]:
        yield from zip(self._bounds, self._bounds[1:], strict=False)


def _numbers_of_shards(shards: Iterator[tuple[int, int]]) -> Iterator[tuple[int]]:
    for first, end in shards:
        for number in range(first, end):
            yield (number,)
