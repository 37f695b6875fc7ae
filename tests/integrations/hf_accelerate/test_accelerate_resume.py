"""Accelerate on one process: a resumed run equals an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.integrations.accelerate import PreparedLoader, prepare_loader
from tests.integrations.hf_accelerate.loops import loader_of, new_accelerator, train
from tests.trainer_data import seen

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again"),
]

KINDS = ("map", "lanes", "iterable")


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_in_the_loop_resumes(kind: str, tmp_path: Path) -> None:
    """Sized, unsized and in lanes, and at an epoch's last batch. Weights are compared after an
    optimizer step only, since Accelerate saves no gradients.
    """
    make = loader_of(kind, tmp_path / "data")
    length = {"map": 7, "lanes": 6, "iterable": 4}[kind]
    whole = train(make, accumulated=3)
    assert [len(epoch) for epoch in whole.batches] == [length] * 2
    steps = (1, 3, length, length + 3) if kind == "map" else (length - 1, length, length + 1)
    for step in (*steps, 2 * length):
        folder = tmp_path / f"{step}"
        part = train(make, accumulated=3, save=(step, folder))
        rest = train(make, accumulated=3, resume=folder)
        assert part.all_batches + rest.all_batches == whole.all_batches
        assert rest.syncs == whole.syncs[step:]
        assert rest.weights == whole.weights or not whole.syncs[step - 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_resume(num_workers: int, tmp_path: Path) -> None:
    """On another number of workers."""
    make = loader_of("map", tmp_path / "data", num_workers=num_workers)
    whole = train(make)
    train(make, save=(3, tmp_path / "saved"))
    rest = train(
        loader_of("map", tmp_path / "data", num_workers=2 - num_workers), resume=tmp_path / "saved"
    )
    assert (rest.all_batches, rest.weights) == (whole.all_batches[3:], whole.weights)


@pytest.mark.parametrize("kind", KINDS)
def test_between_epochs(kind: str, tmp_path: Path) -> None:
    """Saved after the loop over an epoch."""
    make = loader_of(kind, tmp_path / "data")
    whole = train(make)
    train(make, save=(1, tmp_path / "saved"), after_epoch=True)
    rest = train(make, resume=tmp_path / "saved")
    assert (rest.batches, rest.weights) == (whole.batches[1:], whole.weights)


def test_a_resumed_run_is_resumed(tmp_path: Path) -> None:
    """Twice in one epoch."""
    make = loader_of("map", tmp_path / "data")
    whole = train(make)
    train(make, save=(2, tmp_path / "first"))
    train(make, resume=tmp_path / "first", save=(3, tmp_path / "second"))
    rest = train(make, resume=tmp_path / "second")
    assert (rest.all_batches, rest.weights) == (whole.all_batches[5:], whole.weights)


@pytest.mark.parametrize("accumulated", [1, 3, 7, 8])
def test_gradients_are_synchronized_as_with_a_plain_loader(
    accumulated: int, tmp_path: Path
) -> None:
    """Accelerate's own DataLoaderShard synchronizes at the same batches."""
    ours = train(loader_of("map", tmp_path / "data"), accumulated=accumulated)
    accelerator = new_accelerator(gradient_accumulation_steps=accumulated)
    theirs = []
    plain = accelerator.prepare(DataLoader(range(26), batch_size=4))
    for _ in range(2):
        for _ in plain:
            with accelerator.accumulate():
                theirs.append(accelerator.sync_gradients)
    assert ours.syncs == theirs


@pytest.mark.parametrize("kind", KINDS)
def test_skip_first_batches_skips_once(kind: str, tmp_path: Path) -> None:
    """After a load it passes over trained batches; without a load it really skips."""
    make = loader_of(kind, tmp_path / "data")
    whole = train(make, accumulated=2)
    train(make, accumulated=2, save=(2, tmp_path / "saved"))

    def skip(accelerator: Accelerator, loader: Any, epoch: int) -> Any:
        return accelerator.skip_first_batches(loader, 2) if epoch == 0 else loader

    loaded = train(make, accumulated=2, resume=tmp_path / "saved", skip=skip)
    assert loaded.all_batches == whole.all_batches[2:]
    assert (loaded.syncs, loaded.weights) == (whole.syncs[2:], whole.weights)
    afresh = train(make, accumulated=2, skip=skip)
    assert afresh.all_batches == whole.all_batches[2:]
    assert afresh.syncs == whole.syncs[2:]


