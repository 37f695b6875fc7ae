"""Iterable datasets, with state and without."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import loaded, refusal, refusal_at_next, same, uninterrupted
from tests.user_objects import PlainIterable, StatefulIterable

UNEVEN = [3, 17, 9, 0, 6]
pytestmark = pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")


def make(kind: type[PlainIterable], **arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(kind(UNEVEN), **{"batch_size": 4, "seed": 3, **arguments})


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(None, False), (4, False), (4, True)])
def test_batches_are_those_of_data_loader(
    num_workers: int, batch_size: int | None, drop_last: bool
) -> None:
    """Samples and order are the same, also with workers of different lengths."""

    class Numbers(PlainIterable):
        def __iter__(self) -> Any:
            return iter(self.part())

    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "num_workers": num_workers,
        "drop_last": drop_last,
    }
    ours = list(StatefulGPULoader(Numbers(UNEVEN), **arguments))
    assert same(ours, list(DataLoader(Numbers(UNEVEN), **arguments)))
    assert same(ours, list(StatefulDataLoader(Numbers(UNEVEN), **arguments)))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_reading_again_is_warned_of_once_and_is_correct_the_second_time(num_workers: int) -> None:
    """torchdata's second resume of a stateless iterable skips data."""
    expected, states = uninterrupted(make(PlainIterable, num_workers=num_workers), 1)
    state = states[0, 2]
    for delivered in (2, 3, 4):
        loader = loaded(make(PlainIterable, num_workers=num_workers), state)
        batches = iter(loader)
        with pytest.warns(UserWarning, match=f"{4 * delivered} samples of the iterable") as warned:
            batch = next(batches)
        assert same(batch, expected[0][delivered])
        assert len([w for w in warned if "read again" in str(w.message)]) == 1
        assert "state_dict()" in str(warned[0].message)
        state = loader.state_dict()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "saved", "present"),
    [(PlainIterable, 2, 1), (StatefulIterable, 2, 0), (PlainIterable, 0, 2)],
)
def test_another_number_of_workers_is_refused_with_both(
    kind: type[PlainIterable], saved: int, present: int
) -> None:
    """Each worker needs the state of its own objects."""
    loader = make(kind, num_workers=saved)
    batches = iter(loader)
    next(batches)
    refused = refusal(make(kind, num_workers=present), loader.state_dict(), "num_workers")
    assert (refused.saved, refused.present) == (saved, present)


@pytest.mark.processes
@pytest.mark.parametrize("kind", [PlainIterable, StatefulIterable])
def test_between_passes_the_number_of_workers_is_free(kind: type[PlainIterable]) -> None:
    """Workers keep nothing after a pass, and the next pass builds them again."""
    loader = make(kind, num_workers=2)
    list(loader)
    other = loaded(make(kind, num_workers=3), loader.state_dict())
    assert len(list(other)) > 0


def test_iterables_of_a_different_kind_are_refused() -> None:
    loader = make(StatefulIterable)
    next(iter(loader))
    refusal(StatefulGPULoader(range(4)), loader.state_dict(), "order")  # type: ignore[arg-type]
    refused = refusal_at_next(make(PlainIterable), loader.state_dict())
    assert "PlainIterable, which has no load_state_dict" in str(refused)


def test_a_longer_iterable_than_promised_warns_as_torch_does() -> None:

    class TooLong(IterableDataset[int]):
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            return iter(range(4))

    loader = StatefulGPULoader(TooLong(), batch_size=1)
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="was reported to be 2"):
        assert len(list(loader)) == 4


def test_an_exception_of_an_iterable_is_raised_and_other_workers_continue() -> None:
    """The iterator and the state have moved past the failed sample."""
    loader = StatefulGPULoader(Failing(10, 5), batch_size=2)
    batches = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(LookupError, match="no sample 5"):
        next(batches)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    assert rest == [[6, 7], [8, 9]]
    resumed = loaded(StatefulGPULoader(Failing(10, 5), batch_size=2), state)
    assert [batch.tolist() for batch in resumed] == rest


@pytest.mark.processes
@pytest.mark.parametrize("interval", [1, 3])
def test_a_caught_exception_loses_no_batch(interval: int) -> None:
    """torchdata loses batches with snapshot_every_n_steps > 1."""
    arguments: dict[str, Any] = {
        "batch_size": 2,
        "num_workers": 2,
        "snapshot_every_n_steps": interval,
    }

    def run(state: dict[str, Any] | None = None) -> tuple[list[Any], list[Any]]:
        """Return the batches, and the number of batches and the state after each next()."""
        loader = StatefulGPULoader(Failing(20, 5), **arguments)
        if state is not None:
            loader.load_state_dict(state)
        batches, delivered, states = iter(loader), [], []
        while True:
            try:
                delivered.append(next(batches).tolist())
            except StopIteration:
                return delivered, states
            except LookupError:
                pass
            states.append((len(delivered), loader.state_dict()))

    delivered, states = run()
    for count, state in states:
        assert run(state)[0] == delivered[count:], count


class Failing(IterableDataset[int]):
    """Raises for one of its samples, and continues after it."""

    def __init__(self, length: int, failing: int) -> None:
        self.length, self.failing, self.i = length, failing, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.i >= self.length:
            raise StopIteration
        self.i += 1
        if self.i - 1 == self.failing:
            raise LookupError(f"no sample {self.failing}")
        return self.i - 1

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]


def test_ranks_and_workers_draw_differently() -> None:
    """The key contains the worker, so no two workers share draws."""

    class Drawing(IterableDataset[Any]):
        def __iter__(self) -> Any:
            for _ in range(4):
                yield torch.rand(())

    drawn = torch.cat(list(StatefulGPULoader(Drawing(), num_workers=2, batch_size=4, seed=1)))
    assert len(set(drawn.tolist())) == 8


def test_no_warning_where_nothing_is_read_again() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = make(StatefulIterable, num_workers=2)
        next(iter(loader))
        resumed = loaded(make(StatefulIterable, num_workers=2), loader.state_dict())
        list(resumed)
