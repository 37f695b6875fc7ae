"""Hugging Face's ``IterableDataset.shuffle()``, whose state omits its shuffle buffer."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from tests.conformance import loaded
from tests.loader.passes import interrupted

datasets = pytest.importorskip("datasets", reason="needs datasets")


def make(num_workers: int, *, buffer_size: int | None = 10) -> StatefulGPULoader[Any]:
    rows = datasets.Dataset.from_dict({"row": list(range(40))}).to_iterable_dataset(num_shards=4)
    if buffer_size is not None:
        rows = rows.shuffle(seed=3, buffer_size=buffer_size).map(lambda row: row)
    return StatefulGPULoader(rows, batch_size=4, num_workers=num_workers, seed=1)


def test_the_first_save_within_a_pass_warns_of_what_its_state_leaves_out() -> None:
    """A14: once, with the size of the buffer."""
    loader = make(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.state_dict()
        next(iter(loader))
    with pytest.warns(UserWarning, match="shuffle buffer of IterableDataset.*up to 10 samples"):
        loader.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.state_dict()


def test_a_dataset_without_shuffling_is_not_warned_of() -> None:
    loader = make(0, buffer_size=None)
    next(iter(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.state_dict()


@pytest.mark.filterwarnings("ignore:.*shuffle buffer")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_its_state_can_be_loaded_where_one_process_reads_it(num_workers: int) -> None:
    """A3: the rest lacks the samples that were in the buffer."""
    loader = make(num_workers)
    batches = iter(loader)
    taken = {row for _ in range(3) for row in next(batches)["row"].tolist()}
    resumed = loaded(make(num_workers), loader.state_dict())
    rest = [row for batch in resumed for row in batch["row"].tolist()]
    assert 40 - len(taken) - 10 <= len(rest) <= 40 - len(taken)
    assert len(set(rest)) == len(rest)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*shuffle buffer")
def test_a_state_that_it_cannot_use_in_workers_is_refused_by_name() -> None:
    """A3: each time; the loader's state stays the loaded one."""
    loader = make(2)
    state, _ = interrupted(loader, 3)
    resumed = loaded(make(2), state)
    again = iter(resumed)
    for _ in range(2):
        with pytest.raises(StateMismatch) as refused:
            next(again)
        assert refused.value.field == "dataset's state"
    assert resumed.state_dict()["position"] == state["position"]
