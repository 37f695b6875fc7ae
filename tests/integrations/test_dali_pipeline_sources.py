"""External sources of a DALI pipeline: exact if DALI can resume them, otherwise refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from stateful_gpu_loader.errors import LoaderError, StateMismatch
from stateful_gpu_loader.integrations.dali import DALILoader
from tests.conformance import assert_exact_resume, copy_of, differing, same
from tests.integrations.dali_readers import Arguments, write_datasets

dali = pytest.importorskip("nvidia.dali")

N = 11
Source = Callable[[Any], Any]


def of_sample(info: Any) -> Any:
    """Return the number of the sample, in another order each epoch."""
    if info.idx_in_epoch >= N - N % 3:
        raise StopIteration
    order = np.random.default_rng(info.epoch_idx).permutation(N)
    return np.array([order[info.idx_in_epoch], info.iteration, info.epoch_idx])


def of_batch(info: Any) -> Any:
    """Yield batches of 3, and a short one."""
    rest = min(3, N - 3 * info.iteration)
    if rest <= 0:
        raise StopIteration
    return np.arange(rest)[:, None] + 100 * info.iteration + 1000 * info.epoch_idx


def of_number(iteration: int) -> Any:
    if iteration == 4:
        raise StopIteration
    return [np.array([iteration * 3 + i]) for i in range(3)]


def make(source: Any, /, *, seed: int = 5, pipeline: Arguments | None = None, **given: Any) -> Any:
    """Return a loader of the source's output, and of random numbers."""

    def outputs() -> Any:
        found = dali.fn.external_source(source, name="numbers", **given)
        return found, dali.fn.random.uniform(found, range=(0.0, 1.0))

    definition = dali.pipeline_def(outputs)
    options: Arguments = {"batch_size": 3, "num_threads": 1, "device_id": None, "seed": seed}
    return DALILoader(partial(definition, **(options | (pipeline or {}))), ["numbers", "noise"])


@pytest.mark.dali
@pytest.mark.parametrize(
    ("source", "given", "prefetch_queue_depth"),
    [
        (of_sample, {"batch": False}, 1),
        (of_batch, {"batch_info": True}, 3),
        (of_number, {}, 1),
        (of_number, {"cycle": None}, 3),
    ],
    ids=["sample", "batch info", "batch number", "cycle"],
)
def test_sources_of_one_argument_resume(
    source: Source, given: Arguments, prefetch_queue_depth: int
) -> None:
    """After every batch of three epochs."""
    pipeline = {"prefetch_queue_depth": prefetch_queue_depth}
    other = ({"pipeline": {"exec_dynamic": False}},)
    assert_exact_resume(partial(make, source, pipeline=pipeline, **given), epochs=3, other=other)


def test_an_epoch_has_the_batches_of_the_source() -> None:
    loaded = make(of_batch, batch_info=True)
    epochs = [[batch["numbers"].flatten().tolist() for batch in loaded] for _ in range(2)]
    assert epochs[0] == [[0, 1, 2], [100, 101, 102], [200, 201, 202], [300, 301]]
    assert epochs[1] == [[number + 1000 for number in batch] for batch in epochs[0]]
    with pytest.raises(TypeError, match="length"):
        len(loaded)


def test_a_source_has_all_its_epochs_though_none_is_asked_for_its_end() -> None:
    """Readers behave the same: `zip` stops at the last batch, and the next epoch is not empty."""

    def first(batches: Any, count: int) -> list[int]:
        return [
            batch["numbers"][0, 0].item() for _, batch in zip(range(count), batches, strict=False)
        ]

    loaded = make(of_batch, batch_info=True)
    epochs = [first(loaded, 4) for _ in range(3)]
    assert epochs == [[1000 * epoch + 100 * i for i in range(4)] for epoch in range(3)]
    state = loaded.state_dict()
    assert (state["epoch"], state["position"]) == (2, 4)
    assert first(loaded, 2) == [3000, 3100]
    assert first(loaded, 2) == [3200, 3300], "after a break the epoch goes on"
    resumed = make(of_batch, batch_info=True)
    resumed.load_state_dict(state)
    assert [first(resumed, 4) for _ in range(2)] == [[], [3000, 3100, 3200, 3300]]


