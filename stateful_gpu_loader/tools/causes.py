"""Finds the likely cause of a difference by making the sample again.

A generator, attribute or variable is reported as the cause only if the sample repeats with its
value restored. Other causes are reported with the observations that suggest them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stateful_gpu_loader.engine.isolation import isolated
from stateful_gpu_loader.engine.makers.choice import maker_of, policy_of
from stateful_gpu_loader.engine.pipeline import Answer, Failure, never_stopped
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.randomness.global_generators import seed_global_generators
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.samplers import is_map
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.tools.circumstances import (
    CLOCK,
    ENTROPY,
    THREADS,
    Variable,
    calls_noted,
    files_of,
    moved,
    values_of,
    variables_of,
)
from stateful_gpu_loader.tools.differences import copied, differences, num_samples, same, sample_of
from stateful_gpu_loader.tools.verify_plan import Place, Planned
from stateful_gpu_loader.tools.verify_report import Cause, DifferentSample
from stateful_gpu_loader.tools.verify_runs import (
    HASH_SEED,
    MakeLoader,
    Step,
    fresh,
    resumed_elsewhere,
    run,
    workers,
)
from stateful_gpu_loader.tools.which import name_of


@dataclass(frozen=True)
class Mismatch:
    """The first step at which a check differs from the undisturbed run."""

    planned: Planned
    number: int
    """Number of the step in the undisturbed run."""
    expected: Step | None
    found: Step | None
    error: Exception | None = None

    @property
    def request(self) -> Request | None:
        """Addresses of the samples in the expected batch, if known."""
        return None if self.expected is None else self.expected.request


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
    """Return the number of the first sample that differs, if known."""
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


_REPEATS = 6
"""Maximum number of times that a sample is made."""
_SEED = 20
_SEEDED = (
    "draw from random, numpy.random or torch, which StatefulGPULoader seeds before each sample, or "
    "give the object a method set_sample_seed(seed: int) that seeds it"
)


@dataclass(frozen=True)
class _Trial:
    """A way to make a sample again, or the first batches if it cannot be made alone."""

    objects: Callable[[], dict[str, Any]]
    """Returns the user's objects by name, the same or new ones."""
    make: Callable[[dict[str, Any]], Any]
    """Makes the sample with these objects."""
    disturb: Callable[[], Any]
    """Makes another sample with the same objects."""
    subject: str
    """Description of the sample, such as "the sample, made alone"."""

    def repeats(self, put_back: dict[str, Any], *, seeds: bool = True) -> bool:
        """Return whether the sample is the same each time.

        Args:
            put_back: values by path, restored before each time.
            seeds: whether the global generators are seeded each time.
        """
        first: Any = None
        for number in range(_REPEATS):
            objects = self.objects()
            if number:
                self.disturb()
            variables = _variables(objects) if put_back else {}
            for name, value in put_back.items():
                if name in variables:
                    variables[name].write(value)
            seed_global_generators(_SEED if seeds else _SEED + number)
            found = copied(self.make(objects))
            if number and not same(first, found):
                return False
            first = found
        return True


def cause_of(
    make_loader: MakeLoader, loader: Any, steps: list[Step], first: Mismatch, since: int
) -> Cause:
    """Return the likely cause of a difference.

    Args:
        loader: the loader of the undisturbed run.
        steps: the undisturbed run.
        first: first difference between a check and the undisturbed run.
        since: start of the undisturbed run, in nanoseconds since 1970.
    """
    batch = sum(not step.is_end for step in steps[: first.number])
    trial = _trial_of(make_loader, first.request, _place_in_batch(first) or 0, batch)
    try:
        return isolated(_likely_cause, trial, make_loader, loader, first, since, draws=True)
    except Exception as error:
        return _unknown([f"{trial.subject} raises {type(error).__name__}: {error}"])


