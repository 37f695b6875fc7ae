"""Samplers and datasets as users write them, with and without state; all are picklable."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


def worker_of() -> tuple[int, int]:
    """Return this worker's id and the number of workers; (0, 1) in the user's thread."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


class StatefulSampler(Sampler[int]):
    """State on the sampler. Each epoch has another order, and its end resets the sampler."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.taken = 0
        self.round = 0

    def __iter__(self) -> Iterator[int]:
        while self.taken < self.length:
            self.taken += 1
            yield (self.taken * 7 + self.round) % self.length
        self.taken = 0
        self.round += 1

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken, "round": self.round}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.taken, self.round = state_dict["taken"], state_dict["round"]


class CountingIterator(Iterator[int]):
    """State on the iterator."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.i = 0

    def __next__(self) -> int:
        if self.i >= self.length:
            raise StopIteration
        self.i += 1
        return self.i - 1

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]


class SamplerWithStatefulIterator(Sampler[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return CountingIterator(self.length)

    def __len__(self) -> int:
        return self.length


class StatefulBatchSampler(Sampler[list[int]]):
    """Batches of growing size."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.taken = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.taken < self.length:
            size = min(1 + self.taken % 4, self.length - self.taken)
            batch = list(range(self.taken, self.taken + size))
            self.taken += size
            yield batch
        self.taken = 0

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.taken = state_dict["taken"]


class LazySampler(Sampler[int]):
    """No state; draws its length and indices from a global generator as they are requested."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(random.randrange(15, 20)):
            yield random.randrange(20) if torch.rand(()) < 0.5 else int(np.random.randint(20))


class CountingSampler(Sampler[int]):
    """No state_dict, but a counter that decides the order of each epoch."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.round = 0

    def __iter__(self) -> Iterator[int]:
        self.round += 1
        indices = list(range(self.length))
        random.Random(self.round).shuffle(indices)
        return iter(indices)


class OwnGeneratorSampler(Sampler[int]):
    """No state_dict, but a private generator that continues from epoch to epoch."""

    def __init__(self, length: int, generator: Any) -> None:
        self.length = length
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        indices = list(range(self.length))
        if isinstance(self.generator, torch.Generator):
            yield from torch.randperm(self.length, generator=self.generator).tolist()
            return
        self.generator.shuffle(indices)
        yield from indices


class ShufflingInPlace(Sampler[int]):
    """Each epoch shuffles the order of the epoch before, so no fresh sampler can repeat it."""

    def __init__(self, length: int) -> None:
        self.indices = list(range(length))

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.indices)
        return iter(self.indices)


class ShufflingOutOfSight(Sampler[int]):
    """Like ShufflingInPlace, but the order is in an object that is no plain container."""

    def __init__(self, length: int) -> None:
        self.hidden = SimpleNamespace(indices=list(range(length)))

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.hidden.indices)
        return iter(self.hidden.indices)


class ShufflingGroups(Sampler[int]):
    """Shuffles its container in place, like PKSampler of torchvision's similarity reference.

    PKSampler holds a dictionary of lists.
    """

    def __init__(self, length: int, kind: str) -> None:
        self.groups: Any = {
            "dict": {key: list(range(key, length, 3)) for key in range(3)},
            "list": [list(range(key, length, 3)) for key in range(3)],
            "deque": deque(range(length)),
            "array": np.arange(length),
            "tensor": torch.arange(length),
        }[kind]

    def __iter__(self) -> Iterator[int]:
        groups = self.groups
        if isinstance(groups, np.ndarray):
            np.random.shuffle(groups)
        elif isinstance(groups, torch.Tensor):
            groups.copy_(groups[torch.randperm(len(groups))])
        elif isinstance(groups, deque):
            groups.rotate(random.randrange(len(groups)))
        else:
            for group in groups.values() if isinstance(groups, dict) else groups:
                random.shuffle(group)
            lists = groups.values() if isinstance(groups, dict) else groups
            return iter([index for group in lists for index in group])
        return iter([int(index) for index in groups])


class StatefulDataset(Dataset[Any]):
    """Map-style. Each item holds the number of items that this worker's dataset gave before."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.given = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        self.given += 1
        return index, self.given, random.random()

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.given = state_dict["given"]


class PlainIterable(IterableDataset[Any]):
    """No state; each worker has a part of its own length, and a shuffle buffer."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def part(self) -> list[int]:
        """Return this worker's part."""
        number, workers = worker_of()
        starts = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        parts = [range(s, s + n) for s, n in zip(starts, self.lengths, strict=True)]
        return [index for part in parts[number::workers] for index in part]

    def __iter__(self) -> Iterator[tuple[int, float]]:
        buffer: list[int] = []
        for index in self.part():
            buffer.append(index)
            if len(buffer) > 3:
                yield buffer.pop(random.randrange(len(buffer))), float(torch.rand(()))
        random.shuffle(buffer)
        for index in buffer:
            yield index, float(np.random.rand())


class StatefulIterable(PlainIterable):
    """State on the dataset, which counts its epochs."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(lengths)
        self.i = 0
        self.resume_at: int | None = None
        self.epoch = 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        self.i = 0 if self.resume_at is None else self.resume_at
        self.resume_at = None
        for index in self.part()[self.i :]:
            self.i += 1
            yield index, self.epoch + random.random()
        self.i = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.resume_at, self.epoch = state_dict["i"], state_dict["epoch"]


class IterableWithStatefulIterator(PlainIterable):
    """State on the iterator."""

    def __iter__(self) -> Any:
        return PartIterator(self.part())


class PartIterator(CountingIterator):
    def __init__(self, part: list[int]) -> None:
        super().__init__(len(part))
        self.part = part

    def __next__(self) -> Any:
        return self.part[super().__next__()], random.random()


class OwnIterator(PlainIterable):
    """A dataset that is its own iterator, and starts again at each ``iter()``."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(lengths)
        self.i = 0

    def __iter__(self) -> Any:
        self.i = 0
        return self

    def __next__(self) -> tuple[int, float]:
        part = self.part()
        if self.i >= len(part):
            raise StopIteration
        self.i += 1
        return part[self.i - 1], random.random()

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]


class Endless(Iterator[int]):
    """Its own iterator, which never starts again by itself. Its passes have the given lengths."""

    def __init__(self, length: int = 7) -> None:
        self.i, self.length = 0, length

    def __next__(self) -> int:
        self.i += 1
        if self.i % self.length == 0:
            raise StopIteration
        return self.i

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]


