"""Datasets with bad samples, and how their makers are run; what the tests of law 6 share."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.samples import SampleMaker
from stateful_gpu_loader.engine.pipeline import Answer, never_stopped
from stateful_gpu_loader.engine.schedules.positions import Division, Requests
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.samplers import ShuffledOrder
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.epoch_progress import Address
from tests.conformance import same
from tests.map_datasets import Indices, Noisy, NoisyBatches

SEED, EPOCH = 42, 3


class Damaged(Noisy):
    """Raises for some indices before it draws; ``copies`` gives an index another's content."""

    def __init__(
        self,
        length: int,
        errors: Mapping[Any, Callable[[], Exception]] | None = None,
        copies: Mapping[Any, int] | None = None,
    ) -> None:
        super().__init__(length)
        self.errors = errors or {}
        self.copies = copies or {}
        self.reads: Counter[Any] = Counter()

    def __getitem__(self, index: Any) -> dict[str, Any]:
        self.reads[index] += 1
        if index in self.errors:
            raise self.errors[index]()
        return super().__getitem__(self.copies.get(index, index))


class DamagedBatches(Damaged, NoisyBatches):
    """The same, fetched a batch at once, with one draw for all of it."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        for index in indices:
            self.reads[index] += 1
            if index in self.errors:
                raise self.errors[index]()
        copied = [self.copies.get(index, index) for index in indices]
        shared = torch.rand(())
        return [{"shared": shared, **Noisy.__getitem__(self, index)} for index in copied]


KINDS = [Damaged, DamagedBatches]


class FailsByDraw(Noisy):
    """Some indices fail at some draws, and so each epoch decides anew."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        if random.random() < 0.5 and index % 3 == 0:
            raise ValueError("the crop is empty")
        return sample


class Named(Dataset[dict[str, Any]]):
    """Its indices are no ints."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name == self.broken:
            raise ValueError("no such name")
        return {"name": name, "torch": torch.rand(())}


def requests_of(
    length: int, batch_size: int, *, ranks: int = 1, rank: int = 0, epoch: int = EPOCH
) -> list[Request]:
    """A rank's requests of a shuffled epoch."""
    division = Division(batch_size=batch_size, drop_last=False, rank=rank, num_replicas=ranks)
    indices = ShuffledOrder(range(length)).of_epoch(SEED, epoch)
    return list(Requests(Address(epoch, 0), seed=SEED, indices=indices, division=division))


def request_of(indices: list[Any], start: int = 0, epoch: int = EPOCH) -> Request:
    """A request whose order is the user's own."""
    return Request(
        ordinal=0, seed=SEED, epoch=epoch, start=start, step=1, indices=indices, end=len(indices)
    )


def policy_for(dataset: Any, mode: str, **known: Any) -> BadSamplePolicy:
    """The policy of a loader that shuffles ``dataset``."""
    return BadSamplePolicy(mode=mode, order=ShuffledOrder(dataset), **known)


def maker_of(
    dataset: Any,
    policy: BadSamplePolicy | str = "raise",
    *,
    transform: Callable[[Any], Any] | None = None,
    collate_fn: Callable[[Any], Any] = default_collate,
    batched: bool = True,
) -> SampleMaker:
    """A maker as a loader makes it."""
    if isinstance(policy, str):
        policy = policy_for(dataset, policy)
    return SampleMaker(
        dataset, transform=transform, collate_fn=collate_fn, batched=batched, policy=policy
    )


def run(maker: Any, request: Request) -> tuple[Any, tuple[FoundBad, ...]]:
    """A request's batch, and the bad samples met for it."""
    answer = maker(request, never_stopped)
    if isinstance(answer, Answer):
        assert answer.bad, "an Answer that has nothing to say"
        assert (answer.worker, answer.snapshot) == (0, None)
        return answer.payload, answer.bad
    return answer, ()


def replacement_of(
    policy: BadSamplePolicy, request: Request, number: int, bad: set[Any]
) -> tuple[int, Any]:
    """The position and index that take the place of one of a request's samples."""
    for position, index in policy.candidates(request, number):
        if index not in bad:
            return position, index
    raise AssertionError("no candidate is sound")


def assert_found_is_of_the_order(found: tuple[FoundBad, ...], length: int) -> None:
    """Each was met where the epoch's order has it."""
    for bad in found:
        order = ShuffledOrder(Indices(length)).of_epoch(SEED, bad.epoch)
        assert order(np.array([bad.position % length]))[0] == bad.index


def assert_same(found: Any, wanted: Any) -> None:
    """Equal bit for bit."""
    assert same(found, wanted), f"{found} is not {wanted}"
