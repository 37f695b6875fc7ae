"""LoaderStateCallback: checkpoints of every hook resume exactly."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from tests.integrations.lightning.recorded_fits import (
    OF_LIGHTNING,
    READS_AGAIN,
    Witness,
    assert_exact_from_every_hook,
    fit,
    saved_everywhere,
)
from tests.integrations.lightning.streams import (
    SizedStream,
    StatefulStream,
    called,
    distributed,
    noisy,
    stream,
)
from tests.trainer_data import image_loader, photos, tars

pytestmark = [pytest.mark.filterwarnings(text) for text in (*OF_LIGHTNING, READS_AGAIN)]

TORCHS = "torch's DistributedSampler"
LOADERS = {
    "sized": noisy,
    "sized, two workers": partial(noisy, num_workers=2),
    "unsized": stream,
    "unsized, two workers": partial(stream, num_workers=2),
    "unsized, with state": partial(stream, kind=StatefulStream),
    "sized stream": partial(stream, kind=SizedStream),
    "function without length": called,
    TORCHS: distributed,
}


@pytest.mark.parametrize("loader", LOADERS)
def test_every_loader(loader: str, tmp_path: Path) -> None:
    every = {"sized": 1, "unsized": 1, "unsized, with state": 3}.get(loader, 7)
    every = 17 if "workers" in loader else every
    assert_exact_from_every_hook(tmp_path, LOADERS[loader], every=every)


@pytest.mark.parametrize(("kind", "num_workers"), [("photographs", 0), ("lanes", 2)])
def test_pixels(kind: str, num_workers: int, tmp_path: Path) -> None:
    data = photos(tmp_path) if kind == "photographs" else tars(tmp_path / "tars")
    make = partial(image_loader, data, num_workers=num_workers)
    assert_exact_from_every_hook(tmp_path, make, every=5, max_epochs=2)


@pytest.mark.parametrize(
    "loader",
    ["sized, two workers", "unsized", "unsized, with state", "function without length"],
)
def test_estimated_stepping_batches_in_configure_optimizers(loader: str, tmp_path: Path) -> None:
    """Lightning requests the loaders, and fetches ahead, before it restores anything."""
    assert_exact_from_every_hook(tmp_path, LOADERS[loader], asks_for_steps=True, every=17)


@pytest.mark.parametrize(
    "loader",
    ["sized", "unsized, two workers", "unsized, with state", "sized stream", TORCHS],
)
def test_max_steps(loader: str, tmp_path: Path) -> None:
    """A fit limited by steps restarts its loops differently from one limited by epochs."""
    arguments: dict[str, Any] = {"max_steps": 13, "max_epochs": -1}
    every = 17 if "workers" in loader else 5
    assert_exact_from_every_hook(tmp_path, LOADERS[loader], every=every, **arguments)


@pytest.mark.parametrize("loader", ["sized", "unsized", "unsized, with state"])
def test_limit_train_batches(loader: str, tmp_path: Path) -> None:
    """The rest of a limited epoch never comes, before or after a resume."""
    assert_exact_from_every_hook(tmp_path, LOADERS[loader], limit_train_batches=3, every=2)


COLLECTIONS: dict[str, Any] = {
    "max_size_cycle": lambda: {"a": noisy(), "b": noisy(8, seed=9)},
    "max_size_cycle, unsized": lambda: {"a": stream(), "b": [noisy(8, seed=9)]},
    "max_size_cycle, all kinds": lambda: [
        stream(8),
        stream(20, StatefulStream),
        noisy(8),
        called(),
    ],
    "max_size": lambda: CombinedLoader({"a": stream(), "b": noisy(8)}, "max_size"),
    "max_size, sized": lambda: CombinedLoader([noisy(), noisy(8)], "max_size"),
    "min_size": lambda: CombinedLoader([stream(), stream(14, StatefulStream)], "min_size"),
    "beside a plain loader": lambda: [noisy(), DataLoader(list(range(25)), batch_size=5)],
}


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_several_train_loaders(collection: str, tmp_path: Path) -> None:
    if collection == "beside a plain loader":
        # It starts again at a resume, as without the callback; this package's loader continues.
        uninterrupted = fit(COLLECTIONS[collection])
        for path in saved_everywhere(tmp_path, COLLECTIONS[collection])[::7]:
            resumed = fit(COLLECTIONS[collection], resume=path)
            assert ours(resumed) == ours(uninterrupted), path.name
    else:
        assert_exact_from_every_hook(tmp_path, COLLECTIONS[collection], every=3, max_epochs=2)


SIZED, UNSIZED = partial(noisy, 16), partial(stream, 14)
TWICE = {"val_check_interval": 2}
VALIDATIONS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "in order": (SIZED, lambda: noisy(12, shuffle=False), {}),
    "shuffled, twice an epoch": (UNSIZED, lambda: noisy(12), TWICE),
    "unsized, twice an epoch": (SIZED, lambda: stream(10), TWICE),
    "with state": (UNSIZED, lambda: stream(10, StatefulStream), {}),
    "every second epoch": (
        SIZED,
        lambda: noisy(12),
        {"check_val_every_n_epoch": 2, "max_epochs": 4},
    ),
    "two, limited": (
        UNSIZED,
        lambda: [noisy(12, shuffle=False), stream(10)],
        {"limit_val_batches": 2},
    ),
    "two by name": (SIZED, lambda: {"a": noisy(12, shuffle=False), "b": noisy(8)}, {}),
    "two at once": (UNSIZED, lambda: CombinedLoader([noisy(12), stream(6)], "max_size"), {}),
    "by steps": (UNSIZED, lambda: noisy(12), {"max_steps": 9, "max_epochs": -1}),
    "two workers": (SIZED, lambda: noisy(8, num_workers=2), {"max_epochs": 2}),
}
"""Loaders of the training and of the validation, and arguments of the trainer."""


@pytest.mark.parametrize("validation", VALIDATIONS)
def test_validation(validation: str, tmp_path: Path) -> None:
    """Between its batches, too. The sanity check does not move it."""
    make, of_validation, arguments = VALIDATIONS[validation]
    assert_exact_from_every_hook(
        tmp_path,
        make,
        validation=of_validation,
        num_sanity_val_steps=2,
        every=17 if "workers" in validation else 7,
        **arguments,
    )


def ours(witness: Witness) -> list[Any]:
    """Return the batches of the first of several loaders."""
    return [batch[0] for _, _, batch in witness.trained]


def test_validation_by_time(tmp_path: Path) -> None:
    """The rest of an interrupted validation is skipped, as in Lightning; later ones are whole.

    An interval of no time has passed after every step.
    """
    arguments: dict[str, Any] = {"val_check_interval": timedelta(0), "max_epochs": 1}
    uninterrupted = fit(noisy, validation=partial(stream, 10), **arguments)
    assert len(uninterrupted.validated) == 5 * 3
    paths = saved_everywhere(tmp_path, noisy, validation=partial(stream, 10), **arguments)
    for path in [path for path in paths if "validation" in path.name][::3]:
        saved = len(torch.load(path, weights_only=True)["trained"])
        resumed = fit(noisy, validation=partial(stream, 10), resume=path, **arguments)
        assert resumed.trained == uninterrupted.trained, path.name
        numbers = [
            [batch[0] for *_, batch in since(run, saved)] for run in (resumed, uninterrupted)
        ]
        assert numbers[0] == numbers[1], path.name


def since(witness: Witness, trained: int) -> list[Any]:
    """Return the validation batches after later training batches."""
    return [one for one in witness.validated if one[0] > trained]


class Asking(Witness):
    """Fetches the batch in its own step."""

    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        """Train as the base class does."""
        batch, batch_idx, _ = next(dataloader_iter)
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:Found `dataloader_iter` argument in the `training_step`")
@pytest.mark.parametrize("loader", ["sized", "unsized, with state"])
def test_dataloader_iter(loader: str, tmp_path: Path) -> None:
    """Each step fetches one batch."""
    assert_exact_from_every_hook(tmp_path, LOADERS[loader], kind=Asking, every=3)


def test_gradient_accumulation(tmp_path: Path) -> None:
    """The batches are the same; checkpoints lack the gradients of an interrupted accumulation."""
    assert_exact_from_every_hook(tmp_path, partial(noisy, 18), accumulate_grad_batches=2, every=5)
