"""torch.save of model, optimizer and loader together, loaded with weights_only=True."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import (
    CallableSource,
    DistributedShuffledSampler,
    SampleInfo,
    StatefulGPULoader,
)
from tests.conformance import copy_of, same
from tests.makers import MAKERS
from tests.map_datasets import Noisy
from tests.trainer_data import image_loader, photos, tars

pytestmark = pytest.mark.filterwarnings(
    # A plain iterable has no state: it is read again up to its place, as the warning says.
    r"ignore:\d+ samples of the iterable dataset are read again:UserWarning"
)
Loader = StatefulGPULoader[Any]
EPOCHS = 2


class Interrupted(Exception):
    """What ends a run in the middle of a step."""


def photographs(folder: Path) -> Loader:
    return image_loader(photos(folder))


def photographs_of_two_workers(folder: Path) -> Loader:
    return image_loader(photos(folder), num_workers=2)


def lanes(folder: Path) -> Loader:
    return image_loader(tars(folder), num_workers=2)


def lanes_of_a_rank(folder: Path) -> Loader:
    return image_loader(tars(folder), rank=1, num_replicas=2)


def sampler_of_a_rank(folder: Path) -> Loader:
    dataset = Noisy(30)
    sampler = DistributedShuffledSampler(dataset, num_replicas=2, rank=1, seed=3)
    return StatefulGPULoader(dataset, 4, sampler=sampler)


def twice(info: SampleInfo) -> tuple[int, torch.Tensor]:
    if info.idx_in_epoch >= 14:
        raise StopIteration
    return 2 * info.idx_in_epoch, torch.rand(3)


def function(folder: Path) -> Loader:
    return StatefulGPULoader(CallableSource(twice), batch_size=4, seed=5)


def of_makers(name: str, num_workers: int) -> Callable[[Path], Loader]:
    return lambda folder: MAKERS[name](num_workers=num_workers)


LOADERS: dict[str, Callable[[Path], Loader]] = {
    "photographs": photographs,
    "photographs, 2 workers": photographs_of_two_workers,
    "lanes, 2 workers": lanes,
    "lanes of a rank": lanes_of_a_rank,
    "sampler of a rank": sampler_of_a_rank,
    "function": function,
    **{name: of_makers(name, 0) for name in MAKERS if name != "large batches"},
    "sampler and dataset with state, 2 workers": of_makers("sampler and dataset with state", 2),
    "iterable with state, 2 workers": of_makers("iterable with state", 2),
}


class Job:
    """A training script: a model, an optimizer and a loader, saved together."""

    def __init__(self, loader: Loader) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.loader = loader
        self.epoch = 0
        self.seen: list[tuple[int, Any]] = []

    def train(self, path: Path, *, save_at: int | None = None) -> int:
        """Train to the end, or save behind so many batches, and break in the step after it.

        Returns:
            the number of batches.
        """
        for epoch in range(self.epoch, EPOCHS):
            self.epoch = epoch
            for batch in self.loader:
                if save_at is not None and len(self.seen) > save_at:
                    raise Interrupted
                self.optimizer.zero_grad()
                self.model(brightness(batch)).sum().backward()
                self.optimizer.step()
                self.seen.append((epoch, copy_of(batch)))
                if len(self.seen) == save_at:
                    self.save(path)
        if save_at is not None:
            raise Interrupted
        return len(self.seen)

    def save(self, path: Path) -> None:
        checkpoint = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "epoch": self.epoch,
        }
        torch.save(checkpoint, path)

    def load(self, path: Path) -> None:
        checkpoint = torch.load(path, weights_only=True)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.loader.load_state_dict(checkpoint["loader"])
        self.epoch = checkpoint["epoch"]


def brightness(batch: Any) -> torch.Tensor:
    """float32 [1]: of all that a batch holds."""
    parts = [part.to(torch.float32).mean() for part in tensors_of(batch)]
    return torch.stack(parts).mean().reshape(1) / 100


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            yield from tensors_of(part)
    else:
        yield torch.as_tensor(batch)


@pytest.fixture(params=LOADERS)
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Loader]:
    make = LOADERS[request.param]
    return lambda: make(tmp_path / "data")


@pytest.mark.trainers
def test_a_job_goes_on_exactly(build: Callable[[], Loader], tmp_path: Path) -> None:
    """In the first epoch, behind its last batch, and in the second: samples and weights."""
    undisturbed = Job(build())
    number = undisturbed.train(tmp_path)
    of_first = sum(epoch == 0 for epoch, _ in undisturbed.seen)
    assert 1 < of_first < number - 1
    for save_at in (0, 2, of_first, of_first + 1, number):
        path = tmp_path / f"{save_at}.pt"
        broken = Job(build())
        if save_at == 0:
            broken.save(path)
        with pytest.raises(Interrupted):
            broken.train(path, save_at=save_at)
        resumed = Job(build())
        resumed.load(path)
        resumed.train(tmp_path)
        assert same(resumed.seen, undisturbed.seen[save_at:]), save_at
        for one, other in zip(
            resumed.model.parameters(), undisturbed.model.parameters(), strict=True
        ):
            assert torch.equal(one, other), save_at


@pytest.mark.trainers
def test_saved_between_two_epochs(build: Callable[[], Loader], tmp_path: Path) -> None:
    """The next epoch comes, whole."""
    loader = build()
    epochs = [[copy_of(batch) for batch in loader] for _ in range(2)]
    ended = build()
    list(ended)
    torch.save({"loader": ended.state_dict()}, tmp_path / "end.pt")
    resumed = build()
    resumed.load_state_dict(torch.load(tmp_path / "end.pt", weights_only=True)["loader"])
    assert same([copy_of(batch) for batch in resumed], epochs[1])
