"""A copy of a loader, to make the batch that comes next without moving anything of the original."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from stateful_gpu_loader.datasets import as_source
from stateful_gpu_loader.engine.attributes import workers_of
from stateful_gpu_loader.engine.choice import Work, runs_in_processes
from stateful_gpu_loader.engine.plan import Parts
from stateful_gpu_loader.engine.resume.places import put_sampler
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.randomness.seed import SettledSeed
from stateful_gpu_loader.state.bad_samples import BadSamples
from stateful_gpu_loader.state.epoch_progress import Passes


def twin_of(
    loader: Any, *, parts: Parts, work: Work, passes: Passes, seed: SettledSeed, bad: BadSamples
) -> Any:
    """A loader whose first batch is the one that comes next.

    What making that batch would move is its own: the sampler, the passes, the record of bad
    samples, the workers; and a dataset that is iterated or has a state, unless worker processes
    have theirs anyhow.

    Raises:
        LoaderError: the sampler or the dataset cannot be copied.
    """
    twin = copy.copy(loader)
    own = vars(twin)
    has_processes = runs_in_processes(work, workers_of(loader))
    own["num_workers"] = 0
    if has_processes:
        # States are those of as many workers; otherwise one makes the batch as well as several.
        own["num_workers"] = loader.num_workers if work.has_worker_states else 1
    own["prefetch_factor"] = 1 if has_processes else None
    own["persistent_workers"] = False
    own["_crew"] = loader._crew.twin()
    own["_bad_samples"] = copy.deepcopy(bad)
    own["_passes"] = twins = passes.twin()
    if passes.is_under_way:
        own["on_epoch_boundary"] = "empty"  # the pass under way ends, and goes over into no other
    moved = {"_seed": seed, "sampler": loader.sampler, "batch_sampler": loader.batch_sampler}
    if parts.memory is None:
        own |= {"_seed": copy.deepcopy(seed), "sampler": copy.copy(loader.sampler)}
        moved = {}
    moves_dataset = work.has_worker_states and not has_processes
    if moves_dataset:
        moved["dataset"] = loader.dataset
    memory = parts.memory
    # In one go, so that a generator that two of them share is one in the copies, too.
    copies, memory = _copied((moved, memory), None if moves_dataset else loader.dataset)
    own |= copies
    own["_dataset_memory"] = loader._dataset_memory.twin(twin.dataset)
    has_source = moves_dataset and parts.source is not None
    own["_parts"] = replace(
        parts, memory=memory, source=as_source(twin.dataset) if has_source else parts.source
    )
    if parts.finishes_images:
        own["_image_decoder"] = parts.make_decoder(loader, prefer=loader._image_decoder.family)
    if memory is not None and passes.is_under_way:
        put_sampler(memory, twins.address())
    return twin


def _copied(things: Any, shared: Any) -> Any:
    """Deep copies, in which what is shared stays the same object."""
    try:
        return copy.deepcopy(things, {id(shared): shared})
    except Exception as error:
        names = ", ".join(type(thing).__name__ for thing in things[0].values())
        raise LoaderError(
            f"peek() makes the next batch with a copy of what that moves ({names}), and it cannot "
            f"be copied: {error!r}. Remedy: leave out of it what cannot be copied (open files, "
            "generators), give it __deepcopy__(), or take the batch with next() and keep it"
        ) from error
