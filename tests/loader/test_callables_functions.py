"""CallableSource's functions: what they may be, return and ask."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader import CallableSource, SampleInfo
from tests.callables import Places, make
from tests.conformance import copy_of, refusal, same


def _outputs(kind: str, info: SampleInfo) -> Any:
    if info.idx_in_epoch >= 10:
        raise StopIteration
    number = info.idx_in_epoch
    return {
        "int": number,
        "float": number / 2,
        "array": np.full((2, 3), number, dtype=np.int16),
        "scalar": np.float32(number),
        "tensor": torch.full((2,), number, dtype=torch.bfloat16),
        "bytes": bytes([number]) * number,
        "tuple": (np.arange(3) + number, torch.tensor(number), number),
        "dict": {"a": number, "b": (torch.zeros(1), b"x")},
        "one in a tuple": (number,),
    }[kind]


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "kind",
    ["int", "float", "array", "scalar", "tensor", "bytes", "tuple", "dict", "one in a tuple"],
)
def test_outputs_of_every_kind_come_as_default_collate_makes_them(
    kind: str, num_workers: int
) -> None:
    """A single output and several outputs."""
    function = partial(_outputs, kind)
    wanted = [
        default_collate(
            [function(SampleInfo(i, 0, 0, 0)) for i in range(start, min(start + 4, 10))]
        )
        for start in (0, 4, 8)
    ]
    assert same([copy_of(b) for b in make(function, num_workers=num_workers)], copy_of(wanted))


def _worker_of(info: SampleInfo) -> Any:
    worker = torch.utils.data.get_worker_info()
    if info.idx_in_epoch == 8:
        raise StopIteration
    return (worker.id, worker.num_workers, type(worker.dataset).__name__) if worker else None


def test_the_function_can_read_get_worker_info() -> None:
    found = [*make(_worker_of, num_workers=2, collate_fn=list)]
    assert sorted(found) == [[(number, 2, "CallableSource")] * 4 for number in range(2)]


class Method:
    def sample(self, info: SampleInfo) -> int:
        return Places(5)(info)["place"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "function",
    [
        Method().sample,
        partial(_outputs, "int"),
        functools.lru_cache(Places(5)),
        lambda info: Places(5)(info)["place"],
    ],
    ids=["bound method", "partial", "cached", "lambda"],
)
def test_any_callable_with_one_argument_is_a_function(function: Any) -> None:
    """Under fork nothing is pickled."""
    alone = [copy_of(batch) for batch in make(function)]
    assert len(alone) >= 2
    forked = make(function, num_workers=2, multiprocessing_context="fork")
    assert same([copy_of(batch) for batch in forked], alone)


def _no_argument() -> int:
    return 0


def _no_places(info: SampleInfo) -> int:
    return info.idx_in_epoch


def _two_arguments(info: SampleInfo, other: int) -> int:
    return other


def _generating(info: SampleInfo) -> Any:
    yield info


@pytest.mark.parametrize(
    "function",
    [_no_argument, _two_arguments, _generating, _generating(None), iter([1]), [1, 2], 5],  # type: ignore[arg-type]
    ids=["no argument", "two", "generator function", "generator", "iterator", "list", "int"],
)
def test_objects_that_do_not_take_one_argument_are_refused(function: Any) -> None:
    """The refusal is immediate and names the remedy."""
    with pytest.raises(TypeError, match="Remedy"):
        CallableSource(function)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": True}, "function decides the order"),
        ({"worker_type": "thread", "num_workers": 1}, "global generators"),
        # Although only recipes make the pixels, the function may draw.
        (
            {"worker_type": "thread", "num_workers": 1, "source": {"image": 0}},
            "global generators",
        ),
        ({"num_replicas": 2, "rank": 0}, "length="),
        ({"on_bad_sample": "replace"}, "drop"),
    ],
    ids=["shuffle", "threads", "threads for images", "ranks without length", "replace"],
)
def test_arguments_that_a_callable_excludes_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    """The function decides the order; global generators are keyed; ranks need one length."""
    with pytest.raises(ValueError, match=message):
        next(iter(make(Places(5), **arguments)))


def test_a_state_of_another_function_is_refused() -> None:
    loader = make(Places(22))
    next(iter(loader))
    refusal(make(_no_places), loader.state_dict(), "dataset")


def test_a_torch_dataloader_reads_epoch_0() -> None:
    """The source is an IterableDataset."""
    found = list(torch.utils.data.DataLoader(CallableSource(Places(5)), batch_size=None))
    assert [sample["place"] for sample in found] == [0, 1, 2, 3, 4]
