"""Sharded datasets for the tests. All are picklable, so every start method can use them."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.datasets import EncodedShards, ShardedDataset
from stateful_gpu_loader.records import EncodedSample
from tests.images import PHOTOGRAPHS, encode, photograph

UNEVEN = (7, 0, 3, 11, 1, 0, 9, 4, 12, 1)
Loader = StatefulGPULoader[Any]


class Numbers(ShardedDataset):
    """Sample ``i`` of shard ``s`` is ``1000 * s + i``. The cursor counts samples."""

    def __init__(
        self,
        sizes: Sequence[int] = UNEVEN,
        *,
        lanes: int | None = None,
        counted: bool = False,
        buffer: int = 8192,
    ) -> None:
        self.sizes = list(sizes)
        self.num_lanes = lanes
        self.counted = counted
        self.shuffle_buffer = buffer

    def shards(self) -> list[str]:
        return [str(number) for number in range(len(self.sizes))]

    def num_samples(self, shard: str) -> int | None:
        return self.sizes[int(shard)] if self.counted else None

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        for number in range(cursor, self.sizes[int(shard)]):
            yield self.sample(int(shard), number), number + 1

    def sample(self, shard: int, number: int) -> Any:
        return 1000 * shard + number

    def all(self) -> list[int]:
        """Return every sample's number, in order."""
        return [1000 * shard + i for shard, size in enumerate(self.sizes) for i in range(size)]


class NoisyShards(Numbers):
    """Draws from all three global generators for each sample, as augmentations do."""

    def sample(self, shard: int, number: int) -> Any:
        return {
            "index": super().sample(shard, number),
            "random": random.gauss(0, 1),
            "numpy": np.random.standard_normal(3),
            "torch": torch.randn(2) + torch.rand(()),
        }


class CountingShards(Numbers):
    """Counts opened, read and closed shards by the sizes of files in a folder."""

    def __init__(self, folder: Path, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.folder = folder

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        self._note("opened")
        try:
            for sample in super().read_shard(shard, cursor):
                self._note("read")
                yield sample
        finally:
            self._note("closed")

    def count(self, what: str) -> int:
        """Return the count since the last call."""
        path = self.folder / what
        size = path.stat().st_size if path.exists() else 0
        path.unlink(missing_ok=True)
        return size

    def _note(self, what: str) -> None:
        descriptor = os.open(self.folder / what, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b".")
        os.close(descriptor)


class DamagedShards(Numbers):
    """Some shards fail at a sample: ``{shard: (sample, error)}``.

    Errors: ``"value"``; ``"missing"``; ``"storage"``, which is permanent; ``"flaky"``, which passes
    after an error of the storage and one of the interpreter; ``"code"``, a mistake in the program.
    """

    def __init__(self, damage: dict[int, tuple[int, str]], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.damage = damage
        self.attempts: dict[int, int] = {}

    def sample(self, shard: int, number: int) -> Any:
        if shard in self.damage and self.damage[shard][0] == number:
            self.fail(shard, self.damage[shard][1])
        return {"index": super().sample(shard, number), "drawn": torch.rand(())}

    def fail(self, shard: int, kind: str) -> None:
        """Raise the shard's error."""
        if kind == "value":
            raise ValueError("the record's checksum is wrong")
        if kind == "missing":
            raise FileNotFoundError(2, "No such file or directory", f"shard {shard}")
        if kind == "code":
            raise TypeError("a mistake in the program")
        self.attempts[shard] = self.attempts.get(shard, 0) + 1
        if kind == "storage" or self.attempts[shard] == 1:
            raise OSError(5, "Input/output error")
        if self.attempts[shard] == 2:
            raise SystemError("AST constructor recursion depth mismatch")

    def sound(self) -> list[int]:
        """Return the samples before permanent damage, in order."""
        ends = {shard: i for shard, (i, kind) in self.damage.items() if kind != "flaky"}
        return [
            1000 * shard + i
            for shard, size in enumerate(self.sizes)
            for i in range(min(size, ends.get(shard, size)))
        ]


class LosesItself(NoisyShards):
    """Its process dies or hangs at one sample, once for each life in a directory."""

    def __init__(self, at: int, lives: Path, how: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at, self.lives, self.how = at, lives, how

    def sample(self, shard: int, number: int) -> Any:
        if 1000 * shard + number == self.at:
            lose_a_life(self.lives, self.how)
        return super().sample(shard, number)


def lose_a_life(lives: Path, how: str) -> None:
    """Kill this process, or wait forever, if a life is left."""
    for life in sorted(lives.iterdir()):
        life.unlink()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()


class PhotoShards(EncodedShards):
    """Real JPEGs, some of them undecodable. The target is the sample's number."""

    def __init__(
        self,
        sizes: Sequence[int] = (3, 0, 5, 1, 4),
        *,
        lanes: int | None = 2,
        counted: bool = False,
        broken: frozenset[int] = frozenset(),
        damaged: frozenset[int] = frozenset(),
        lives: Path | None = None,
    ) -> None:
        self.sizes = list(sizes)
        self.num_lanes = lanes
        self.counted = counted
        self.broken = broken
        self.damaged = damaged
        self.lives = lives
        self.shuffle_buffer = 6
        self.files: list[list[torch.Tensor]] = []
        for shard, size in enumerate(self.sizes):
            self.files.append([_photo(shard, i, 100 * shard + i in broken) for i in range(size)])

    def shards(self) -> list[str]:
        return [f"photos-{number}" for number in range(len(self.sizes))]

    def num_samples(self, shard: str) -> int | None:
        return self.sizes[int(shard[7:])] if self.counted else None

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[EncodedSample, int]]:
        number = int(shard[7:])
        for i in range(cursor, self.sizes[number]):
            target = 100 * number + i
            if target in self.damaged:
                raise ValueError("the record's checksum is wrong")
            if target == 202 and self.lives is not None:
                lose_a_life(self.lives, "hang")
            yield EncodedSample(self.files[number][i], target, f"{shard}, photo {i}"), i + 1

    def all(self) -> list[int]:
        """Return every target, in order."""
        return [100 * shard + i for shard, size in enumerate(self.sizes) for i in range(size)]


@functools.cache
def _photo(shard: int, number: int, is_broken: bool) -> torch.Tensor:
    picture = photograph(PHOTOGRAPHS[(shard + number) % len(PHOTOGRAPHS)])
    size = (40 + 7 * number, 36 + 5 * shard)
    data = encode(picture.resize(size), quality=90)
    if is_broken:
        # A sound header and a sound end, with undecodable bytes between them.
        good = data.numpy().tobytes()
        data = torch.frombuffer(
            bytearray(good[:-400] + b"\xff\xc0" * 199 + good[-2:]), dtype=data.dtype
        )
    return data


def identity(samples: Any) -> Any:
    return samples


def indices_of(batches: Any) -> list[int]:
    """Return the numbers of delivered samples, from plain, noisy or image batches."""
    found: list[int] = []
    for batch in batches:
        if isinstance(batch, dict):
            batch = batch["index"]
        elif isinstance(batch, list):
            batch = batch[1]
        found.extend(torch.as_tensor(batch).reshape(-1).tolist())
    return found
