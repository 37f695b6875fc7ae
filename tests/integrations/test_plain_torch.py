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

Loader = StatefulGPULoader[Any]
EPOCHS = 2


def twice(info: SampleInfo) -> tuple[int, torch.Tensor]:
    if info.idx_in_epoch >= 14:
        raise StopIteration
    return 2 * info.idx_in_epoch, torch.rand(3)


def sampler_of_a_rank(folder: Path) -> Loader:
    dataset = Noisy(30)
    sampler = DistributedShuffledSampler(dataset, num_replicas=2, rank=1, seed=3)
    return StatefulGPULoader(dataset, 4, sampler=sampler)


LOADERS: dict[str, Callable[[Path], Loader]] = {
    "photographs": lambda folder: image_loader(photos(folder)),
    "lanes of a rank": lambda folder: image_loader(tars(folder), rank=1, num_replicas=2),
    "lanes, 2 workers": lambda folder: image_loader(tars(folder), num_workers=2),
    "sampler of a rank": sampler_of_a_rank,
    "function": lambda folder: StatefulGPULoader(CallableSource(twice), batch_size=4, seed=5),
    **{
        f"{name}, {num_workers} workers": lambda folder, name=name, num_workers=num_workers: MAKERS[
            name
        ](num_workers=num_workers)
        for name, num_workers in (
            ("sampler and dataset with state", 0),
            ("sampler and dataset with state", 2),
            ("iterable with state", 2),
        )
    },
}
"""Kinds of values that a state holds."""


def train(
    loader: Loader, path: Path, *, save_at: tuple[int, int] | None = None, resume: bool = False
) -> tuple[list[tuple[int, Any]], torch.nn.Module]:
    """Run a training script to its end, or save after so many batches of an epoch and break off.

    Args:
        save_at: an epoch and a number of its batches; -1 is after the loop over them.
        resume: from the file at ``path``.

    Returns:
        Each batch with its epoch, and the model.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    first, found = 0, list[tuple[int, Any]]()
    if resume:
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first = saved["epoch"]

    def save(epoch: int) -> None:
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "epoch": epoch}, path)

    for epoch in range(first, EPOCHS):
        number = 0
        for number, batch in enumerate(loader, start=1):
            if save_at is not None and (epoch, number) > save_at and save_at[1] >= 0:
                return found, model  # in the middle of a step
            optimizer.zero_grad()
            model(brightness(batch)).sum().backward()
            optimizer.step()
            found.append((epoch, copy_of(batch)))
            if (epoch, number) == save_at:
                save(epoch)
        if save_at is not None and save_at == (epoch, -1):
            save(epoch + 1)
            break
    return found, model


def brightness(batch: Any) -> torch.Tensor:
    """Return the mean of all pixels in a batch, float32 [1]."""
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


@pytest.mark.trainers
@pytest.mark.parametrize("kind", LOADERS)
def test_a_job_resumes_exactly(kind: str, tmp_path: Path) -> None:
    """In the first epoch, at its last batch, after it, and in the second: samples and weights."""
    make, path = lambda: LOADERS[kind](tmp_path / "data"), tmp_path / "saved.pt"
    uninterrupted, wanted = train(make(), path)
    length = sum(epoch == 0 for epoch, _ in uninterrupted)
    assert 2 < length < len(uninterrupted) - 1
    for save_at in ((0, 2), (0, length), (0, -1), (1, 1), (1, len(uninterrupted) - length)):
        broken, _ = train(make(), path, save_at=save_at)
        rest, model = train(make(), path, resume=True)
        assert same([*broken, *rest], uninterrupted), save_at
        assert all(map(torch.equal, model.parameters(), wanted.parameters())), save_at
