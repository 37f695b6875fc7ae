"""``device="cuda"`` moves the batches of any dataset, whatever their structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import IterableDataset

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import assert_exact_resume
from tests.map_datasets import Indices

pytestmark = pytest.mark.gpu


class Point(NamedTuple):
    """A named tuple, as in some datasets."""

    place: torch.Tensor
    name: str


class Nested(Indices):
    """Tensors in dicts, lists and named tuples, and values that are no tensors."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "point": Point(torch.rand(4) + super().__getitem__(index), f"number {index}"),
            "several": [torch.full((2, 3), index), torch.tensor(index, dtype=torch.float64)],
            "number": index,
        }


class Stream(IterableDataset[dict[str, Any]]):
    """The same, as an iterable."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from (Nested(20)[index] for index in range(20))


def _all_on(batch: Any, check: Callable[[torch.Tensor], bool]) -> bool:
    if isinstance(batch, torch.Tensor):
        return check(batch)
    if isinstance(batch, dict):
        return all(_all_on(part, check) for part in batch.values())
    if isinstance(batch, (list, tuple)):
        return all(_all_on(part, check) for part in batch)
    return True


def _to_cpu(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.cpu()
    if isinstance(batch, dict):
        return {key: _to_cpu(part) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_to_cpu(part) for part in batch]
    return batch


def make_nested(**changes: Any) -> StatefulGPULoader[Any]:
    """Return a loader of shuffled batches of 4 of :class:`Nested` on the GPU."""
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "device": "cuda"}
    return StatefulGPULoader(Nested(20), **{**arguments, **changes})


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_nested_tensors_arrive_on_the_device(num_workers: int, pin_memory: bool) -> None:
    on_cpu = list(make_nested(device=None))
    on_gpu = list(make_nested(num_workers=num_workers, pin_memory=pin_memory))
    for batch, wanted in zip(on_gpu, on_cpu, strict=True):
        assert _all_on(batch, lambda tensor: tensor.device.type == "cuda")
        assert isinstance(batch["point"], Point)
        assert batch["point"].name == wanted["point"].name
        left, right = (str(_to_cpu(found)) for found in (batch, wanted))
        assert left == right


def test_moved_batches_resume_exactly() -> None:
    assert_exact_resume(make_nested, other=({"num_workers": 2}, {"num_workers": 0}))


def test_iterables_are_moved_too() -> None:
    make = partial(StatefulGPULoader, Stream(), batch_size=4, seed=1, num_workers=1)
    for batch, wanted in zip(make(device="cuda"), make(), strict=True):
        assert _all_on(batch, lambda tensor: tensor.device.type == "cuda")
        assert str(_to_cpu(batch)) == str(_to_cpu(wanted))


def test_single_samples_are_moved() -> None:
    sample = next(iter(make_nested(batch_size=None)))
    assert sample["point"].place.device.type == "cuda"