class Exhausted(Endless):
    """Has one pass, and nothing after it."""

    def __next__(self) -> int:
        if self.i == self.length:
            raise StopIteration
        self.i += 1
        return self.i


class KeepsWhatItLoaded(IterableDataset[int]):
    """Like Hugging Face's IterableDataset: each pass begins at the loaded place (issue 7447)."""

    def __init__(self, length: int = 9) -> None:
        self.length = length
        self._starting_state_dict: dict[str, Any] | None = None
        self._state_dict: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[int]:
        start = self._starting_state_dict or {"i": 0}
        for i in range(start["i"], self.length):
            self._state_dict = {"i": i + 1}
            yield i

    def state_dict(self) -> dict[str, Any] | None:
        return self._state_dict

    def load_state_dict(self, state_dict: dict[str, Any] | None) -> None:
        self._starting_state_dict = state_dict


BAD = {2, 7, 8, 9, 24}
"""Samples that broken iterables refuse; no worker's iterator ends with one of them."""


class BrokenIterator(PartIterator):
    """Raises for bad samples and continues after them; draws for every sample."""

    def __next__(self) -> Any:
        index, drawn = super().__next__()
        if index in BAD:
            raise ValueError(f"no label {index}")
        return index, drawn


class IterableWithBrokenIterator(PlainIterable):
    """State on an iterator that refuses some samples."""

    def __iter__(self) -> Any:
        return BrokenIterator(self.part())


class BrokenIterable(PlainIterable):
    """Its iterator, ``map``, has no state and continues after an exception."""

    def __iter__(self) -> Any:
        return map(refuse_bad, super().__iter__())


def refuse_bad(sample: tuple[int, float]) -> tuple[int, float, float]:
    """A transform that draws, and refuses some samples."""
    drawn = float(torch.rand(()))
    if sample[0] in BAD:
        raise ValueError(f"no label {sample[0]}")
    return *sample, drawn


class RepeatedAugmentation(Sampler[int]):
    """Like RASampler of torchvision's references: each sample three times, on different ranks.

    ``set_epoch`` shuffles again.
    """

    def __init__(self, length: int, num_replicas: int, rank: int, *, seed: int = 0) -> None:
        self.length = length
        self.num_replicas = num_replicas
        self.rank = rank
        self.seed = seed
        self.epoch = 0
        self.num_samples = -(-3 * length // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        indices = [index for index in order for _ in range(3)]
        indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class DealtWhenBuilt(Sampler[int]):
    """Its rank counts only when it is built."""

    def __init__(self, length: int, num_replicas: int, rank: int) -> None:
        self.num_replicas = num_replicas
        self.rank = rank
        self.indices = list(range(length))[rank::num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class ShuffledWhereItLies(RepeatedAugmentation):
    """Each pass shuffles the list left by the pass before."""

    def __init__(self, length: int, num_replicas: int, rank: int) -> None:
        super().__init__(length, num_replicas, rank)
        self.order = list(range(3 * length))

    def __iter__(self) -> Iterator[int]:
        random.Random(self.seed).shuffle(self.order)
        return iter([i // 3 for i in self.order[self.rank :: self.num_replicas]])


class InBatches(Sampler[list[int]]):
    """A user's batch sampler around another sampler, as in detection scripts."""

    def __init__(self, sampler: Sampler[int], sizes: tuple[int, ...]) -> None:
        self.sampler = sampler
        self.sizes = sizes

    def __iter__(self) -> Iterator[list[int]]:
        indices, turn = list(self.sampler), 0
        while indices:
            size = self.sizes[turn % len(self.sizes)]
            yield indices[:size]
            indices, turn = indices[size:], turn + 1
