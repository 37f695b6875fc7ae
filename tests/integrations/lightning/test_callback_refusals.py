"""LoaderStateCallback: refusals before training starts, with nothing changed."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from stateful_gpu_loader import MissingDependency, StateMismatch
from tests.integrations.lightning.recorded_fits import OF_LIGHTNING, Witness, every_step, fit
from tests.integrations.lightning.streams import StatefulStream, noisy, stream

pytestmark = [pytest.mark.filterwarnings(text) for text in OF_LIGHTNING]


def two(**changes: Any) -> dict[str, Any]:
    return {"labeled": noisy(20), "unlabeled": noisy(8, seed=9), **changes}


def saved(folder: Path, make: Callable[[], Any], **arguments: Any) -> Path:
    fit(make, every_step(folder), max_epochs=1, **arguments)
    return folder / "step=3.ckpt"


def refusal(path: Path, loaders: Any, **arguments: Any) -> StateMismatch:
    """Return the refusal's text; check that nothing was trained on and no loader has moved.

    Of a loader without a length, Lightning has fetched a batch before.
    """
    witness = Witness()
    each = list(loaders.values()) if isinstance(loaders, dict) else [loaders]
    each = [loader for loader in each if hasattr(loader.dataset, "__len__")]
    before = [loader.state_dict() for loader in each]
    with pytest.raises(StateMismatch) as caught:
        fit(lambda: loaders, resume=path, witness=witness, **arguments)
    assert len(witness.trained) in (0, 3)  # the checkpoint's batches, if it was read
    assert [loader.state_dict() for loader in each] == before
    return caught.value


def test_other_train_loaders(tmp_path: Path) -> None:
    """Fewer loaders, others by their names, and the second of two that does not fit."""
    path = saved(tmp_path, two)
    fewer = refusal(path, noisy())
    assert fewer.field == "number of train loaders"
    assert (fewer.saved, fewer.present) == ("2: ['labeled', 'unlabeled']", "1: ['0']")
    named = two()
    named["others"] = named.pop("unlabeled")
    renamed = refusal(path, named)
    assert renamed.field == "names of the train loaders"
    assert renamed.saved == ["labeled", "unlabeled"]
    second = refusal(path, two(unlabeled=noisy(12, seed=9)))
    assert second.field == "length of the train loader 'unlabeled'"
    assert (second.saved, second.present) == (8, 12)
    first = refusal(path, two(labeled=noisy(20, drop_last=True)))
    assert first.field == "drop_last of the train loader 'labeled'"


def test_other_validation_loaders(tmp_path: Path) -> None:
    path = saved(tmp_path, noisy, validation=lambda: [noisy(12), noisy(8)])
    fewer = refusal(path, noisy(), validation=partial(noisy, 12))
    assert fewer.field == "number of val loaders"
    longer = refusal(path, noisy(), validation=lambda: [noisy(12), noisy(16)])
    assert longer.field == "length of the val loader '1'"
    assert (longer.saved, longer.present) == (8, 16)


DAMAGES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda state: state.pop("version"), "the callback's state"),
    (lambda state: state.update(version=7), "version"),
    (lambda state: state.update(format="x"), "format"),
    (lambda state: state.update(batches="3"), "the callback's state's batches"),
    (lambda state: state.update(epoch=-1), "the callback's state's epoch"),
    (lambda state: state["train"].update({"0": 5}), "train loader '0'"),
    (lambda state: state["train"]["0"].update(state=None), "train loader '0''s state"),
    (
        lambda state: state["train"]["0"]["state"].update(position=-4),
        "position of the train loader '0'",
    ),
]


def altered(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Write a copy of the file with the callback's state changed."""
    checkpoint = copy.deepcopy(torch.load(path, weights_only=True))
    change(checkpoint["callbacks"]["LoaderStateCallback"])
    torch.save(checkpoint, path.with_name("altered.ckpt"))
    return path.with_name("altered.ckpt")


def test_damaged_state(tmp_path: Path) -> None:
    path = saved(tmp_path, noisy)
    for change, field in DAMAGES:
        assert refusal(altered(path, change), noisy()).field == field


def test_ranks_with_states_of_their_own(tmp_path: Path) -> None:
    """User states differ between ranks: each rank of the same number needs its own."""

    def of_ranks(num_ranks: int, *ranks: int) -> Callable[[dict[str, Any]], None]:
        def change(state: dict[str, Any]) -> None:
            record = state["train"]["0"]
            record["state"] = {
                "format": "stateful_gpu_loader of each rank",
                "version": 1,
                "num_ranks": num_ranks,
                **{f"rank_{rank:05d}": record["state"] for rank in ranks},
            }

        return change

    make = partial(stream, kind=StatefulStream)
    path = saved(tmp_path, make)
    two_ranks = refusal(altered(path, of_ranks(2, 0, 1)), make())
    assert two_ranks.field == "number of ranks of the train loader '0'"
    assert (two_ranks.saved, two_ranks.present) == (2, 1)
    missing = refusal(altered(path, of_ranks(1, 1)), make())
    assert missing.field == "rank_00000 of the train loader '0'"


def test_other_loaders_with_state(tmp_path: Path) -> None:
    """Lightning restores torchdata's loaders; the callback still checks their number."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    plain = partial(torchdata.StatefulDataLoader, list(range(20)), batch_size=4)
    make = lambda: [noisy(), plain()]  # noqa: E731
    path = saved(tmp_path, make)
    uninterrupted = fit(make)
    assert fit(make, resume=path).trained == uninterrupted.trained
    with pytest.raises(StateMismatch) as caught:
        fit(lambda: [noisy(), list(range(5))], resume=path)
    assert caught.value.field == "number of train loaders with state"
    assert (caught.value.saved, caught.value.present) == (2, 1)


class NoLightning:
    """Hides both packages of Lightning."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Refuse to find them."""
        if name.split(".")[0] in ("lightning", "pytorch_lightning"):
            raise ModuleNotFoundError(name)


MODULE = "stateful_gpu_loader.integrations.lightning.callback"


def test_without_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "lightning"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, MODULE)
    monkeypatch.setattr(sys, "meta_path", [NoLightning(), *sys.meta_path])
    with pytest.raises(MissingDependency, match=r"stateful_gpu_loader\[lightning\]"):
        __import__(MODULE)


def test_pytorch_lightning_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The older package name, installed alone."""
    import lightning.pytorch

    monkeypatch.setitem(sys.modules, "pytorch_lightning", lightning.pytorch)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, MODULE)
    __import__(MODULE)
    assert issubclass(sys.modules[MODULE].LoaderStateCallback, Callback)
