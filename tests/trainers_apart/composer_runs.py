"""Real Composer Trainers on the CPU, and what their training steps were given."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from composer import Trainer
from composer.core import Callback, State
from composer.loggers import Logger
from composer.models import ComposerModel
from torch.utils.data import IterableDataset

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.integrations.composer import LoaderStateCallback
from tests.trainer_data import Brightness, image_loader, photos, tars

Samples: TypeAlias = tuple[tuple[int, str], ...]
"""Of one batch: the number of each sample, and a digest of its pixels."""


def samples_of(batch: Any) -> Samples:
    images, numbers = batch
    digests = [
        hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        for image in images
    ]
    return tuple(zip(numbers.tolist(), digests, strict=True))


class Model(ComposerModel):
    """Of a few weights, and with a draw from the global generator in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Brightness()

    def forward(self, batch: Any) -> torch.Tensor:
        return self.inner(batch[0]) * torch.rand(())

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        return outputs

    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        return self.inner(batch[0])


class Recorder(Callback):
    """Writes down each batch whose step was made, and each that was evaluated."""

    def __init__(self, fail_at: int | None = None, kill_at: int | None = None) -> None:
        self.fail_at, self.kill_at = fail_at, kill_at
        self.trained: list[Samples] = []
        self.evaluated: list[Samples] = []
        self._given: Samples | None = None

    def batch_start(self, state: State, logger: Logger) -> None:
        self._given = samples_of(state.batch)
        if int(state.timestamp.batch) == self.fail_at:
            raise RuntimeError("power failure")
        if int(state.timestamp.batch) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def batch_end(self, state: State, logger: Logger) -> None:
        assert self._given is not None
        self.trained.append(self._given)

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        self.evaluated.append(samples_of(state.batch))


@dataclass(frozen=True)
class Ended:
    """What a run has left."""

    trainer: Trainer
    trained: list[Samples]
    evaluated: list[Samples]

    @property
    def weights(self) -> list[torch.Tensor]:
        return [weight.detach().clone() for weight in self.trainer.state.model.parameters()]


def trainer_of(
    loader: Any,
    duration: str,
    folder: Path | None = None,
    *,
    has_callback: bool = True,
    fail_at: int | None = None,
    kill_at: int | None = None,
    **arguments: Any,
) -> tuple[Trainer, Recorder]:
    """A new Trainer with a new model; it saves after each batch if it has a folder."""
    model, recorder = Model(), Recorder(fail_at, kill_at)
    if folder is not None:
        arguments = {
            "save_folder": str(folder),
            "save_filename": "ep{epoch}-ba{batch}.pt",
            "save_interval": "1ba",
            "save_overwrite": True,
            **arguments,
        }
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=loader,
        max_duration=duration,
        callbacks=[recorder, *([LoaderStateCallback()] if has_callback else [])],
        device="cpu",
        seed=3,
        progress_bar=False,
        **arguments,
    )
    return trainer, recorder


def fitted(loader: Any, duration: str, folder: Path | None = None, **arguments: Any) -> Ended:
    """A run to its end."""
    trainer, recorder = trainer_of(loader, duration, folder, **arguments)
    try:
        trainer.fit()
    finally:
        trainer.close()
    return Ended(trainer, recorder.trained, recorder.evaluated)


class Numbered(IterableDataset[Any]):
    """Of no length: noise from the global generator as images, and a number each.

    The state is the iterator's: Composer would call a dataset's with arguments of its own.
    """

    def __iter__(self) -> Iterator[Any]:
        return Numbers()


class Numbers(Iterator[Any]):
    def __init__(self) -> None:
        self._number = 0

    def __next__(self) -> Any:
        if self._number == 23:
            raise StopIteration
        self._number += 1
        return torch.randint(256, (3, 4, 4), dtype=torch.uint8), self._number

    def state_dict(self) -> dict[str, int]:
        return {"number": self._number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._number = state["number"]


class Images(torch.utils.data.Dataset[Any]):
    """Noise from the global generator, which the workers' processes draw."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.randint(256, (3, 4, 4), dtype=torch.uint8), index


KINDS = ("photographs", "2 threads", "2 processes", "lanes", "unsized")


class Data:
    """The loaders of the tests, over the same files whenever they are built."""

    def __init__(self, folder: Path) -> None:
        self.photographs = photos(folder / "photographs")
        self.lanes = {
            "lanes": tars(folder / "lanes", (6, 6, 6, 6)),
            "uneven lanes": tars(folder / "uneven", (5, 8, 3, 8)),
        }

    def loader(self, kind: str = "photographs", **arguments: Any) -> StatefulGPULoader[Any]:
        if kind == "2 processes":
            given = {"batch_size": 4, "shuffle": True, "seed": 11, "num_workers": 2}
            return StatefulGPULoader(Images(), **{**given, **arguments})
        if kind == "unsized":
            return StatefulGPULoader(Numbered(), batch_size=4, seed=11, **arguments)
        if kind in self.lanes:
            return image_loader(self.lanes[kind], **arguments)
        return image_loader(
            self.photographs, num_workers=2 if kind == "2 threads" else 0, **arguments
        )


class Undisturbed:
    """One run for each kind of loader, with a checkpoint after each of its 12 batches."""

    def __init__(self, data: Data, folder: Path) -> None:
        self._data, self._folder = data, folder
        self._runs: dict[Any, Ended] = {}

    def __call__(self, kind: str, **arguments: Any) -> tuple[Ended, Path]:
        key = kind, *sorted(arguments.items())
        folder = self._folder / str(abs(hash(key)))
        if key not in self._runs:
            self._runs[key] = fitted(self._data.loader(kind), "12ba", folder, **arguments)
        return self._runs[key], folder


def assert_same_from(batch: int, resumed: Ended, whole: Ended) -> None:
    assert resumed.trained == whole.trained[batch:]
    assert all(map(torch.equal, resumed.weights, whole.weights))
