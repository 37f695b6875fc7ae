"""The checks of ``verify_resume``: the places a loader is resumed from, and the ways to do it."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stateful_gpu_loader.engine.workers.choice import runs_in_threads
from stateful_gpu_loader.engine.workers.worker_start import GUARD, is_of_a_start, method_of
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.tools.verify_report import VerifyError
from stateful_gpu_loader.tools.verify_runs import (
    MakeLoader,
    Step,
    fresh,
    restored,
    resumed,
    resumed_elsewhere,
    run,
    workers,
)


class Skipped(Exception):
    """A check does not apply to this loader; the message says why."""


def obstacle_in(error: Exception) -> str | None:
    """Return why a check could not run, unless its error is about the batches."""
    if isinstance(error, BrokenProcessPool):
        return f"the new process ended before it had resumed the loader. Remedy: {GUARD}"
    return str(error) if isinstance(error, VerifyError) or is_of_a_start(error) else None


@dataclass(frozen=True)
class Place:
    """Place in the undisturbed run at which a state was saved."""

    name: str
    number: int
    """Number of steps of the undisturbed run before the place."""
    left: int
    """Number of batches of the undisturbed run after the place."""
    file: tuple[str, bytes]
    """Format and content of a file with the state."""


@dataclass(frozen=True)
class Planned:
    """A check that is still to be run."""

    name: str
    place: Place
    resume: Callable[[], list[Step]]


def places_of(steps: list[Step], states: list[Any]) -> list[Place]:
    """Choose the places to resume from, all followed by batches."""
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
        Place(
            name=name,
            number=number + 1,
            left=sum(not step.is_end for step in steps[number + 1 :]),
            file=states[number],
        )
        for number, name in sorted(chosen.items())
    ]
    return [place for place in places if place.left] or places[:1]


def plan_of(
    make_loader: MakeLoader, loader: Any, steps: list[Step], places: list[Place]
) -> list[Planned]:
    own = kind_of_workers(loader)
    planned = [
        Planned(
            f"a new loader, {own}, state through {place.file[0]}",
            place,
            partial(resumed, make_loader, place.file, place.left),
        )
        for place in places
    ]
    if not any(step.is_end for step in steps):
        why = "no epoch ends within the undisturbed run; a larger batches= reaches its end"
        planned.append(
            Planned("a new loader", replace(places[0], name="an epoch's end"), _skip(why))
        )
    middle = places[min(1, len(places) - 1)]
    obstacle = _obstacle_to_other_workers(loader)
    to_processes = obstacle or obstacle_to_processes(loader)
    for name, changes in (
        ("inline", workers(0)),
        ("2 threads", workers(2, "thread")),
        ("2 processes", workers(2, "process")),
    ):
        if name != own:
            resume = partial(_with_other_workers, make_loader, middle, changes)
            reason = to_processes if "process" in name else obstacle
            planned.append(Planned(name, middle, _skip(reason) if reason else resume))
    killed = partial(_with_a_kill, make_loader, loader, places[0])
    planned.append(Planned("a worker process is killed", places[0], killed))
    elsewhere = partial(_in_a_new_process, make_loader, middle)
    planned.append(Planned("a new Python process", middle, elsewhere))
    return planned


def _with_other_workers(
    make_loader: MakeLoader,
    place: Place,
    changes: dict[str, Any],
    after: Callable[[Any, int], None] | None = None,
) -> list[Step]:
    try:
        other = fresh(make_loader, **changes)
    except VerifyError:
        raise
    except (ValueError, TypeError) as error:
        raise Skipped(str(error)) from error
    other.load_state_dict(restored(place.file))
    try:
        return list(run(other, place.left, after))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error):
            raise
        raise Skipped(f"worker processes cannot do this loader's work: {error}") from error


def _with_a_kill(make_loader: MakeLoader, loader: Any, place: Place) -> list[Step]:
    if not isinstance(loader, StatefulGPULoader):
        raise Skipped(f"a {type(loader).__name__} does not replace workers that are lost")
    if loader.max_worker_restarts == 0:
        raise Skipped("max_worker_restarts=0")
    changes: dict[str, Any] = {}
    if not kind_of_workers(loader).endswith("processes"):
        obstacle = _obstacle_to_other_workers(loader) or obstacle_to_processes(loader)
        if obstacle is not None:
            raise Skipped(obstacle)
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
        raise Skipped("no worker process was running any more")
    return steps


def _in_a_new_process(make_loader: MakeLoader, place: Place) -> list[Step]:
    try:
        pickle.dumps(make_loader)
    except Exception as error:
        raise Skipped(
            f"{error}: a new process can only call a function that is in a module"
        ) from error
    return resumed_elsewhere(make_loader, place.file, place.left, hash_seed=1)


def _obstacle_to_other_workers(loader: Any) -> str | None:
    if not isinstance(loader, StatefulGPULoader):
        return f"the state of a {type(loader).__name__} fits only the same number of workers"
    if loader._engine.plan.has_worker_states:
        return (
            f"each worker iterates its own {type(loader.dataset).__name__}, or keeps its own state "
            "of it: the state fits only the same number of workers"
        )
    return None


def obstacle_to_processes(loader: Any) -> str | None:
    """Return why processes cannot be started with the loader's objects, if so."""
    method = method_of(loader.multiprocessing_context)
    if method == "fork":
        return None
    for name in ("dataset", "transform", "collate_fn", "worker_init_fn"):
        try:
            with open(os.devnull, "wb") as nowhere:
                pickle.dump(getattr(loader, name, None), nowhere)
        except RuntimeError:
            continue  # locks and queues of multiprocessing are pickled only at a process start
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            return (
                f"worker processes are started with {method!r} here, and the loader's {name} "
                f"cannot be pickled ({error})"
            )
    return None


def kind_of_workers(loader: Any) -> str:
    if loader.num_workers == 0:
        return "inline"
    threads = isinstance(loader, StatefulGPULoader) and runs_in_threads(loader._engine.plan)
    return f"{loader.num_workers} {'threads' if threads else 'processes'}"


def _skip(reason: str) -> Callable[[], list[Step]]:
    def skip() -> list[Step]:
        raise Skipped(reason)

    return skip