def test_a_skipping_pass_is_saved(tmp_path: Path) -> None:
    """In the loader that skip_first_batches made, and at its last batch."""
    make = loader_of("map", tmp_path / "data")
    whole = train(make)

    def skip(accelerator: Accelerator, loader: Any, epoch: int) -> Any:
        return accelerator.skip_first_batches(loader, 2) if epoch == 0 else loader

    for batches in (1, 3, 5):
        folder = tmp_path / f"{batches}"
        train(make, skip=skip, save=(batches, folder))
        rest = train(make, resume=folder)
        assert rest.all_batches == whole.all_batches[2 + batches :]


def test_a_pass_that_was_broken_off(tmp_path: Path) -> None:
    """The state is that of the last delivered batch, not of the one fetched ahead."""
    make = loader_of("map", tmp_path / "data")
    expected = [seen(batch) for batch in make()]
    loader = prepare_loader(new_accelerator(), make())
    for number, _ in enumerate(loader):
        if number == 2:
            break
    state = loader.state_dict()
    resumed = prepare_loader(new_accelerator(), make())
    resumed.load_state_dict(state)
    assert [seen(batch) for batch in resumed] == expected[3:]


@pytest.mark.parametrize(("broken", "trained"), [(2, []), (6, [[0, 1], [2, 3]])])
def test_a_batch_that_fails_ahead_loses_none(broken: int, trained: list[Any]) -> None:
    """Accelerate drops the batch in hand when the next one fails. A resume delivers it."""

    def sometimes(sample: int) -> int:
        if sample == broken:
            raise RuntimeError("broken")
        return sample

    def make() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(range(10), batch_size=2, seed=1, transform=sometimes)

    loader, batches = prepare_loader(new_accelerator(), make()), []
    with pytest.raises(RuntimeError, match="broken"):
        batches.extend(batch.tolist() for batch in loader)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert batches == trained
    first = 2 * len(trained)
    assert next(iter(resumed)).tolist() == [first, first + 1]


def test_a_loaded_state_is_saved_unchanged(tmp_path: Path) -> None:
    """Into a loader whose pass was broken off."""
    loader = prepare_loader(new_accelerator(), loader_of("map", tmp_path / "data")())
    state = loader.state_dict()
    for _ in loader:
        break
    loader.load_state_dict(state)
    assert loader.state_dict() == state


def test_several_loaders(tmp_path: Path) -> None:
    """Each has its own place, in one file."""
    first, second = loader_of("map", tmp_path / "a"), loader_of("map", tmp_path / "b", seed=3)

    def prepared(accelerator: Accelerator) -> list[PreparedLoader]:
        return [prepare_loader(accelerator, make()) for make in (first, second)]

    accelerator = new_accelerator()
    loaders = prepared(accelerator)
    expected = [[seen(batch) for batch in make()] for make in (first, second)]
    for number, _ in enumerate(zip(*loaders, strict=True)):
        if number == 1:
            next(iter(loaders[1]))
            accelerator.save_state(str(tmp_path / "saved"))
            second_state = loaders[1].state_dict()
            break
    accelerator = new_accelerator()
    resumed = prepared(accelerator)
    accelerator.load_state(str(tmp_path / "saved"))
    assert [seen(batch) for batch in resumed[0]] == expected[0][2:]
    assert resumed[1].state_dict() == second_state


def test_free_memory_forgets_the_loaders(tmp_path: Path) -> None:
    """The next job of the same accelerator saves and loads its own loader."""
    make = loader_of("map", tmp_path / "data")
    accelerator = new_accelerator()
    former = prepare_loader(accelerator, loader_of("map", tmp_path / "data", drop_last=True)())
    accelerator.free_memory()
    accelerator.save_state(str(tmp_path / "none"))
    assert not (tmp_path / "none" / "loader_state.json").exists()
    loader = prepare_loader(accelerator, make())
    accelerator.save_state(str(tmp_path / "one"))
    accelerator.load_state(str(tmp_path / "one"))
    assert loader.state_dict() != former.state_dict()