def test_a_source_may_have_an_empty_epoch() -> None:
    def source(info: Any) -> Any:
        if info.epoch_idx == 1 or info.iteration == 2:
            raise StopIteration
        return np.full((3, 1), info.epoch_idx)

    loaded = make(source, batch_info=True)
    assert [len(list(loaded)) for _ in range(3)] == [2, 0, 2]
    unasked = make(source, batch_info=True)
    assert [len([*zip(range(2), unasked, strict=False)]) for _ in range(3)] == [2, 0, 2]


def numbers_for_ever() -> Any:
    return np.zeros((3, 1))


def generated() -> Iterator[Any]:
    yield from (np.zeros((3, 1)) for _ in range(4))


@pytest.mark.parametrize(
    "source",
    [numbers_for_ever, generated, [np.zeros((3, 1))] * 4, iter([np.zeros((3, 1))])],
    ids=["no argument", "generator", "iterable", "iterator"],
)
def test_sources_with_a_hidden_state_are_refused_by_name(source: Any) -> None:
    """DALI warns, and resumes them from their beginning."""
    with pytest.raises(LoaderError, match=r"external source numbers, an? .*CallableSource"):
        next(iter(make(source)))


def test_one_bad_source_among_good_ones_is_the_one_that_is_named() -> None:
    @dali.pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipeline() -> Any:
        good = dali.fn.external_source(of_number, name="good")
        return good, dali.fn.external_source(numbers_for_ever, name="bad")

    with pytest.raises(LoaderError, match=r"source bad\b"):
        next(iter(DALILoader(pipeline, ["good", "bad"])))


def test_sources_fed_by_hand_are_refused_by_name() -> None:
    with pytest.raises(LoaderError, match=r"source numbers .*feed_input"):
        next(iter(make(None)))


def test_a_source_that_ends_before_its_reader_is_an_error(tmp_path: Any) -> None:
    """Its samples would be paired with others in the next epoch."""
    files = write_datasets(tmp_path)["file"]

    def pipeline(length: int) -> Any:
        def source(iteration: int) -> Any:
            if iteration == length:
                raise StopIteration
            return np.full((3, 1), iteration)

        def outputs() -> Any:
            return (
                dali.fn.external_source(source, name="numbers"),
                dali.fn.readers.file(name="reader", pad_last_batch=True, **files)[1],
            )

        return partial(
            dali.pipeline_def(outputs), batch_size=3, num_threads=1, device_id=None, seed=5
        )

    short = DALILoader(pipeline(6), ["numbers", "labels"])
    assert len(list(short)) == len(short) == 4
    with pytest.raises(LoaderError, match=r"epoch 1.* 2 "):
        list(short)
    long = partial(DALILoader, pipeline(20), ["numbers", "labels"])
    assert_exact_resume(long, epochs=3)


def test_a_state_of_another_epoch_is_refused() -> None:
    loaded = make(of_number)
    list(loaded)
    next(iter(loaded))
    state = loaded.state_dict()
    assert (state["epoch"], state["position"]) == (1, 1)
    with pytest.raises(StateMismatch, check=differing("checkpoint")):
        loaded.load_state_dict({**state, "epoch": 0})


def test_an_error_of_a_source_belongs_to_its_own_batch() -> None:
    """Earlier batches are delivered and counted, although the source is read ahead of them."""

    def failing(iteration: int) -> Any:
        if iteration == 3:
            raise KeyError("no such record")
        return of_number(iteration)

    for prefetch_queue_depth in (1, 2, 3, 5):
        loaded = make(failing, pipeline={"prefetch_queue_depth": prefetch_queue_depth})
        found: list[Any] = []
        with pytest.raises(KeyError, match="no such record"):
            found.extend(loaded)
        assert len(found) == loaded.state_dict()["position"] == 3


def test_an_interrupted_batch_is_delivered_after_the_resume() -> None:
    """Ctrl-C anywhere inside DALI: the batch in progress is neither delivered nor lost."""
    interrupts = [KeyboardInterrupt]

    def interrupted(iteration: int) -> Any:
        if iteration == 3 and interrupts:
            raise interrupts.pop()
        return of_number(iteration)

    expected = [copy_of(batch) for batch in make(of_number)]
    loaded = make(interrupted)
    found: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(loaded)
    with pytest.raises(LoaderError, match="KeyboardInterrupt"):
        list(loaded)
    loaded.load_state_dict(loaded.state_dict())
    assert same(found + list(loaded), expected)
