"""What the first check that differs shows: which sample, in what, and for what likely cause."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.tools.causes import likely_cause, trial_of
from stateful_gpu_loader.tools.differences import differences, num_samples, same, sample_of
from stateful_gpu_loader.tools.verify_plan import Place, Planned
from stateful_gpu_loader.tools.verify_report import Cause, DifferentSample
from stateful_gpu_loader.tools.verify_runs import HASH_SEED, MakeLoader, Step, resumed_elsewhere


@dataclass(frozen=True)
class Mismatch:
    """The first step at which a check differs from the undisturbed run."""

    planned: Planned
    number: int
    """Number of the step in the undisturbed run."""
    expected: Step | None
    found: Step | None
    error: Exception | None = None


def cause_of(
    make_loader: MakeLoader, loader: Any, steps: list[Step], first: Mismatch, since: int
) -> Cause:
    place, expected = _place_in_batch(first), first.expected
    batch = sum(not step.is_end for step in steps[: first.number])
    trial = trial_of(make_loader, expected.request if expected else None, place or 0, batch)
    is_elsewhere = first.planned.name == "a new Python process" and first.error is None
    return likely_cause(
        trial,
        since=since,
        keeps_state=isinstance(loader.dataset, Stateful),
        seeds=isinstance(loader, StatefulGPULoader),
        elsewhere=partial(_order_of_sets, make_loader, first.planned.place)
        if is_elsewhere
        else lambda: None,
    )


def sample_of_mismatch(steps: list[Step], first: Mismatch) -> DifferentSample | None:
    expected, found = first.expected, first.found
    if expected is None or found is None or expected.is_end or found.is_end:
        return None
    place, request = _place_in_batch(first), expected.request
    one, other = expected.batch, found.batch
    n = _num_samples(expected)
    if place is not None and n is not None:
        one, other = sample_of(one, place, n), sample_of(other, place, n)
    number = 0 if place is None and n in (None, 1) else place
    position, index = None, None
    if request is not None and number is not None:
        position, index = int(request.positions[number]), repr(request.index_list()[number])
    return DifferentSample(
        check=first.planned.name,
        batch=sum(not step.is_end for step in steps[: first.number]),
        place_in_batch=place,
        position=position,
        index=index,
        fields=tuple(differences(one, other)),
    )


def _place_in_batch(first: Mismatch) -> int | None:
    """Return the number of the first sample that differs; None if it cannot be told."""
    expected, found = first.expected, first.found
    if expected is None or found is None:
        return None
    n = _num_samples(expected)
    if n is None or n != _num_samples(found):
        return None
    return next(
        (
            i
            for i in range(n)
            if not same(sample_of(expected.batch, i, n), sample_of(found.batch, i, n))
        ),
        None,
    )


def _num_samples(step: Step) -> int | None:
    return len(step.request.indices) if step.request else num_samples(step.batch)


def _order_of_sets(make_loader: MakeLoader, place: Place) -> str | None:
    """Tell that samples differ exactly when PYTHONHASHSEED does; None if they do not."""
    runs = [resumed_elsewhere(make_loader, place.file, place.left, seed) for seed in (1, 1, 2)]
    first, again, other = ([step.batch for step in steps] for steps in runs)
    if not same(first, again) or same(first, other):
        return None
    return f"two processes with {HASH_SEED}=1 agree, and one with {HASH_SEED}=2 differs from them"
