"""A fit leaves no process and no thread of the loaders, as with torch's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from stateful_gpu_loader import FolderSource
from stateful_gpu_loader.integrations.lightning import LoaderStateCallback
from tests.engine.workers.fakes import children
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.integrations.lightning.recorded_fits import OF_LIGHTNING, Witness, silent_trainer
from tests.trainer_data import image_loader, photos, seen

__all__ = ["fake_gpu"]
pytestmark = [pytest.mark.filterwarnings(text) for text in OF_LIGHTNING]

KINDS: dict[str, dict[str, Any]] = {
    "processes": {"num_workers": 2, "worker_type": "process"},
    "threads": {"num_workers": 2, "worker_type": "thread"},
    "device": {"num_workers": 2, "worker_type": "process", "device": "cuda"},
}
CALLBACKS: dict[str, Callable[[], list[Callback]]] = {
    "built in": list,
    "with the callback": lambda: [LoaderStateCallback()],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FolderSource:
    return photos(tmp_path_factory.mktemp("photos"))


def leftovers() -> tuple[set[str], list[str]]:
    """Return processes, and threads of the package and of the queues to its workers."""
    names = [thread.name for thread in threading.enumerate()]
    return children(), [name for name in names if "stateful_gpu" in name or "Queue" in name]


@pytest.mark.parametrize(
    ("kind", "persistent", "callbacks"),
    [
        ("processes", True, "with the callback"),
        ("processes", False, "built in"),
        ("threads", True, "built in"),
        ("threads", False, "with the callback"),
        ("device", True, "with the callback"),
        ("device", False, "built in"),
    ],
)
def test_a_fit_leaves_nothing_and_a_second_fit_continues(
    data: FolderSource, fake_gpu: FakeGpu, kind: str, persistent: bool, callbacks: str
) -> None:
    """Ended by ``max_epochs``, and in the middle of the second epoch by ``max_steps``."""
    make = partial(image_loader, data, device=KINDS[kind].get("device"))
    uninterrupted = make()
    expected = [[seen(batch) for batch in uninterrupted] for _ in range(3)]
    del uninterrupted
    before = leftovers()
    loader = make(**KINDS[kind], persistent_workers=persistent)
    validation = make(**KINDS[kind], persistent_workers=persistent)
    model, trainer = Witness(), silent_trainer(*CALLBACKS[callbacks](), max_epochs=1)
    trainer.fit(model, loader, validation)
    assert leftovers() == before
    trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps = 3, 8
    trainer.fit(model, loader, validation)
    assert leftovers() == before
    assert model.seen == expected[0] + expected[1][:2]


class DrawsBeforeItsFirstBatch(Witness):
    """Draws before its first batch, as a user's hook may."""

    def on_train_start(self) -> None:
        torch.rand(1)

    def on_train_epoch_start(self) -> None:
        torch.rand(1)


def test_the_callback_keeps_the_order_of_an_undecided_seed(data: FolderSource) -> None:
    """Numbers drawn before the first batch decide the seed, with and without the callback."""
    orders = []
    for callbacks in CALLBACKS.values():
        torch.manual_seed(3)
        model = DrawsBeforeItsFirstBatch()
        loader = image_loader(data, seed=None)
        silent_trainer(*callbacks(), max_epochs=1).fit(model, loader)
        orders.append(model.seen)
    assert orders[0] == orders[1]
