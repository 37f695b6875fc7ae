"""The likely cause of a difference: the sample that differs is made again in other circumstances.

Something is named as the cause only if putting it back made the sample repeat, or if the message
says what else was observed. What nothing explains is said to be unknown.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
    Seen,
    Variable,
    moved,
    values_of,
    variables_of,
    watched,
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


_REPEATS = 6
"""How often a sample is made at most; a coin that is tossed lands alike once in 32 times."""
_SEED = 20
SEEDED = (
    "draw from random, numpy.random or torch, which StatefulGPULoader seeds before each sample, or "
    "give the object a method set_sample_seed(seed: int) that seeds it"
)


@dataclass(frozen=True)
class Trial:
    """A way to make a sample again, or the first batches where it cannot be made alone."""

    objects: Callable[[], dict[str, Any]]
    """Returns the user's objects by name: the same each time, or those of a new loader."""
    make: Callable[[dict[str, Any]], Any]
    """Makes the sample with these objects."""
    disturb: Callable[[], Any]
    """Makes another sample with the same objects, which must not matter."""
    subject: str
    """What is made, in words."""


def trial_of(make_loader: MakeLoader, request: Request | None, place: int, batch: int) -> Trial:
    """Return how to make a sample again.

    Args:
        request: addresses of the samples of its batch, if they are known.
        place: number of the sample in the batch.
        batch: number of the batch in the run.
    """
    loader = fresh(make_loader)
    dataset, is_ours = loader.dataset, isinstance(loader, StatefulGPULoader)
    objects = {"dataset": dataset, "collate_fn": loader.collate_fn}
    if is_ours and request is not None and not loader._engine.plan.has_worker_states:
        objects["transform"] = loader.transform
        return Trial(
            objects=lambda: objects,
            make=lambda _: _made(loader, _single(request, place)),
            disturb=lambda: _made(loader, _single(request, (place + 1) % len(request.indices))),
            subject="the sample, made alone",
        )
    if not is_ours and is_map(dataset) and len(dataset):
        return Trial(
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

    return Trial(
        objects=new_objects,
        make=lambda new: [step.batch for step in run(new["loader"], batch + 1)],
        disturb=lambda: None,
        subject=f"the first {batch + 1} batches of a new loader, without workers",
    )


def likely_cause(
    trial: Trial,
    *,
    since: int,
    keeps_state: bool,
    seeds: bool,
    elsewhere: Callable[[], str | None],
) -> Cause:
    """Return the likely cause of a difference.

    Args:
        since: when the undisturbed run began, in nanoseconds since 1970.
        keeps_state: whether the dataset has a state of its own.
        seeds: whether the loader seeds the global generators for each sample.
        elsewhere: tells what the order of sets does to the sample; None if nothing.
    """
    try:
        return isolated(_likely_cause, trial, since, keeps_state, seeds, elsewhere, draws=True)
    except Exception as error:
        return _unknown([f"{trial.subject} raises {type(error).__name__}: {error}"])


def _likely_cause(
    trial: Trial,
    since: int,
    keeps_state: bool,
    seeds: bool,
    elsewhere: Callable[[], str | None],
) -> Cause:
    objects = trial.objects()
    before = values_of(_variables(objects))
    seed_global_generators(_SEED)
    with watched() as seen:
        trial.make(objects)
    changed = moved(before, values_of(_variables(objects)))
    if not _repeats(trial, {}):
        observed = f"{trial.subject}, differs when it is repeated, with the same random seed"
        return _of_repetition(trial, before, changed, seen, observed)
    observed = f"{trial.subject}, is the same each time, with the same random seed"
    newer = [path for path in sorted(seen.files) if _modified(path) > since]
    if newer:
        return Cause(
            "a file that changed",
            f"likely a file that was changed while the loader ran: {', '.join(newer[:3])}",
            (observed, f"{newer[0]} is read for the sample and was written after the first run"),
            "leave the data unchanged while they are read",
        )
    sets = elsewhere()
    if sets is not None:
        return Cause(
            "the order of a set",
            "likely the order of a set or of another container of hashed texts, which each Python "
            "process chooses anew",
            (observed, sets),
            "sort what comes out of a set: sorted(names)",
        )
    if not seeds and not _repeats(trial, {}, seeds=False):
        return Cause(
            "the global generators",
            "likely random, numpy.random or torch's global generator, whose states this loader "
            "does not save",
            (observed, "with other random seeds it differs"),
            "StatefulGPULoader with the same arguments, which seeds them before each sample",
        )
    names = ", ".join(changed[:4])
    if changed and keeps_state:
        return Cause(
            "a state that is not saved",
            f"likely {names}, which the dataset's state_dict() may lack",
            (observed, f"making it changes {names}"),
            "put it into the dataset's state_dict()",
        )
    return _unknown([observed, *([f"making it changes {names}"] if changed else [])])


def _of_repetition(
    trial: Trial, before: dict[str, Any], changed: list[str], seen: Seen, observed: str
) -> Cause:
    """Put back one circumstance after the other until the sample repeats."""
    if seen.clock and _repeats(trial, {}, clock=True):
        return _clock(sorted(seen.clock), observed)
    if seen.entropy and _repeats(trial, {}, entropy=True):
        return Cause(
            "the system's randomness",
            "likely os.urandom, which uuid4(), secrets and generators without a seed draw from",
            (observed, f"drawn by {_listed(seen.entropy)}", "with the same bytes it repeats"),
            SEEDED,
        )
    for names in [*([name] for name in changed), changed]:
        if names and _repeats(trial, {name: before[name] for name in names}):
            return _moving(trial, names, observed)
    everything = {name: before[name] for name in changed}
    if (seen.clock or seen.entropy) and _repeats(trial, everything, clock=True, entropy=True):
        return Cause(
            "several things together",
            "likely several of these together",
            (observed, *map(str, [*changed, *sorted(seen.clock), *sorted(seen.entropy)])),
            SEEDED,
        )
    if seen.threads:
        by_nodes = any(site.startswith("torchdata.nodes") for site in seen.threads)
        owner = "threads of torchdata.nodes" if by_nodes else "threads"
        return Cause(
            owner,
            f"likely {owner}, which draw from the global generators, or deliver, in an order that "
            "changes",
            (
                observed,
                f"threads are started by {_listed(seen.threads)}",
                "neither the clock, nor the system's randomness, nor anything found in the "
                "objects explains it",
            ),
            "one thread, in_order=True, and no random draws in the function that threads call",
        )
    return Cause(
        "native code",
        "likely code outside Python that does not repeat, such as a decoder, or a generator that "
        "is made anew, without a seed, for each sample",
        (
            observed,
            "no file, clock, system randomness, thread, generator, attribute or variable that "
            "could be found explains it",
        ),
        "decode the same bytes twice and compare; another decoder; give generators a seed",
    )


def _clock(sites: Sequence[str], observed: str) -> Cause:
    seen = (observed, f"the clock is read by {_listed(sites)}", "with a still clock it repeats")
    if any(site.startswith("webdataset") for site in sites):
        return Cause(
            "webdataset's .shuffle()",
            "likely webdataset's .shuffle(), which seeds its generator from the clock",
            seen,
            "TarShards with shuffle=True; or .shuffle(n, seed=...) or detshuffle",
        )
    return Cause("the clock", "likely the time of day in the sample", seen, "leave it out")


def _moving(trial: Trial, names: list[str], observed: str) -> Cause:
    variables = _variables(trial.objects())
    kinds = {variables[name].kind for name in names if name in variables}
    shown = ", ".join(names[:4])
    seen = (observed, f"making it changes {shown}", "with that put back it repeats")
    if "generator" in kinds:
        return Cause("a private generator", f"likely a private generator: {shown}", seen, SEEDED)
    if kinds == {"variable"}:
        return Cause(
            "a global variable",
            f"likely a variable outside the loader's objects: {shown}",
            seen,
            "compute it from the index of the sample, or leave it out",
        )
    return Cause(
        "an object that keeps state",
        f"likely a dataset or transform that changes with each call: {shown}",
        seen,
        "make it a function of its input, or give the dataset state_dict() and load_state_dict()",
    )


def _repeats(
    trial: Trial,
    put_back: dict[str, Any],
    *,
    clock: bool = False,
    entropy: bool = False,
    seeds: bool = True,
) -> bool:
    """Whether the sample comes out the same each time, with these values put back before."""
    first: Any = None
    for number in range(_REPEATS):
        objects = trial.objects()
        if number:
            trial.disturb()
        variables = _variables(objects) if put_back else {}
        for name, value in put_back.items():
            if name in variables:
                variables[name].write(value)
        seed_global_generators(_SEED if seeds else _SEED + number)
        circumstances: Any = contextlib.nullcontext()
        if clock or entropy:
            circumstances = watched(clock=clock, entropy=entropy)
        with circumstances:
            found = copied(trial.make(objects))
        if number and not same(first, found):
            return False
        first = found
    return True


def _variables(objects: dict[str, Any]) -> dict[str, Variable]:
    """Return what may change in the user's objects, the loader's own passes and workers aside."""
    return variables_of({name: each for name, each in objects.items() if name != "loader"})


def _made(loader: StatefulGPULoader[Any], request: Request) -> Any:
    """Return the batch of a request, made in this thread as the loader does."""
    plan = loader._engine.plan
    maker = maker_of(plan, policy_of(plan, {}), _allocate)
    found = maker(request, never_stopped)
    payload = found.payload if isinstance(found, Answer) else found
    if isinstance(payload, Failure):
        payload.reraise()
    return payload


def _single(request: Request, place: int) -> Request:
    index, start = request.index_list()[place], int(request.positions[place])
    return request._replace(indices=[index], start=start, listed=None)


def _allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return 0


def _listed(names: Any) -> str:
    return "; ".join(sorted(names)[:4])


def _unknown(observed: list[str]) -> Cause:
    return Cause(
        "unknown",
        "unknown: nothing that was tried explains the difference",
        tuple(observed),
        "compare the sample by hand; see what differs between the two places",
    )
