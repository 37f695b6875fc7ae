"""Requests executed by worker processes, through an inner torch DataLoader.

The one file that touches private names of torch.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info
from torch.utils.data._utils import pin_memory as torch_pin_memory

from stateful_gpu_loader.engine.pipeline import Executor, Failure, never_stopped
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.records import Request


class ProcessPipeline:
    """Worker processes as torch starts them, fed with requests instead of indices.

    Args:
        executor: pickled to the workers; runs there.
        dataset: the user's dataset, which ``get_worker_info().dataset`` shows.
        base_seed: of the workers' own generators; the caller's are never drawn from (law 7).
        num_workers, prefetch_factor, timeout, worker_init_fn, multiprocessing_context,
            persistent_workers: as for DataLoader.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        dataset: Any,
        base_seed: int,
        num_workers: int,
        prefetch_factor: int,
        timeout: float,
        worker_init_fn: Callable[[int], None] | None,
        multiprocessing_context: Any,
        persistent_workers: bool,
    ) -> None:
        self._requests = _Requests()
        generator = torch.Generator()
        generator.manual_seed(base_seed)
        self._loader = _InnerLoader(
            _Answers(executor),
            batch_size=None,
            sampler=self._requests,
            collate_fn=_identity,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            timeout=timeout,
            worker_init_fn=functools.partial(_start_worker, dataset, worker_init_fn),
            multiprocessing_context=multiprocessing_context,
            persistent_workers=persistent_workers,
            generator=generator,
        )
        self._iterator: Any = None

    def start(self, requests: Iterator[Request]) -> None:
        self._requests.give(requests)
        self._iterator = iter(self._loader)

    def __next__(self) -> tuple[Request, Any]:
        ordinal, answer = next(self._iterator)
        if isinstance(answer, _RemoteFailure):
            answer = Failure(answer.rebuild())
        issued = self._requests.issued
        while issued[0].ordinal != ordinal:
            issued.popleft()  # its answer was an exception of the machinery, raised at its turn
        return issued.popleft(), answer

    def close(self) -> None:
        iterator, self._iterator, self._loader._iterator = self._iterator, None, None
        if iterator is not None:
            iterator._shutdown_workers()

    @property
    def workers(self) -> list[Any]:
        """The worker processes."""
        return [] if self._iterator is None else list(self._iterator._workers)


def pin(batch: Any) -> Any:
    """Copy the batch's tensors to page-locked memory, as DataLoader's ``pin_memory`` does."""
    return torch_pin_memory.pin_memory(batch)


def empty_shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor in shared memory, which a worker sends without a copy."""
    num_bytes = math.prod(shape) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(num_bytes, device="cpu")
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)


class _Requests(Sampler[Request]):
    """A sampler of requests that can be told anew for every pass."""

    def __init__(self) -> None:
        self.issued: deque[Request] = deque()
        self._requests: Iterator[Request] = iter(())

    def give(self, requests: Iterator[Request]) -> None:
        self.issued = deque()
        self._requests = requests

    def __iter__(self) -> Iterator[Request]:
        issued = self.issued
        for request in self._requests:
            issued.append(request)
            yield request


class _Answers(Dataset[Any]):
    """A dataset whose items are answers to requests."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __getitem__(self, request: Request) -> tuple[int, Any]:
        try:
            return request.ordinal, self._executor(request, never_stopped)
        except Exception as error:
            worker = get_worker_info()
            where = f"in DataLoader worker process {worker.id if worker else 0}"
            return request.ordinal, _RemoteFailure(error, where)


class _RemoteFailure:
    """An exception of a worker process, its traceback as text.

    This package's own errors travel whole; of others torch rebuilds the type around a message
    that holds the traceback, as its DataLoader does.
    """

    def __init__(self, error: Exception, where: str) -> None:
        self._own = error if isinstance(error, LoaderError) else None
        self._wrapper = ExceptionWrapper(where=where)

    def rebuild(self) -> BaseException:
        if self._own is not None:
            self._own.__cause__ = LoaderError(f"Original {self._wrapper.exc_msg}")
            return self._own
        try:
            self._wrapper.reraise()
        except BaseException as error:
            return error.with_traceback(None)
        raise LoaderError("torch did not reraise what it had wrapped")


class _InnerLoader(DataLoader[Any]):
    """Warns of nothing: the loader around it has already been checked."""

    def check_worker_number_rationality(self) -> None:
        pass


def _identity(answer: Any) -> Any:
    return answer


def _start_worker(
    dataset: Any, worker_init_fn: Callable[[int], None] | None, worker_id: int
) -> None:
    worker = get_worker_info()
    if worker is not None:
        object.__setattr__(worker, "dataset", dataset)  # WorkerInfo refuses assignment
    if worker_init_fn is not None:
        worker_init_fn(worker_id)
