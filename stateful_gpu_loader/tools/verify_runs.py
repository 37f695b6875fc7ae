"""Runs of a loader that are compared: undisturbed, resumed, and resumed in a new process."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import multiprocessing
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader.engine.loader_conversion import sampler_of
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.samplers import is_map
from stateful_gpu_loader.tools.differences import copied
from stateful_gpu_loader.tools.verify_report import VerifyError

MakeLoader = Callable[[], DataLoader[Any]]

HASH_SEED = "PYTHONHASHSEED"


@dataclass(frozen=True)
class Step:
    """Result of one ``next()``."""

    batch: Any
    """A copy of the batch; None at the end of an epoch."""
    is_end: bool = False
    """Whether the epoch ended, and no batch was returned."""
    request: Request | None = None
    """Addresses of the samples in the batch, if the loader has any."""


def fresh(make_loader: MakeLoader, **changes: Any) -> Any:
    """Return a new loader with a state; a plain DataLoader becomes a StatefulGPULoader.

    Args:
        make_loader: the user's function.
        changes: constructor arguments that replace the user's.

    Raises:
        VerifyError: the function raises, or does not return a loader.
    """
    try:
        loader = make_loader()
    except LoaderError as error:
        raise VerifyError(str(error)) from error
    except Exception as error:
        raise VerifyError(f"the loader cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(loader, DataLoader):
        raise VerifyError(
            f"the function returned {type(loader).__name__}. Remedy: return a StatefulGPULoader, a "
            "StatefulDataLoader or a DataLoader, and a new one in each call"
        )
    if isinstance(loader, StatefulDataLoader) and not changes:
        return loader
    kind: Any = type(loader) if isinstance(loader, StatefulDataLoader) else StatefulGPULoader
    return kind(**_arguments_of(loader, kind) | changes)


def workers(num_workers: int, worker_type: str | None = None) -> dict[str, Any]:
    """Return the constructor arguments for this number and kind of workers."""
    changes: dict[str, Any] = {"num_workers": num_workers}
    if worker_type is not None:
        changes["worker_type"] = worker_type
    if worker_type != "process":
        changes |= {"multiprocessing_context": None}
    if num_workers == 0:
        changes |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
    return changes


def run(
    loader: Any, num_batches: int, after: Callable[[Any, int], None] | None = None
) -> Iterator[Step]:
    """Yield ``num_batches`` batches, over as many epochs as needed, and the ends of the epochs.

    Two epochs without a batch end the run.

    Args:
        after: called after each batch with the iterator and the number of batches so far.
    """
    number, has_stood_still = 0, False
    while number < num_batches:
        before, batches = number, iter(loader)
        for batch in batches:
            number += 1
            yield Step(copied(batch), request=_request_of(loader))
            if after is not None:
                after(batches, number)
            if number == num_batches:
                return
        yield Step(None, is_end=True)
        if number == before and has_stood_still:
            return
        has_stood_still = number == before


def _request_of(loader: Any) -> Request | None:
    """Return the request of the last delivered batch, if it has sample addresses."""
    last = loader._engine.passes.last if isinstance(loader, StatefulGPULoader) else None
    return last.request if last is not None and isinstance(last.request, Request) else None


def saved(state: Any) -> tuple[str, bytes]:
    """Return the format and content of a file with the state: JSON if it can hold the state.

    Raises:
        Exception: neither JSON nor ``torch.save`` can write the state and read it back.

    >>> saved({"epoch": 1})[0], saved({1: "JSON would make the key a text"})[0]
    ('JSON', 'torch.save')
    """
    with contextlib.suppress(TypeError, ValueError):
        text = json.dumps(state)
        if json.loads(text) == state:
            return "JSON", text.encode()
    file = io.BytesIO()
    torch.save(state, file)
    restored(("torch.save", file.getvalue()))
    return "torch.save", file.getvalue()


def restored(file: tuple[str, bytes]) -> Any:
    """Read a state that :func:`saved` wrote."""
    name, content = file
    if name == "JSON":
        return json.loads(content)
    return torch.load(io.BytesIO(content), weights_only=True)


def resumed(
    make_loader: MakeLoader,
    file: tuple[str, bytes],
    num_batches: int,
    after: Callable[[Any, int], None] | None = None,
    **changes: Any,
) -> list[Step]:
    """Return the steps of a new loader after it has loaded a state."""
    loader = fresh(make_loader, **changes)
    loader.load_state_dict(restored(file))
    return list(run(loader, num_batches, after))


def resumed_elsewhere(
    make_loader: MakeLoader, file: tuple[str, bytes], num_batches: int, hash_seed: int
) -> list[Step]:
    """Call :func:`resumed` in a new process, where sets have another order.

    Args:
        hash_seed: PYTHONHASHSEED of the process, unless that variable is set already.
    """
    before = os.environ.get(HASH_SEED)
    os.environ[HASH_SEED] = str(hash_seed) if before in (None, "random") else str(before)
    try:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            answer = process.submit(_resumed_elsewhere, make_loader, file, num_batches).result()
    finally:
        if before is None:
            del os.environ[HASH_SEED]
        else:
            os.environ[HASH_SEED] = before
    steps: list[Step] = pickle.loads(answer)
    return steps


def _resumed_elsewhere(make_loader: MakeLoader, file: tuple[str, bytes], num_batches: int) -> bytes:
    warnings.simplefilter("ignore")  # the undisturbed run has already shown them
    # Pickled, because shared memory ends with this process.
    return pickle.dumps(resumed(make_loader, file, num_batches))


def _arguments_of(loader: Any, kind: Any) -> dict[str, Any]:
    """Return a loader's arguments from attributes of the same names."""
    names = [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    arguments = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    sampler = arguments.pop("sampler", None)
    batch_sampler = arguments.pop("batch_sampler", None)
    if not is_map(loader.dataset):
        return arguments
    if loader.batch_size is None and batch_sampler is not None:
        for name in ("batch_size", "shuffle", "drop_last"):
            arguments.pop(name, None)
        return arguments | {"batch_sampler": batch_sampler}
    if isinstance(loader, StatefulGPULoader):
        if not (loader.shuffle or type(sampler) is SequentialSampler):
            arguments |= {"sampler": sampler, "shuffle": None}
        return arguments
    return arguments | sampler_of(loader)
