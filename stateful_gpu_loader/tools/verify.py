"""verify_resume: checks whether a loader resumes exactly, and finds the cause if not."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader.engine.torch_names import is_being_started
from stateful_gpu_loader.engine.workers.worker_start import BEING_STARTED, GUARD
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.state.schema import as_int
from stateful_gpu_loader.tools.causes import Mismatch, cause_of, sample_of_mismatch
from stateful_gpu_loader.tools.differences import differences
from stateful_gpu_loader.tools.verify_plan import (
    Planned,
    Skipped,
    kind_of_workers,
    obstacle_in,
    obstacle_to_processes,
    places_of,
    plan_of,
)
from stateful_gpu_loader.tools.verify_report import Check, Report, VerifyError
from stateful_gpu_loader.tools.verify_runs import MakeLoader, Step, fresh, run, saved

OnCheck = Callable[[int, int, str], None]


def verify_resume(
    make_loader: Callable[[], DataLoader[Any]],
    *,
    batches: int = 12,
    on_check: OnCheck | None = None,
) -> Report:
    """Compare resumed loaders with an undisturbed run, bit for bit.

    Four states are saved: after the first batch, in the middle, after an epoch's last batch and at
    its end. Each goes through JSON, or ``torch.save`` if JSON cannot hold it, into a new loader of
    ``make_loader()``. The middle state is also loaded with other numbers and kinds of workers, in a
    new Python process, and with a worker process that is killed. The report gives a reason for each
    check that was skipped or could not run. If samples differ, the first is made again under other
    circumstances to find the likely cause.

    A plain DataLoader has no state; a StatefulGPULoader with its arguments is verified instead. A
    StatefulDataLoader is verified with its own workers.

    Args:
        make_loader: returns a new loader, with a new dataset, in each call. For the check in a new
            process it must be a function of a module.
        batches: number of batches of the undisturbed run, at least 2; it may cover several epochs.
        on_check: called before each check with its number, the number of checks, and its name.

    Returns:
        A report, which is true if nothing differs. Its truth value raises VerifyError if nothing
        differs but some check could not run. In a test, ``verify_resume(make).check()`` raises an
        AssertionError with the whole report; ``assert verify_resume(make)`` also works.

    Raises:
        VerifyError: the loader cannot be built, its undisturbed run raises or has no batch, or a
            started process imports the main script without a guard.
        ValueError: ``batches`` is less than 2.

    A script that calls it needs ``if __name__ == "__main__":``, because new processes import it.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> def make_loader():
    ...     return StatefulGPULoader(range(10), batch_size=4, shuffle=True, seed=1)
    >>> report = verify_resume(make_loader, batches=4)
    >>> report.is_exact
    True
    """
    if as_int("batches", batches) < 2:
        raise ValueError(f"{batches = } leaves no batch after a resume. Remedy: pass 2 or more")
    if is_being_started():
        raise VerifyError(f"{BEING_STARTED}. Remedy: {GUARD}")
    since = time.time_ns()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader, steps, states = _undisturbed(make_loader, batches)
    notes, said = _notes_of(make_loader, loader), _texts(caught)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planned = plan_of(make_loader, loader, steps, places_of(steps, states))
        checks: list[Check] = []
        first: Mismatch | None = None
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
        cause = cause_of(make_loader, loader, steps, first, since)
        if cause.kind == "unknown":
            seen = f"the first check that differs: {first.planned.name}"
            cause = replace(cause, observed=(*cause.observed, seen))
        said = [*said, *([f"{first.error}"] if isinstance(first.error, LoaderError) else [])]
        if said:
            observed = (*cause.observed, *(f"the loader itself says: {each}" for each in said))
            cause = replace(cause, observed=observed)
        return replace(report, sample=sample_of_mismatch(steps, first), cause=cause)


def _undisturbed(make_loader: MakeLoader, batches: int) -> tuple[Any, list[Step], list[Any]]:
    loader = None
    try:
        loader = fresh(make_loader)
        steps, states = [], []
        for step in run(loader, batches):
            steps.append(step)
            states.append(saved(loader.state_dict()))
    except LoaderError as error:
        raise VerifyError(str(error)) from error
    except Exception as error:
        has_processes = loader is not None and kind_of_workers(loader).endswith("processes")
        obstacle = obstacle_to_processes(loader) if has_processes else None
        if obstacle is not None:
            raise VerifyError(
                f"the loader cannot run: {obstacle}. Remedy: use objects that can be pickled, such "
                "as functions and classes of a module, or pass multiprocessing_context='fork'"
            ) from error
        raise VerifyError(
            f"the undisturbed run raises {type(error).__name__}: {error}. Remedy: first make the "
            "loader work by itself: iterate it, and call its state_dict()"
        ) from error
    if all(step.is_end for step in steps):
        raise VerifyError(
            "the loader delivers no batch, so there is nothing to resume. Remedy: check whether "
            "the dataset is empty, or smaller than a batch with drop_last=True"
        )
    return loader, steps, states


def _carry_out(planned: Planned, steps: list[Step]) -> tuple[Check, Mismatch | None]:
    name, place = planned.name, planned.place.name
    expected = steps[planned.place.number :]
    try:
        found = planned.resume()
    except Skipped as reason:
        return Check(name, place, "skipped", reason=str(reason)), None
    except Exception as error:
        obstacle = obstacle_in(error)
        if obstacle is not None:
            return Check(name, place, "could not run", reason=obstacle), None
        first = Mismatch(planned, planned.place.number, expected[0] if expected else None, None)
        raised = f"raises {type(error).__name__}: {error}"
        return Check(name, place, "differs", difference=raised), replace(first, error=error)
    # After an epoch's last batch some loaders signal its end again, and some do not.
    start = next((i for i, step in enumerate(expected) if not step.is_end), len(expected))
    behind = itertools.dropwhile(lambda step: step.is_end, found)
    pairs = itertools.zip_longest(expected[start:], behind)
    for number, (one, other) in enumerate(pairs, planned.place.number + start):
        text = _difference(one, other)
        if text is not None:
            mismatch = Mismatch(planned, number, one, other)
            return Check(name, place, "differs", difference=text), mismatch
    return Check(name, place, "exact"), None


def _difference(expected: Step | None, found: Step | None) -> str | None:
    if expected is None:
        return "more batches than the undisturbed run"
    if found is None:
        return "fewer batches than the undisturbed run"
    if expected.is_end != found.is_end:
        return "an epoch that ends earlier" if found.is_end else "an epoch that continues"
    first = next(differences(expected.batch, found.batch), None)
    return None if first is None else str(first)


def _described(loader: Any) -> str:
    return f"{type(loader).__name__} of {type(loader.dataset).__name__}, {kind_of_workers(loader)}"


def _notes_of(make_loader: MakeLoader, loader: Any) -> list[str]:
    if isinstance(make_loader(), StatefulDataLoader):
        return []  # it was not converted
    return [
        "a DataLoader has no state: an interrupted epoch restarts, with other random numbers. "
        f"Verified here is a {type(loader).__name__} with the same arguments, which has a state"
    ]


def _texts(caught: list[warnings.WarningMessage]) -> list[str]:
    """Return the text of each warning once, without warnings about torch itself."""
    texts = dict.fromkeys(str(each.message) for each in caught)
    return [
        text
        for text in texts
        if not text.startswith("This DataLoader will create") and "set_vital" not in text
    ]