def _trial_of(make_loader: MakeLoader, request: Request | None, place: int, batch: int) -> _Trial:
    """Return a way to make a sample again.

    Args:
        request: addresses of the samples in its batch, if known.
        place: number of the sample in the batch.
        batch: number of the batch in the run.
    """
    loader = fresh(make_loader)
    dataset, is_ours = loader.dataset, isinstance(loader, StatefulGPULoader)
    objects = {"dataset": dataset, "collate_fn": loader.collate_fn}
    if is_ours and request is not None and not loader._engine.plan.has_worker_states:
        objects["transform"] = loader.transform
        return _Trial(
            objects=lambda: objects,
            make=lambda _: _made(loader, _single(request, place)),
            disturb=lambda: _made(loader, _single(request, (place + 1) % len(request.indices))),
            subject="the sample, made alone",
        )
    if not is_ours and is_map(dataset) and len(dataset):
        return _Trial(
            objects=lambda: objects,
            make=lambda _: dataset[0],
            disturb=lambda: dataset[len(dataset) - 1],
            subject="sample 0 of the dataset, made alone",
        )

    def new_objects() -> dict[str, Any]:
        torch.manual_seed(_SEED)
        loader = fresh(make_loader, **workers(0))
        return {
            "dataset": loader.dataset,
            "transform": getattr(loader, "transform", None),
            "loader": loader,
        }

    return _Trial(
        objects=new_objects,
        make=lambda new: [step.batch for step in run(new["loader"], batch + 1)],
        disturb=lambda: None,
        subject=f"the first {batch + 1} batches of a new loader, without workers",
    )


def _likely_cause(
    trial: _Trial, make_loader: MakeLoader, loader: Any, first: Mismatch, since: int
) -> Cause:
    objects = trial.objects()
    before = values_of(_variables(objects))
    seed_global_generators(_SEED)
    with calls_noted() as calls:
        trial.make(objects)
    changed = moved(before, values_of(_variables(objects)))
    names = ", ".join(changed[:4])
    changes = [f"making it changes {names}"] if changed else []
    if not trial.repeats({}):
        observed = f"{trial.subject}, differs when it is repeated, with the same random seed"
        for some in [*([name] for name in changed), changed]:
            if some and trial.repeats({name: before[name] for name in some}):
                return _moving(trial, some, observed)
        return _outside(calls, [observed, *changes])
    observed = f"{trial.subject}, is the same each time, with the same random seed"
    read = {*_names_of(loader, first), *files_of(objects)}
    newer = [path for path in sorted(read) if _modified(path) > since]
    if newer:
        return Cause(
            "a file that changed",
            f"likely a file that was changed while the loader ran: {', '.join(newer[:3])}",
            (observed, f"{newer[0]} was written after the undisturbed run began"),
            "do not change data while a loader reads them",
        )
    is_elsewhere = first.planned.name == "a new Python process" and first.error is None
    if is_elsewhere and _depends_on_hashes(make_loader, first.planned.place):
        return Cause(
            "the order of a set",
            "likely the order of a set, or of another container of hashed strings, which differs "
            "between Python processes",
            (
                observed,
                f"two processes with {HASH_SEED}=1 agree, and a third with {HASH_SEED}=2 differs",
            ),
            "sort the elements of the set: sorted(names)",
        )
    if not isinstance(loader, StatefulGPULoader) and not trial.repeats({}, seeds=False):
        return Cause(
            "the global generators",
            "likely random, numpy.random or torch's global generator, whose states this loader "
            "does not save",
            (observed, "with another random seed it differs"),
            "StatefulGPULoader with the same arguments, which seeds them before each sample",
        )
    if changed and isinstance(loader.dataset, Stateful):
        return Cause(
            "a state that is not saved",
            f"likely {names}, which the dataset's state_dict() may lack",
            (observed, *changes),
            "add it to the dataset's state_dict()",
        )
    return _unknown([observed, *changes])


