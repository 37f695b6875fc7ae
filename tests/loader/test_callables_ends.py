"""CallableSource at its limits: ends in failing batches, records of bad samples, refusals (C9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import (
    BadSample,
    CallableSource,
    SampleInfo,
    StatefulGPULoader,
    StateMismatch,
)
from tests.callables import FailingPlaces, make

# Ends that are not met in the ordinary way.


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stage", ["collate_fn", "batch_transform", "samples"])
def test_an_end_in_a_batch_that_fails_is_the_end(stage: str, num_workers: int) -> None:
    """Even of a function that raises StopIteration at one place alone."""
    arguments: dict[str, Any] = {"num_workers": num_workers}
    function: Any = _ends_at_ten_alone
    if stage == "samples":
        function = _ends_at_ten_alone_after_another_kind
    else:
        arguments[stage] = _refuse_short
    batches = iter(make(function, **arguments))
    next(batches), next(batches)
    with pytest.raises((ValueError, TypeError)):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def _ends_at_ten_alone(info: SampleInfo) -> int:
    if info.idx_in_epoch == 10:
        raise StopIteration
    return info.idx_in_epoch


def _ends_at_ten_alone_after_another_kind(info: SampleInfo) -> Any:
    place = _ends_at_ten_alone(info)
    return "nine" if place == 9 else place


def _refuse_short(batch: Any) -> Any:
    if len(batch) < 4:
        raise ValueError("a short batch")
    return batch


def test_an_end_that_is_told_by_an_index_error_is_reported_under_drop() -> None:
    """G4: IndexError is a bad sample's, and there would be no end of them."""
    batches = iter(make(_within_a_list, on_bad_sample="drop", num_workers=2))
    assert len(next(batches)) == 4
    with pytest.raises(BadSample, match="raise StopIteration there, or declare length="):
        for _ in batches:
            pass


def _within_a_list(info: SampleInfo) -> int:
    return [0, 1, 2, 3][info.idx_in_epoch]


def test_a_bad_sample_is_one_record_in_all_epochs() -> None:
    """Law 3: the state does not grow with the epochs."""
    loader = make(FailingPlaces(8, {3: lambda: ValueError("no label")}), on_bad_sample="drop")
    for _ in range(3):
        for _ in loader:
            pass
    assert [bad.index for bad in loader.bad_samples.samples] == ["sample 3"]
    assert loader.bad_samples.total == 3


# What is refused at once.


class KeepsState(CallableSource):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise AssertionError


class Negated(CallableSource):
    def __call__(self, info: Any) -> Any:
        return -super().__call__(info)


class IterableWithState:
    """torchdata's usual shape of a dataset, which is no iterator."""

    def __iter__(self) -> Iterator[int]:
        yield 1

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise AssertionError


async def _async(info: SampleInfo) -> int:
    return 1


async def _async_generator(info: SampleInfo) -> Any:
    yield 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: KeepsState(_ends_at_ten_alone),
        lambda: CallableSource(IterableWithState()),
        lambda: CallableSource(_async),
        lambda: CallableSource(_async_generator),
        lambda: CallableSource(_ends_at_ten_alone, image=2.5),
        lambda: CallableSource(_ends_at_ten_alone, image=(0,)),
        lambda: CallableSource(_ends_at_ten_alone, dtype=str),
        lambda: CallableSource(_ends_at_ten_alone, dtype=((int,),)),
    ],
    ids=["state", "iterable", "async", "agen", "float", "tuple", "str", "nested"],
)
def test_what_could_not_be_served_is_refused_at_once(build: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="Remedy"):
        build()


def test_a_subclass_does_not_take_the_bases_state() -> None:
    state = StatefulGPULoader(CallableSource(_ends_at_ten_alone)).state_dict()
    with pytest.raises(StateMismatch, match="by Negated"):
        StatefulGPULoader(Negated(_ends_at_ten_alone)).load_state_dict(state)


def test_declared_dtypes_can_be_given_again() -> None:
    """Trainers rebuild by reflection."""
    source = CallableSource(_ends_at_ten_alone, dtype=(torch.bfloat16, np.int64), ndim=np.int64(1))
    assert CallableSource(_ends_at_ten_alone, dtype=source.dtype).dtype == ("bfloat16", "int64")
