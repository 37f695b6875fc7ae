"""A copy of an engine that makes the next batch without changing the original."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from stateful_gpu_loader.datasets import as_source
from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.resume.places import put_sampler
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers.choice import runs_in_processes
from stateful_gpu_loader.errors import LoaderError


def twin_of(engine: Engine) -> Engine:
    """Return an engine whose next pass begins with the batch that comes next.

    Everything that making the batch changes is copied: the sampler, the passes, the record of bad
    samples and the workers. A dataset that is iterated or has a state is copied too, unless worker
    processes hold copies of it anyway.

    Raises:
        LoaderError: the sampler or the dataset cannot be copied.
    """
    twin, plan, passes = copy.copy(engine), engine.plan, engine.passes
    config = plan.config
    has_processes = runs_in_processes(plan)
    num_workers = 0
    if has_processes:
        # Saved worker states fit the same number of workers only; otherwise one worker is enough.
        num_workers = config.num_workers if plan.has_worker_states else 1
    changes: dict[str, Any] = {
        "num_workers": num_workers,
        "prefetch_factor": 1 if has_processes else None,
        "persistent_workers": False,
    }
    if passes.is_in_progress:
        # The pass under way must end rather than continue with the next epoch.
        changes["on_epoch_boundary"] = "empty"
    moved: dict[str, Any] = {"seed": engine.seed}
    if plan.memory is None:
        moved, changes["sampler"] = {}, copy.copy(config.sampler)
        twin.seed = copy.deepcopy(engine.seed)
    else:
        moved |= {"sampler": config.sampler, "batch_sampler": config.batch_sampler}
    moves_dataset = plan.has_worker_states and not has_processes
    if moves_dataset:
        moved["dataset"] = config.dataset
    # All are copied in one call, so that a generator that two of them share stays shared.
    shared = None if moves_dataset else config.dataset
    copies, memory = _copied((moved, plan.memory), shared)
    twin.seed = copies.pop("seed", twin.seed)
    config = replace(config, **changes, **copies)
    source, decoder = plan.source, plan.decoder
    if moves_dataset and source is not None:
        source = as_source(config.dataset)
    if plan.finishes_images and decoder is not None:
        decoder = plan.new_decoder(prefer=decoder.family)  # a decoder serves one thread
    twin.plan = replace(plan, config=config, memory=memory, source=source, decoder=decoder)
    twin.dataset_memory = engine.dataset_memory.twin(config.dataset)
    twin.tally = Tally()
    twin.workers = engine.workers.twin(twin.tally)
    twin.passes = passes.twin()
    if memory is not None and passes.is_in_progress:
        put_sampler(memory, twin.passes.address())
    return twin


def _copied(things: Any, shared: Any) -> Any:
    """Return deep copies that still refer to the same ``shared`` object."""
    try:
        return copy.deepcopy(things, {id(shared): shared})
    except Exception as error:
        names = ", ".join(type(thing).__name__ for thing in things[0].values())
        raise LoaderError(
            f"peek() makes the next batch with a copy of what that moves ({names}), and it cannot "
            f"be copied: {error!r}. Remedy: leave out of it what cannot be copied (open files, "
            "generators), give it __deepcopy__(), or take the batch with next() and keep it"
        ) from error
