"""CallableSource and faults: workers die, functions raise, outputs differ."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import (
    BadSample,
    BatchInfo,
    CallableSource,
    SampleInfo,
    StatefulGPULoader,
    WorkerLost,
)
from stateful_gpu_loader import transforms as T
from tests.callables import (
    DyingPlaces,
    FailingPlaces,
    FileBatches,
    Files,
    NoisyBatches,
    NoisyPlaces,
    Places,
    make,
    places_of,
)
from tests.conformance import copy_of, loaded, refusal, same, through_json, uninterrupted
from tests.damaged import delivered_with_errors
from tests.images import write_photo_folder
from tests.lost_workers import deliver_quietly, lives
from tests.user_objects import StatefulIterable

# Lost workers.


def test_a_place_that_always_kills_its_worker_is_named(tmp_path: Path) -> None:
    """All earlier batches are delivered."""
    function = DyingPlaces(22, 9, lives(tmp_path / "lives", 20))
    loader = make(function, num_workers=2, max_worker_restarts=2)
    delivered: list[Any] = []
    with warnings.catch_warnings(), pytest.raises(WorkerLost, match="position 8"):
        deliver_quietly(iter(loader), delivered)
    assert places_of(delivered) == list(range(8))


# Exceptions.


class Unusual(Exception):
    """An exception type of the user's."""


@pytest.mark.parametrize(("error", "num_workers"), [(Unusual, 2), (KeyError, 0), (TypeError, 0)])
def test_an_exception_keeps_its_type_and_names_its_place(
    error: type[Exception], num_workers: int
) -> None:
    """The loader stays usable; the state stays before the failed batch."""
    function = FailingPlaces(22, {9: partial(error, "no such page")})
    loader = make(function, num_workers=num_workers)
    expected = [copy_of(batch) for batch in make(NoisyPlaces(22))]
    batches = iter(loader)
    found = [copy_of(next(batches)), copy_of(next(batches))]
    with pytest.raises(error, match="no such page") as raised:
        next(batches)
    text = "".join(traceback.format_exception(raised.value))
    text += "".join(getattr(raised.value, "__notes__", ()))
    assert "9" in text.replace("callables.py", "")
    assert "idx_in_epoch=9" in text
    assert "callables.py" in text
    state = loader.state_dict()
    found += [copy_of(batch) for batch in batches]
    assert same(found, expected[:2] + expected[3:])
    fixed = loaded(make(FailingPlaces(22, {}), num_workers=num_workers), through_json(state))
    assert same([copy_of(batch) for batch in fixed], expected[2:])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_in_each_epoch_ends_no_epoch(num_workers: int) -> None:
    """The function raises at the first and at the last sample."""
    function = FailingPlaces(10, {0: Unusual, 9: Unusual})
    loader = make(function, num_workers=num_workers)
    for epoch in range(2):
        delivered, errors = delivered_with_errors(loader)
        assert places_of(delivered) == [4, 5, 6, 7]
        assert [*map(type, errors)] == [Unusual] * 2
        assert delivered[0]["epoch"].tolist() == [epoch] * 4
        assert loader.state_dict()["epoch"] == epoch + 1


def test_a_stop_iteration_inside_the_function_does_not_end_the_epoch() -> None:
    """A StopIteration that the function itself raises ends the epoch; the documents say so."""

    def function(info: SampleInfo) -> int:
        if info.idx_in_epoch == 6:
            return next(iter(()))  # a user's mistake
        return info.idx_in_epoch

    assert [batch.tolist() for batch in make(function)] == [[0, 1, 2, 3], [4, 5]]


# Bad samples.