def test_metrics_have_each_sample_once(tmp_path: Path) -> None:
    """With a short last batch, resumed with another batch size."""
    accelerator = new_accelerator()
    for batch_size in (4, 5):
        loader = StatefulGPULoader(range(26), batch_size=4, seed=1)
        next(iter(loader))
        resumed = StatefulGPULoader(range(26), batch_size=batch_size, seed=1)
        resumed.load_state_dict(loader.state_dict())
        prepared = prepare_loader(accelerator, resumed)
        gathered = [accelerator.gather_for_metrics(batch) for batch in prepared]
        assert torch.cat(gathered).tolist() == list(range(4, 26))


def test_prepare_takes_and_leaves_a_prepared_loader(tmp_path: Path) -> None:
    """The line of Accelerate's documentation, and the result's attributes of the loader."""
    accelerator, make = new_accelerator(), loader_of("map", tmp_path / "data")
    model = torch.nn.Linear(1, 1)
    model, loader = accelerator.prepare(model, prepare_loader(accelerator, make()))
    assert type(loader) is PreparedLoader
    assert prepare_loader(accelerator, loader) is loader
    assert isinstance(loader, DataLoader)
    assert (len(loader), len(loader.dataset), loader.batch_size) == (7, 26, 4)
    assert (loader.total_batch_size, loader.worker_restarts) == (4, 0)
    assert accelerator._dataloaders == [loader]


def test_the_resumed_epoch_is_the_loaders(tmp_path: Path) -> None:
    """Without set_epoch() the epochs are counted on. Another epoch gives a warning."""
    make = loader_of("map", tmp_path / "data")
    epochs = [[seen(batch) for batch in loader] for loader in [make()] * 3]
    state = make()
    state.set_epoch(1)
    iterator = iter(state)
    next(iterator)
    loader = prepare_loader(new_accelerator(), make())
    loader.load_state_dict(state.state_dict())
    assert [seen(batch) for batch in loader] == epochs[1][1:]
    assert [seen(batch) for batch in loader] == epochs[2]
    loader.load_state_dict(state.state_dict())
    loader.set_epoch(0)
    with pytest.warns(UserWarning, match=r"set_epoch\(0\) after load_state_dict\(\) of epoch 1"):
        next(iter(loader))


def test_skipping_in_the_resumed_epoch_asks_for_no_other(tmp_path: Path) -> None:
    """No set_epoch() was called, so there is no warning, and the epochs are counted on."""
    make = loader_of("map", tmp_path / "data")
    accelerator = new_accelerator()
    loader = prepare_loader(accelerator, make())
    epochs = [[seen(batch) for batch in loader]]
    for number, _ in enumerate(loader):
        if number == 1:
            state = loader.state_dict()
    fresh = make()
    fresh.set_epoch(1)
    second = [seen(batch) for batch in fresh]
    epochs += [second, [seen(batch) for batch in fresh]]
    loader.load_state_dict(state)
    assert loader.iteration == 1
    rest = [seen(batch) for batch in accelerator.skip_first_batches(loader, 2)]
    assert rest == epochs[1][2:]
    assert [seen(batch) for batch in accelerator.skip_first_batches(loader, 1)] == epochs[2][1:]


def test_a_loader_that_was_loaded_first(tmp_path: Path) -> None:
    """Its rest is trained on, and skip_first_batches() skips nothing twice."""
    make = loader_of("map", tmp_path / "data")
    whole = [seen(batch) for batch in make()]
    saved = make()
    for _ in zip(range(2), saved, strict=False):
        pass
    state = saved.state_dict()
    accelerator, number = new_accelerator(), state["position"] // 4
    for skips in (False, True):
        loader = make()
        loader.load_state_dict(state)
        prepared = prepare_loader(accelerator, loader)
        batches = skip_first_batches(prepared, number) if skips else prepared
        assert [seen(batch) for batch in batches] == whole[number:]
