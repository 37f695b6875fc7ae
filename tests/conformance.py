"""Checks of exact resume that every source, transform and kind of loader passes.

Resumed runs are compared with an uninterrupted run, sample by sample and pixel by pixel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader, StateMismatch

Loader = TypeVar("Loader", bound=Any)
MakeLoader = Callable[..., StatefulGPULoader[Any]]
"""Builds a loader. Keyword arguments override those of the loader, as in ``other``."""


def assert_exact_resume(
    make_loader: MakeLoader,
    *,
    epochs: int = 2,
    other: tuple[dict[str, Any], ...] = (),
    states_follow: bool = False,
) -> None:
    """Resume, and compare the rest bit for bit with the uninterrupted run.

    States are loaded into a fresh loader, into the same loader object, and several times in one
    epoch. ``state_dict()`` must return the loaded state. Without workers, the loader resumes at the
    boundaries of each epoch, to the end of all epochs, and at :func:`few_places`. Workers take a
    tenth of a second to start, so a loader with workers, and each change in ``other``, resumes only
    at the few places. :func:`assert_exact_on_all` resumes everywhere.

    Args:
        make_loader: builds a new loader of the stream under test; takes ``other`` as arguments.
        epochs: number of epochs of the uninterrupted run.
        other: arguments that must not change the stream, such as ``{"num_workers": 3}``.
        states_follow: whether the resumed loaders' later states equal the uninterrupted run's.
    """
    loader = make_loader()
    expected, states = uninterrupted(loader, epochs)
    few = places = few_places(states)
    if getattr(loader, "num_workers", 0) == 0:
        at_edges = boundaries(states)
        places = {
            place: epochs if place in at_edges else few.get(place, min(epochs, place[0] + 2))
            for place in states
            if place in at_edges or place in few
        }
    for place, end in places.items():
        _assert_resumes(make_loader(), expected, states, place, end, states_follow=states_follow)
    _assert_resumes_on(make_loader, other, expected, states, states_follow)
    _assert_same_object_resumes(make_loader, expected, states, {(0, 0): 1, **places})
    _assert_second_resume(make_loader, expected, states, epochs)


def assert_resumes_on(make_loader: MakeLoader, *other: dict[str, Any]) -> None:
    """Resume at a few places with other arguments, which must not change the stream."""
    _assert_resumes_on(make_loader, other, *uninterrupted(make_loader(), 2))


def assert_exact_on_all(make_loader: MakeLoader, executions: tuple[dict[str, Any], ...]) -> None:
    """Resume from each execution to each other, at every batch; for ``make test-all``.

    All executions deliver the same batches with the same states, so a state that resumes one
    resumes all. Fresh loaders resume at a few places. One loader resumes at each place in turn, to
    the end of its epoch.
    """
    expected, states = uninterrupted(make_loader(**executions[0]), 2)
    for execution in executions[1:]:
        found, of_found = uninterrupted(make_loader(**execution), 2)
        assert same(found, expected), execution
        assert of_found == states, execution
    few = few_places(states)
    everywhere = {place: few.get(place, min(place[0] + 1, 2)) for place in states}
    for execution in executions:
        for place, end in few.items():
            _assert_resumes(make_loader(**execution), expected, states, place, end, execution)
        make = partial(make_loader, **execution)
        _assert_same_object_resumes(make, expected, states, everywhere)


def few_places(states: Mapping[tuple[int, int], Any]) -> dict[tuple[int, int], int]:
    """Return places at which a loader with workers resumes, and where the comparisons end.

    The places are in the middle of the first epoch, at its last batch, after it, and in the second
    epoch. Each comparison ends before the given epoch.
    """
    ends = _ends(states)
    epochs = max(ends)
    found = {(0, ends[0] // 2): 2, (0, max(ends[0] - 1, 0)): 1, (0, ends[0]): 2}
    if epochs > 1:
        found[1, min(ends[1], 1)] = 2
    return {place: min(end, epochs) for place, end in found.items()}


def uninterrupted(
    loader: StatefulGPULoader[Any], epochs: int
) -> tuple[list[list[Any]], dict[tuple[int, int], dict[str, Any]]]:
    """Return the batches of each epoch, and the state at each (epoch, batches delivered)."""
    expected: list[list[Any]] = []
    states: dict[tuple[int, int], dict[str, Any]] = {}
    for epoch in range(epochs):
        batches: list[Any] = []
        states[epoch, 0] = loader.state_dict()
        for batch in loader:
            batches.append(copy_of(batch))
            states[epoch, len(batches)] = loader.state_dict()
        expected.append(batches)
    states[epochs, 0] = loader.state_dict()
    return expected, states


def assert_same_rest(
    loader: StatefulGPULoader[Any],
    expected: list[list[Any]],
    place: tuple[int, int],
    epochs: int,
    about: object = "",
    states: Mapping[tuple[int, int], Any] | None = None,
) -> None:
    """Check that the loader delivers what the uninterrupted run delivered after ``place``.

    Its states are compared too, if ``states`` is passed.
    """
    epoch, delivered = place
    for number in range(epoch, epochs):
        wanted = expected[number][delivered:]
        actual = []
        for batch in loader:
            actual.append(copy_of(batch))
            if states is not None:
                after = number, delivered + len(actual)
                assert loader.state_dict() == states.get(after), (after, place, about)
        delivered = 0
        assert len(actual) == len(wanted), (
            f"epoch {number} resumed at {place} {about}: {len(actual)} batches, not {len(wanted)}"
        )
        for i, (batch, original) in enumerate(zip(actual, wanted, strict=True)):
            assert same(batch, original), (
                f"epoch {number} resumed at {place} {about}: batch {i} of the rest differs"
            )


def loaded(loader: Loader, state: Any) -> Loader:
    loader.load_state_dict(state)
    return loader


def differing(field: str, **values: Any) -> Callable[[StateMismatch], bool]:
    """Return a check of a refusal: its field, and its ``saved`` and ``present`` values if given."""
    return lambda error: all(
        same(getattr(error, name), value) for name, value in {"field": field, **values}.items()
    )


def refusal(loader: Any, state: Any, field: str | None = None, **options: Any) -> StateMismatch:
    """Return the error with which a loader refuses a state; check that nothing has changed.

    Args:
        loader: a loader, or any object with its two methods.
        state: the state to refuse.
        field: the field that the error names, if known.
        options: ``accept``.
    """
    before = loader.state_dict()
    with pytest.raises(StateMismatch) as refused:
        loader.load_state_dict(state, **options)
    assert same(loader.state_dict(), before), "a refused load has changed the state"
    assert field in (None, refused.value.field), refused.value
    return refused.value


def refusal_at_next(loader: Any, state: Any, field: str | None = None) -> StateMismatch:
    """Return the error that the first batch after a load raises."""
    loader.load_state_dict(state)
    with pytest.raises(StateMismatch) as refused:
        next(iter(loader))
    assert same(loader.state_dict(), state), "a refused pass has changed the state"
    assert field in (None, refused.value.field), refused.value
    return refused.value


def _assert_resumes(
    resumed: StatefulGPULoader[Any],
    expected: list[list[Any]],
    states: dict[tuple[int, int], dict[str, Any]],
    place: tuple[int, int],
    epochs: int,
    about: object = "",
    states_follow: bool = False,
) -> None:
    resumed.load_state_dict(through_json(states[place]))
    assert resumed.state_dict() == states[place], f"set and get differ at {place} {about}"
    following = states if states_follow else None
    assert_same_rest(resumed, expected, place, epochs, about, following)


def _assert_resumes_on(
    make_loader: MakeLoader,
    other: Iterable[dict[str, Any]],
    expected: list[list[Any]],
    states: dict[tuple[int, int], dict[str, Any]],
    states_follow: bool = False,
) -> None:
    for change in other:
        for place, end in few_places(states).items():
            _assert_resumes(
                make_loader(**change), expected, states, place, end, change, states_follow
            )


def _assert_same_object_resumes(
    make_loader: MakeLoader,
    expected: list[list[Any]],
    states: dict[tuple[int, int], dict[str, Any]],
    places: Mapping[tuple[int, int], int],
) -> None:
    """Set one loader object, whose iterator was broken off after a batch, to each place in turn."""
    loader = make_loader()
    for place in reversed(places):
        for _ in loader:
            break
        loader.load_state_dict(states[place])
        assert_same_rest(loader, expected, place, places[place], "in the same object")


def _assert_second_resume(
    make_loader: MakeLoader,
    expected: list[list[Any]],
    states: dict[tuple[int, int], dict[str, Any]],
    epochs: int,
) -> None:
    """Resume, take a batch, save and resume again, three times in the first epoch."""
    state, delivered = states[0, 0], 0
    for _ in range(min(3, len(expected[0]))):
        loader = make_loader()
        loader.load_state_dict(state)
        batch = next(iter(loader))
        assert same(batch, expected[0][delivered]), f"batch {delivered} after a resume differs"
        delivered += 1
        state = loader.state_dict()
        assert state == states[0, delivered]
    last = make_loader()
    last.load_state_dict(state)
    assert_same_rest(last, expected, (0, delivered), epochs, "after several resumes")


def boundaries(states: Mapping[tuple[int, int], Any]) -> set[tuple[int, int]]:
    """Return the first two and the last two places of each epoch."""
    return {(epoch, edge) for epoch, end in _ends(states).items() for edge in (0, 1, end - 1, end)}


def _ends(states: Mapping[tuple[int, int], Any]) -> dict[int, int]:
    """Return the number of batches of each epoch."""
    ends: dict[int, int] = {}
    for epoch, delivered in states:
        ends[epoch] = max(ends.get(epoch, 0), delivered)
    return ends


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state as another process reads it from a file."""
    restored: dict[str, Any] = json.loads(json.dumps(state))
    return restored


def copy_of(batch: Any) -> Any:
    """Return a deep copy of a batch, which nothing can change later."""
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, (list, tuple)):
        return [copy_of(part) for part in batch]
    if isinstance(batch, dict):
        return {key: copy_of(part) for key, part in batch.items()}
    return batch


def same(one: Any, other: Any) -> bool:
    """Return whether values, dtypes and shapes are equal bit for bit, NaN included."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and torch.equal(bits(one), bits(other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and one.tobytes() == other.tobytes()
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes, in which NaN equals NaN and 0.0 differs from -0.0."""
    rows = tensor.contiguous().reshape(-1)
    if rows.numel() < 2:
        # A tensor with such strides cannot be viewed as bytes.
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows if rows.dtype == torch.bool else rows.view(torch.uint8)


def flat(batches: list[Any]) -> Iterator[Any]:
    """Yield the samples of batches in order."""
    for batch in batches:
        yield from batch