def test_a_batch_of_only_bad_samples_does_not_end_the_epoch() -> None:
    errors = {place: partial(ValueError, "no label") for place in range(4, 12)}
    for num_workers in (0, 2):
        function = FailingPlaces(22, errors)
        loader = make(function, on_bad_sample="drop", num_workers=num_workers)
        assert places_of(list(loader)) == [*range(4), *range(12, 22)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eight photographs, one of them truncated."""
    root = tmp_path_factory.mktemp("photos")
    paths = write_photo_folder(root, num_classes=2, per_class=4, seed=4)
    paths[5].write_bytes(paths[5].read_bytes()[:300])
    return paths


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_image_is_named_or_dropped(files: list[Path], num_workers: int) -> None:
    build = partial(
        make,
        Files(files),
        source={"image": 0},
        num_workers=num_workers,
        transform=[T.Resize([8, 8])],
    )
    batches = iter(build())
    next(batches)
    with pytest.raises(BadSample, match="idx_in_epoch=5"):
        next(batches)
    dropping = build(on_bad_sample="drop")
    assert [len(labels) for _, labels in dropping] == [4, 3]
    assert [bad.position for bad in dropping.bad_samples.samples] == [5]


def test_only_the_damaged_image_of_a_batch_is_dropped(files: list[Path]) -> None:
    source = {"image": 0, "batch": True}
    arguments = {"source": source, "batch_size": None, "transform": [T.Resize([8, 8])]}
    build = partial(make, FileBatches(files), **arguments, on_bad_sample="drop")
    for num_workers in (0, 2):
        assert [len(labels) for _, labels in build(num_workers=num_workers)] == [5, 2]


def _with_extra_target(info: BatchInfo) -> Any:
    return [b"1", b"2"], np.arange(3)


def test_a_batch_of_more_targets_than_images_is_named() -> None:
    with pytest.raises(ValueError, match=r"BatchInfo\(iteration=0.*\[2, 3\] samples.*Remedy"):
        next(iter(make(_with_extra_target, source={"image": 0, "batch": True}, batch_size=None)))


# Outputs that differ from the declaration.


def _pairs(info: SampleInfo) -> Any:
    if info.idx_in_epoch == 12:
        raise StopIteration
    late = info.idx_in_epoch >= 9
    return (
        np.zeros((2, 2), np.float64 if late else np.float32),
        torch.zeros(3, dtype=torch.int32),
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_output_of_another_dtype_is_named(num_workers: int) -> None:
    """The error names the output, both dtypes and the place. Earlier batches are delivered."""
    source = {"dtype": (np.float32, torch.int32), "ndim": (2, None)}
    batches = iter(make(_pairs, source=source, num_workers=num_workers))
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(
        TypeError, match=r"output 0 .*idx_in_epoch=9.*float64.*float32 was declared.*Remedy"
    ):
        next(batches)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"ndim": (3, 1)}, r"output 0 .*idx_in_epoch=0.*ndim 2.*ndim=3"),
        ({"dtype": (None, torch.int64)}, r"output 1 .*int32.*int64"),
        ({"dtype": torch.int32}, r"tuple of 2.*dtype=int32.*Remedy"),
        ({"dtype": (np.float32,) * 3}, r"Remedy"),
        ({"ndim": {"a": 2, "b": 1}}, r"Remedy"),
    ],
)
def test_a_violation_at_the_first_sample_is_named(source: dict[str, Any], message: str) -> None:
    """Undeclared outputs are an error, too."""
    with pytest.raises(TypeError, match=message):
        next(iter(make(_pairs, source=source)))


def test_declared_dicts_and_batches_are_checked_by_key() -> None:
    source = {"dtype": {"iteration": int, "epoch": torch.int64, "noise": np.float32}, "batch": True}
    with pytest.raises(TypeError, match=r"output 'noise' .*iteration=0.*float64.*float32"):
        next(iter(make(NoisyBatches(3), source=source, batch_size=None)))
    fitting = {
        "dtype": {**source["dtype"], "noise": float},
        "ndim": {"iteration": 0, "epoch": 0, "noise": 0},
    }
    loader = make(NoisyBatches(3), source={**fitting, "batch": True}, batch_size=None)
    assert len(list(loader)) == 3


def _growing(info: SampleInfo) -> Any:
    return {"x": np.zeros(1 + info.idx_in_epoch // 6), "y": 0 if info.idx_in_epoch < 10 else "ten"}


def test_samples_that_make_no_batch_are_named() -> None:
    """The error names the output, its shape or type, and that of the first sample."""
    batches = iter(make(_growing))
    next(batches)
    named = r"output 'x' of sample 6 .*shape \[2\].*sample 4 .*shape \[1\].*Remedy"
    with pytest.raises(TypeError, match=named):
        next(batches)
    with pytest.raises(TypeError, match=r"output 'y' of sample 10 .*str.*int"):
        next(batches)
    batches = iter(make(_growing, collate_fn=len))
    assert [next(batches), next(batches)] == [4, 4], "a collate_fn of one's own takes them"


def _to_one_size(sample: dict[str, Any]) -> Any:
    return {"x": np.resize(sample["x"], 2), "y": str(sample["y"])}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_transform_may_give_samples_equal_shapes(num_workers: int) -> None:
    """Samples reach the transform unchanged."""
    batches = iter(make(_growing, transform=_to_one_size, num_workers=num_workers))
    found = [next(batches) for _ in range(3)]
    assert [batch["x"].shape for batch in found] == [(4, 2)] * 3
    assert found[2]["y"] == ["0", "0", "ten", "ten"]


@pytest.mark.parametrize("arguments", [{"dtype": "no dtype"}, {"ndim": -1}, {"ndim": (1, 1.5)}])
def test_invalid_declared_outputs_are_refused_by_the_constructor(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"dtype|ndim"):
        make(Places(3), source=arguments)


def test_the_function_may_be_fixed_between_states() -> None:
    """The state identifies the function by name; an object's values are not part of it."""
    _, states = uninterrupted(make(FailingPlaces(22, {})), 1)
    loader = loaded(make(FailingPlaces(22, {1: Unusual})), states[0, 2])
    assert places_of(list(loader)) == list(range(8, 22))


# Limits: ends in failing batches, records of bad samples, refusals.


# Unusual ends.


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stage", ["collate_fn", "batch_transform", "samples"])
def test_an_end_within_a_failed_batch_ends_the_epoch(stage: str, num_workers: int) -> None:
    """Even if the function raises StopIteration at one place only."""
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


def test_an_end_signalled_by_an_index_error_is_reported_under_drop() -> None:
    """Under "drop" an IndexError is a bad sample, so the epoch would never end."""
    batches = iter(make(_within_a_list, on_bad_sample="drop", num_workers=2))
    assert len(next(batches)) == 4
    with pytest.raises(BadSample, match="raise StopIteration there, or declare length="):
        for _ in batches:
            pass


def _within_a_list(info: SampleInfo) -> int:
    return [0, 1, 2, 3][info.idx_in_epoch]


def test_a_bad_sample_has_one_record_over_all_epochs() -> None:
    """The state does not grow with the number of epochs."""
    loader = make(FailingPlaces(8, {3: lambda: ValueError("no label")}), on_bad_sample="drop")
    for _ in range(3):
        for _ in loader:
            pass
    assert [bad.index for bad in loader.bad_samples.samples] == ["sample 3"]
    assert loader.bad_samples.total == 3


# Immediate refusals.


class KeepsState(CallableSource):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise AssertionError


class Negated(CallableSource):
    def __call__(self, info: Any) -> Any:
        return -super().__call__(info)


async def _async(info: SampleInfo) -> int:
    return 1


async def _async_generator(info: SampleInfo) -> Any:
    yield 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: KeepsState(_ends_at_ten_alone),
        lambda: CallableSource(StatefulIterable([3])),
        lambda: CallableSource(_async),
        lambda: CallableSource(_async_generator),
        lambda: CallableSource(_ends_at_ten_alone, image=2.5),
        lambda: CallableSource(_ends_at_ten_alone, image=(0,)),
        lambda: CallableSource(_ends_at_ten_alone, dtype=str),
        lambda: CallableSource(_ends_at_ten_alone, dtype=((int,),)),
    ],
    ids=["state", "iterable", "async", "agen", "float", "tuple", "str", "nested"],
)
def test_unsupported_arguments_are_refused_by_the_constructor(build: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="Remedy"):
        build()


def test_a_subclass_does_not_take_the_bases_state() -> None:
    state = StatefulGPULoader(CallableSource(_ends_at_ten_alone)).state_dict()
    assert "by Negated" in str(refusal(StatefulGPULoader(Negated(_ends_at_ten_alone)), state))


def test_declared_dtypes_can_be_given_again() -> None:
    """Trainers rebuild loaders by reflection."""
    source = CallableSource(_ends_at_ten_alone, dtype=(torch.bfloat16, np.int64), ndim=np.int64(1))
    assert CallableSource(_ends_at_ten_alone, dtype=source.dtype).dtype == ("bfloat16", "int64")
