"""A run that saves, dies and resumes equals the uninterrupted run.

Its schedulers lie in another scheduler, whose state holds theirs, with a Counter.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as schedulers
from torch.optim.lr_scheduler import MultiStepLR

from stateful_gpu_loader import RNG, FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.checkpoint import Checkpoint
from tests.images import write_photo_folder

# torch 2.8's own SequentialLR steps its schedulers in this way.
pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")


def objects(root: Path, num_workers: int) -> dict[str, Any]:
    train = StatefulGPULoader(
        FolderSource(str(root)),
        batch_size=3,
        shuffle=True,
        seed=5,
        num_workers=num_workers,
        transform=[T.RandomResizedCrop(24), T.RandomHorizontalFlip(0.5)],
    )
    validation = StatefulGPULoader(list(range(20)), batch_size=4, shuffle=True, seed=6)
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(24 * 24 * 3, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5)
    )
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    return {
        "train": train,
        "validation": validation,
        "noise": RNG(9),
        "generator": torch.Generator().manual_seed(3),
        "numpy": np.random.default_rng(4),
        "module": module,
        "optimizer": optimizer,
        "scheduler": schedulers.SequentialLR(
            optimizer,
            [schedulers.LinearLR(optimizer, total_iters=2), MultiStepLR(optimizer, [1, 2, 2])],
            milestones=[2],
        ),
        "global torch": torch.default_generator,
        "global python": random,
        "global numpy": np.random,
        "python": random.Random(1),
    }


def run(found: dict[str, Any], checkpoint: Checkpoint, path: Path | None) -> list[Any]:
    """Return the record of each step to the end; save after each step."""
    seen: list[Any] = []
    validation = iter(found["validation"])
    epochs = range(found["train"].state_dict()["epoch"], 2)
    for _ in epochs:
        for images, targets in found["train"]:
            noise = found["noise"].uniform(size=2).tolist()
            noise += torch.rand(2, generator=found["generator"]).tolist()
            noise += found["numpy"].random(2).tolist()
            noise += [random.random(), np.random.random(), found["python"].random()]
            loss = found["module"](images.float().flatten(1) / 255).square().mean() * noise[0]
            found["optimizer"].zero_grad()
            loss.backward()
            found["optimizer"].step()
            found["scheduler"].step()
            numbers = next(validation, None)
            if numbers is None:
                validation = iter(found["validation"])
            seen.append((images.clone(), targets, noise, loss.item(), numbers))
            if path is not None:
                checkpoint.collect()
                checkpoint.save(path)
    return seen


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)
        for pairs in (
            [(x, y) for x, y in zip(step, twin, strict=True) if x is not None or y is not None]
            for step, twin in zip(one, other, strict=True)
        )
    )


def test_run_resumes_exactly_from_every_step(tmp_path: Path) -> None:
    """Pixels, order, every generator and the losses, over two epochs.

    One resumed run has workers, and loads its checkpoint after registration.
    """
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=4)
    found, checkpoint = objects(tmp_path / "photos", 0), Checkpoint()
    for name, thing in found.items():
        checkpoint.register(thing, name)
    expected = run(found, checkpoint, tmp_path / "run_{seq}.json")
    assert len(expected) == 6
    for step in range(len(expected)):
        resumed, fresh = Checkpoint(), objects(tmp_path / "photos", 2 if step == 1 else 0)
        if step != 1:
            resumed.load(tmp_path / f"run_{step}.json")
        for name, thing in fresh.items():
            resumed.register(thing, name)
        if step == 1:
            resumed.load(tmp_path / "run_1.json")
            resumed.restore()
        assert same(run(fresh, resumed, None), expected[step + 1 :]), step
