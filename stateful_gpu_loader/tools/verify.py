"""verify_resume: whether a user's own loader resumes exactly, and if not, what differs and why."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader.engine.workers.choice import runs_in_threads
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.state.schema import Stateful, as_int
from stateful_gpu_loader.tools.causes import likely_cause, trial_of
from stateful_gpu_loader.tools.differences import differences, num_samples, same, sample_of
from stateful_gpu_loader.tools.verify_report import (
    Cause,
    Check,
    DifferentSample,
    Report,
    VerifyError,
)
from stateful_gpu_loader.tools.verify_runs import (
    HASH_SEED,
    MakeLoader,
    Step,
    fresh,
    restored,
    resumed,
    resumed_elsewhere,
    run,
    saved,
    workers,
)

OnCheck = Callable[[int, int, str], None]


class _Skipped(Exception):
    """A check does not apply to this loader; the message says why."""


@dataclass(frozen=True)
class _Place:
    """Where a state was saved."""

    name: str
    number: int
    """Number of steps of the undisturbed run before it."""
    left: int
    """Number of batches of the undisturbed run behind it."""
    file: tuple[str, bytes]
    """The state, as a file holds it."""


@dataclass(frozen=True)
class _Planned:
    """A check that is to be carried out."""

    name: str
    place: _Place
    resume: Callable[[], list[Step]]


@dataclass(frozen=True)
class _Mismatch:
    """The first step at which a check differs from the undisturbed run."""

    planned: _Planned
    number: int
    """Number of the step in the undisturbed run."""
    expected: Step | None
    found: Step | None
    error: Exception | None = None


def verify_resume(
    make_loader: Callable[[], DataLoader[Any]],
    *,
    batches: int = 12,
    on_check: OnCheck | None = None,
) -> Report:
    """Compare resumed loaders with an undisturbed run, bit for bit.

    The states after the first batch, in the middle, after an epoch's last batch and at its end go
    through JSON, or ``torch.save`` where JSON cannot hold them, into a new loader of
    ``make_loader()``. In the middle this is done with other numbers and kinds of workers as well,
    in a new Python process, and with a worker process that is killed. A check that does not apply
    is in the report as skipped, with the reason. If samples differ, the first of them is made again
    in other circumstances to find the likely cause.

    A plain DataLoader has no state: what is verified is a StatefulGPULoader with its arguments. A
    StatefulDataLoader is verified with its own workers.

    Args:
        make_loader: returns a new loader, with a new dataset, each time it is called. For the new
            process it has to be a function of a module.
        batches: number of batches of the undisturbed run, at least 2, over as many epochs as it
            takes.
        on_check: called before each check with its number, how many there are, and its name.

    Returns:
        A report, which is true if nothing differs. In a test, ``verify_resume(make).check()``
        raises an AssertionError with all of the report, and ``assert verify_resume(make)`` is
        enough, too.

    Raises:
        VerifyError: the loader cannot be built, or its undisturbed run raises or has no batch.
        ValueError: ``batches`` is less than 2.

    >>> def make_loader():
    ...     return StatefulGPULoader(range(10), batch_size=4, shuffle=True, seed=1)
    >>> report = verify_resume(make_loader, batches=4)
    >>> report.is_exact
    True
    """
    if as_int("batches", batches) < 2:
        raise ValueError(f"{batches = }. Remedy: at least 2, as one has to be left after a resume")
    since = time.time_ns()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader, steps, states = _undisturbed(make_loader, batches)
    notes, said = _notes_of(make_loader, loader), _texts(caught)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planned = _plan(make_loader, loader, steps, _places(steps, states))
        checks: list[Check] = []
        first: _Mismatch | None = None
        for number, each in enumerate(planned):
            if on_check is not None:
                on_check(number, len(planned), f"{each.name}, after {each.place.name}")
            check, mismatch = _carry_out(each, steps)
            checks.append(check)
            first = first or mismatch
        report = Report(
            loader=_described(loader),
            batches=sum(not step.is_end for step in steps),
            checks=tuple(checks),
            notes=(*notes, *said),
        )
        if first is None:
            return report
        if on_check is not None:
            on_check(len(planned), len(planned), "looking for the cause")
        cause = _cause(make_loader, loader, steps, first, since)
        if cause.kind == "unknown":
            seen = f"the first check that differs: {first.planned.name}"
            cause = replace(cause, observed=(*cause.observed, seen))
        said = [*said, *([f"{first.error}"] if isinstance(first.error, LoaderError) else [])]
        if said:
            observed = (*cause.observed, *(f"the loader itself says: {each}" for each in said))
            cause = replace(cause, observed=observed)
        return replace(report, sample=_sample(steps, first), cause=cause)


def _undisturbed(make_loader: MakeLoader, batches: int) -> tuple[Any, list[Step], list[Any]]:
    try:
        loader = fresh(make_loader)
        steps, states = [], []
        for step in run(loader, batches):
            steps.append(step)
            states.append(saved(loader.state_dict()))
    except LoaderError as error:
        raise VerifyError(str(error)) from error
    except Exception as error:
        raise VerifyError(
            f"the undisturbed run raises {type(error).__name__}: {error}. Remedy: iterate the "
            "loader, and call its state_dict(), once by yourself"
        ) from error
    if all(step.is_end for step in steps):
        raise VerifyError(
            "the loader delivers no batch, so there is nothing to resume. Remedy: look whether the "
            "dataset is empty, or drop_last leaves nothing of it"
        )
    return loader, steps, states


def _places(steps: list[Step], states: list[Any]) -> list[_Place]:
    """Choose where to resume: every place once, and none with nothing behind it."""
    of_batches = [number for number, step in enumerate(steps) if not step.is_end]
    ends = [number for number, step in enumerate(steps) if step.is_end]
    chosen = {of_batches[0]: "batch 1"}
    middle = len(of_batches) // 2
    if middle > 1:
        chosen.setdefault(of_batches[middle - 1], f"batch {middle}")
    if ends:
        if ends[0] > 0:
            chosen[ends[0] - 1] = "the first epoch's last batch"
        chosen[ends[0]] = "the end of the first epoch"
    places = [
        _Place(
            name=name,
            number=number + 1,
            left=sum(not step.is_end for step in steps[number + 1 :]),
            file=states[number],
        )
        for number, name in sorted(chosen.items())
    ]
    return [place for place in places if place.left] or places[:1]


def _plan(
    make_loader: MakeLoader, loader: Any, steps: list[Step], places: list[_Place]
) -> list[_Planned]:
    own = _kind_of_workers(loader)
    planned = [
        _Planned(
            f"a new loader, {own}, state through {place.file[0]}",
            place,
            partial(resumed, make_loader, place.file, place.left),
        )
        for place in places
    ]
    if not any(step.is_end for step in steps):
        why = "no epoch ends within the undisturbed run; a larger batches= reaches its end"
        planned.append(
            _Planned("a new loader", replace(places[0], name="an epoch's end"), _skip(why))
        )
    middle = places[min(1, len(places) - 1)]
    obstacle = _obstacle_to_other_workers(loader)
    for name, changes in (
        ("inline", workers(0)),
        ("2 threads", workers(2, "thread")),
        ("2 processes", workers(2, "process")),
    ):
        if name != own:
            resume = partial(_with_other_workers, make_loader, middle, changes)
            planned.append(_Planned(name, middle, _skip(obstacle) if obstacle else resume))
    killed = partial(_with_a_kill, make_loader, loader, places[0])
    planned.append(_Planned("a worker process is killed", places[0], killed))
    elsewhere = partial(_in_a_new_process, make_loader, middle)
    planned.append(_Planned("a new Python process", middle, elsewhere))
    return planned


def _carry_out(planned: _Planned, steps: list[Step]) -> tuple[Check, _Mismatch | None]:
    name, place = planned.name, planned.place.name
    expected = steps[planned.place.number :]
    try:
        found = planned.resume()
    except _Skipped as reason:
        return Check(name, place, "skipped", reason=str(reason)), None
    except Exception as error:
        first = _Mismatch(planned, planned.place.number, expected[0] if expected else None, None)
        raised = f"raises {type(error).__name__}: {error}"
        return Check(name, place, "differs", difference=raised), replace(first, error=error)
    # After an epoch's last batch some loaders tell of its end once more, and some do not.
    start = next((i for i, step in enumerate(expected) if not step.is_end), len(expected))
    behind = itertools.dropwhile(lambda step: step.is_end, found)
    pairs = itertools.zip_longest(expected[start:], behind)
    for number, (one, other) in enumerate(pairs, planned.place.number + start):
        text = _difference(one, other)
        if text is not None:
            mismatch = _Mismatch(planned, number, one, other)
            return Check(name, place, "differs", difference=text), mismatch
    return Check(name, place, "exact"), None


def _difference(expected: Step | None, found: Step | None) -> str | None:
    if expected is None:
        return "more batches than the undisturbed run"
    if found is None:
        return "fewer batches than the undisturbed run"
    if expected.is_end != found.is_end:
        return "an epoch that ends earlier" if found.is_end else "an epoch that goes on"
    first = next(differences(expected.batch, found.batch), None)
    return None if first is None else str(first)


def _with_other_workers(
    make_loader: MakeLoader,
    place: _Place,
    changes: dict[str, Any],
    after: Callable[[Any, int], None] | None = None,
) -> list[Step]:
    try:
        other = fresh(make_loader, **changes)
    except VerifyError:
        raise
    except (ValueError, TypeError) as error:
        raise _Skipped(str(error)) from error
    other.load_state_dict(restored(place.file))
    try:
        return list(run(other, place.left, after))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error):
            raise
        raise _Skipped(f"the workers cannot be started: {error}") from error


def _with_a_kill(make_loader: MakeLoader, loader: Any, place: _Place) -> list[Step]:
    if not isinstance(loader, StatefulGPULoader):
        raise _Skipped(f"a {type(loader).__name__} does not replace workers that are lost")
    if loader.max_worker_restarts == 0:
        raise _Skipped("max_worker_restarts=0")
    changes: dict[str, Any] = {}
    if not _kind_of_workers(loader).endswith("processes"):
        obstacle = _obstacle_to_other_workers(loader)
        if obstacle is not None:
            raise _Skipped(obstacle)
        changes = workers(2, "process")
    killed: list[int] = []

    def kill(batches: Any, number: int) -> None:
        if number < max(1, place.left // 2) or killed or not batches._workers:
            return
        worker = batches._workers[0]
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        killed.append(worker.pid)

    if changes:
        steps = _with_other_workers(make_loader, place, changes, kill)
    else:
        steps = resumed(make_loader, place.file, place.left, kill)
    if not killed:
        raise _Skipped("no worker process was running any more")
    return steps


def _in_a_new_process(make_loader: MakeLoader, place: _Place) -> list[Step]:
    try:
        pickle.dumps(make_loader)
    except Exception as error:
        raise _Skipped(
            f"{error}: to be called in a new process, the function has to be in a module"
        ) from error
    return resumed_elsewhere(make_loader, place.file, place.left, hash_seed=1)


def _order_of_sets(make_loader: MakeLoader, place: _Place) -> str | None:
    """Tell that samples differ exactly when PYTHONHASHSEED does; None if they do not."""
    runs = [resumed_elsewhere(make_loader, place.file, place.left, seed) for seed in (1, 1, 2)]
    first, again, other = ([step.batch for step in steps] for steps in runs)
    if not same(first, again) or same(first, other):
        return None
    return f"two processes with {HASH_SEED}=1 agree, and one with {HASH_SEED}=2 differs from them"


def _cause(
    make_loader: MakeLoader, loader: Any, steps: list[Step], first: _Mismatch, since: int
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


def _sample(steps: list[Step], first: _Mismatch) -> DifferentSample | None:
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


def _place_in_batch(first: _Mismatch) -> int | None:
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


def _obstacle_to_other_workers(loader: Any) -> str | None:
    if not isinstance(loader, StatefulGPULoader):
        return f"the state of a {type(loader).__name__} fits the same number of workers only"
    if loader._engine.plan.has_worker_states:
        return (
            f"{type(loader.dataset).__name__} is iterated, or has a state, in each worker by "
            "itself: its state fits the same number of workers only"
        )
    return None


def _kind_of_workers(loader: Any) -> str:
    if loader.num_workers == 0:
        return "inline"
    threads = isinstance(loader, StatefulGPULoader) and runs_in_threads(loader._engine.plan)
    return f"{loader.num_workers} {'threads' if threads else 'processes'}"


def _described(loader: Any) -> str:
    return f"{type(loader).__name__} of {type(loader.dataset).__name__}, {_kind_of_workers(loader)}"


def _notes_of(make_loader: MakeLoader, loader: Any) -> list[str]:
    if isinstance(make_loader(), StatefulDataLoader):
        return []  # it was not converted
    return [
        "a DataLoader has no state: an interrupted epoch begins anew, with other random numbers. "
        f"What is verified here is {type(loader).__name__} with the same arguments, which has one"
    ]


def _texts(caught: list[warnings.WarningMessage]) -> list[str]:
    """Return what was warned of, each once, without what torch says of itself."""
    texts = dict.fromkeys(str(each.message) for each in caught)
    return [
        text
        for text in texts
        if not text.startswith("This DataLoader will create") and "set_vital" not in text
    ]


def _skip(reason: str) -> Callable[[], list[Step]]:
    def skip() -> list[Step]:
        raise _Skipped(reason)

    return skip