def _depends_on_hashes(make_loader: MakeLoader, place: Place) -> bool:
    """Return whether samples differ exactly when PYTHONHASHSEED differs."""
    runs = [resumed_elsewhere(make_loader, place.file, place.left, seed) for seed in (1, 1, 2)]
    first, again, other = ([step.batch for step in steps] for steps in runs)
    return same(first, again) and not same(first, other)


def _moving(trial: _Trial, names: list[str], observed: str) -> Cause:
    variables = _variables(trial.objects())
    kinds = {variables[name].kind for name in names if name in variables}
    shown = ", ".join(names[:4])
    seen = (observed, f"making it changes {shown}", "with that value restored it repeats")
    if "generator" in kinds:
        return Cause("a private generator", f"likely a private generator: {shown}", seen, _SEEDED)
    if kinds == {"variable"}:
        return Cause(
            "a global variable",
            f"likely a variable outside the loader's objects: {shown}",
            seen,
            "compute the value from the sample's index, or do without it",
        )
    return Cause(
        "an object that keeps state",
        f"likely a dataset or transform that changes with each call: {shown}",
        seen,
        "make it a function of its input, or give the dataset state_dict() and load_state_dict()",
    )


_OUTSIDE = {
    ENTROPY: (
        "likely os.urandom, which uuid4(), secrets and unseeded generators use",
        _SEEDED,
    ),
    THREADS: (
        "likely threads, which draw from the global generators, or deliver samples, in a varying "
        "order",
        "one thread, in_order=True, and no random draws in the function that threads call",
    ),
    CLOCK: (
        "likely the time of day, in the sample or as a seed",
        "leave it out; for webdataset's .shuffle(), which seeds its generator from the clock: "
        "TarShards with shuffle=True, or .shuffle(n, seed=...) or detshuffle",
    ),
}
"""Likely causes outside all generators, each with its remedy."""


def _outside(calls: dict[str, set[str]], observed: list[str]) -> Cause:
    """Return the cause if no restored value makes the sample repeat."""
    for kind in [kind for kind in _OUTSIDE if kind in calls]:
        observed.append(f"{kind}: called by {'; '.join(sorted(calls[kind])[:4])}")
    for kind, (what, remedy) in _OUTSIDE.items():
        if kind in calls:
            return Cause(kind, what, tuple(observed), remedy)
    return Cause(
        "native code",
        "likely code outside Python that does not repeat, such as a decoder, or an unseeded "
        "generator that is created for each sample",
        (
            *observed,
            "no clock, system randomness, thread, generator, attribute or variable was found that "
            "explains it",
        ),
        "decode the same bytes twice and compare; try another decoder; give generators a seed",
    )


def _variables(objects: dict[str, Any]) -> dict[str, Variable]:
    """Return the variables in the user's objects, without the loader's."""
    return variables_of({name: each for name, each in objects.items() if name != "loader"})


def _made(loader: StatefulGPULoader[Any], request: Request) -> Any:
    """Make the batch of a request in this thread, as the loader does."""
    plan = loader._engine.plan
    maker = maker_of(
        plan, policy_of(plan, {}), lambda shape, dtype: torch.empty(shape, dtype=dtype)
    )
    found = maker(request, never_stopped)
    payload = found.payload if isinstance(found, Answer) else found
    if isinstance(payload, Failure):
        payload.reraise()
    return payload


def _single(request: Request, place: int) -> Request:
    index, start = request.index_list()[place], int(request.positions[place])
    return request._replace(indices=[index], start=start, listed=None)


def _names_of(loader: Any, first: Mismatch) -> list[str]:
    """Return the source's name of the sample, in a list."""
    if first.request is None or not loader._engine.plan.is_read:
        return []
    index = first.request.index_list()[_place_in_batch(first) or 0]
    name = name_of(loader._engine.plan.source, index)
    return [] if name is None else [name]


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return 0


def _unknown(observed: list[str]) -> Cause:
    return Cause(
        "unknown",
        "unknown: nothing that was tried explains the difference",
        tuple(observed),
        "compare the two versions of the sample by hand",
    )
