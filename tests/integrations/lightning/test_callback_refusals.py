"""LoaderStateCallback: what it refuses, before training starts and with nothing changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from stateful_gpu_loader import MissingDependency, StateMismatch
from tests.integrations.lightning.every_hook import OF_LIGHTNING, Witness, fit
from tests.integrations.lightning.recorded_fits import every_step
from tests.integrations.lightning.streams import Telling, noisy, stream

pytestmark = [pytest.mark.filterwarnings(text) for text in OF_LIGHTNING]
KEY = "LoaderStateCallback"


def two() -> Any:
    return {"labeled": noisy(20), "unlabeled": noisy(8, seed=9)}


def saved(folder: Path, make: Callable[[], Any] = two, **arguments: Any) -> Path:
    fit(make, every_step(folder), max_epochs=1, **arguments)
    return folder / "step=3.ckpt"


def altered(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    checkpoint = torch.load(path, weights_only=True)
    change(checkpoint["callbacks"][KEY])
    torch.save(checkpoint, path)
    return path


def assert_refused(path: Path, make: Callable[[], Any], message: str, **arguments: Any) -> None:
    witness, loaders = Witness(), make()
    before = [loader.state_dict() for loader in flat(loaders)]
    with pytest.raises(StateMismatch, match=message):
        fit(lambda: loaders, resume=path, witness=witness, **arguments)
    assert len(witness.trained) == 3
    assert [loader.state_dict() for loader in flat(loaders)] == before


def flat(loaders: Any) -> list[Any]:
    return list(loaders.values()) if isinstance(loaders, dict) else [loaders]


def test_another_number_of_train_loaders(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert_refused(path, noisy, r"number of train loaders differs: the state has .2: .*was .1: ")


def test_other_names(tmp_path: Path) -> None:
    path = saved(tmp_path)
    make = lambda: {"labeled": noisy(20), "others": noisy(8, seed=9)}  # noqa: E731
    assert_refused(path, make, r"names of the train loaders .*'unlabeled'.*'others'")


def test_a_state_under_another_name(tmp_path: Path) -> None:
    """The second does not fit; the first is as it was."""
    path = saved(tmp_path, lambda: {"a": noisy(20), "b": noisy(20, drop_last=True)})
    make = lambda: {"a": noisy(20), "b": noisy(24, drop_last=True)}  # noqa: E731
    assert_refused(path, make, "length of the train loader 'b' differs: the state has 20, .* 24")
    swapped = lambda: {"a": noisy(20, drop_last=True), "b": noisy(20)}  # noqa: E731
    assert_refused(path, swapped, "drop_last of the train loader 'a' differs")


def test_other_validation_loaders(tmp_path: Path) -> None:
    path = saved(tmp_path, noisy, validation=lambda: [noisy(12), noisy(8)])
    message = r"number of val loaders differs: the state has .2: .*expected was .1: "
    assert_refused(path, noisy, message, validation=partial(noisy, 12))
    message = "length of the val loader '1' differs: the state has 8, expected was 16"
    others = lambda: [noisy(12), noisy(16)]  # noqa: E731
    assert_refused(path, noisy, message, validation=others)


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no version": (lambda state: state.pop("version"), "the callback's state differs"),
    "a later version": (lambda state: state.update(version=7), "version differs: .* has 7"),
    "another format": (lambda state: state.update(format="x"), "format differs"),
    "text": (lambda state: state.update(batches="3"), "batches differs: the state has '3'"),
    "negative": (lambda state: state.update(epoch=-1), "epoch differs: the state has -1"),
    "no record": (lambda state: state["train"].update({"0": 5}), "train loader '0' differs"),
    "no state": (lambda state: state["train"]["0"].update(state=None), "'0''s state differs"),
    "a damaged state": (
        lambda state: state["train"]["0"]["state"].update(position=-4),
        "position of the train loader '0' differs: the state has -4",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_state(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGES[damage]
    assert_refused_or_unread(altered(saved(tmp_path, noisy), change), message)


def assert_refused_or_unread(path: Path, message: str) -> None:
    loader = noisy()
    before = loader.state_dict()
    with pytest.raises(StateMismatch, match=message):
        fit(lambda: loader, resume=path)
    assert loader.state_dict() == before


def test_ranks_with_states_of_their_own(tmp_path: Path) -> None:
    """A user's own states differ from rank to rank: for as many ranks only, and for each."""
    make = partial(stream, kind=Telling)

    def of_two_ranks(state: dict[str, Any]) -> None:
        record = state["train"]["0"]
        record["state"] = {
            "format": "stateful_gpu_loader of each rank",
            "version": 1,
            "num_ranks": 2,
            "rank_00000": record["state"],
            "rank_00001": record["state"],
        }

    path = altered(saved(tmp_path, make), of_two_ranks)
    assert_refused_with(path, make, "number of ranks .*'0' differs: the state has 2, .* was 1")

    def without_the_first(state: dict[str, Any]) -> None:
        record = state["train"]["0"]["state"]
        record["num_ranks"] = 1
        del record["rank_00000"]

    path = altered(path, without_the_first)
    assert_refused_with(path, make, "rank_00000 of the train loader '0' differs")


def assert_refused_with(path: Path, make: Callable[[], Any], message: str) -> None:
    witness = Witness()
    with pytest.raises(StateMismatch, match=message):
        fit(make, resume=path, witness=witness)
    assert len(witness.trained) == 3


def test_other_loaders_with_state(tmp_path: Path) -> None:
    """torchdata's are Lightning's to restore; their number is checked all the same."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    plain = partial(torchdata.StatefulDataLoader, list(range(20)), batch_size=4)
    make = lambda: [noisy(), plain()]  # noqa: E731
    path = saved(tmp_path, make)
    undisturbed = fit(make)
    assert fit(make, resume=path).trained == undisturbed.trained
    message = "number of train loaders with state differs: the state has 2, expected was 1"
    with pytest.raises(StateMismatch, match=message):
        fit(lambda: [noisy(), list(range(5))], resume=path)


class NoLightning:
    """As if neither package was installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Refuse."""
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
    """The package's older name, where it alone is installed."""
    import lightning.pytorch

    monkeypatch.setitem(sys.modules, "pytorch_lightning", lightning.pytorch)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, MODULE)
    __import__(MODULE)
    assert issubclass(sys.modules[MODULE].LoaderStateCallback, Callback)
