"""Worker processes, started as torch's DataLoader does.

This is the only file that uses private names of torch and of multiprocessing's queues.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import multiprocessing
import os
import pickle
import pickletools
import random
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.util import get_temp_dir
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.autograd.profiler as torch_profiler
from torch._C import (
    _is_any_autocast_enabled,
    _len_torch_function_stack,
    _remove_worker_pids,
)
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe
from torch.utils.data._utils import pin_memory as torch_pin_memory
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _sharding_worker_init_fn

from stateful_gpu_loader.engine.pipeline import Failure, Maker, WorkersDied
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers.answer_pipe import AnswerPipe, WritersLost
from stateful_gpu_loader.engine.workers.packing import pack, remove_what_was_left_by, unpack
from stateful_gpu_loader.engine.workers.remote_failure import without_frames
from stateful_gpu_loader.engine.workers.segments import MappedSegments, WorkerSegments
from stateful_gpu_loader.engine.workers.start_method import (
    FORK_AVOIDED,
    NOT_FORKED,
    default_context,
)
from stateful_gpu_loader.engine.workers.worker_main import (
    SeedOfWorkers,
    WorkerAdapter,
    WorkerMessage,
    in_place_of,
)
from stateful_gpu_loader.engine.workers.worker_monitor import (
    WorkerMonitor,
    describe_exit,
    have_ended,
    kill,
)
from stateful_gpu_loader.engine.workers.worker_start import (
    BEING_STARTED,
    GUARD,
    StartReports,
    explained,
    loss,
    loss_of_the_server,
)
from stateful_gpu_loader.engine.world import size_and_rank
from stateful_gpu_loader.errors import LoaderError

_SECONDS_TO_CLEAN_UP = 5.0
"""Seconds that torch gives its workers to end by themselves, and again after SIGTERM."""
_PIPE_BYTES = 1 << 20
_SECONDS_TO_NOTICE = 1.0
"""Longest time in seconds until the death that broke a connection is known."""


class InnerLoader(DataLoader[Any]):
    """Holds the arguments with which :class:`TorchWorkers` starts torch's workers.

    Args:
        maker: pickled to the workers, where it runs.
        dataset: the user's dataset, which ``get_worker_info().dataset`` returns.
        base_seed: seed of the workers' own generators; nothing is drawn from the caller's.
        initialise: called in each worker with its number before anything else.
        num_workers, prefetch_factor, timeout, multiprocessing_context, persistent_workers,
            in_order: as in DataLoader.
        segments: where the maker allocates its batches; None if it allocates none.
        times: where the workers' seconds are noted, and the delivered batches counted.
        seeds: what ``get_worker_info().seed`` depends on; None leaves it as torch makes it.
    """

    def __init__(
        self,
        maker: Maker,
        *,
        dataset: Any,
        base_seed: int,
        num_workers: int,
        prefetch_factor: int,
        timeout: float,
        initialise: Callable[[int], None] | None,
        multiprocessing_context: Any,
        persistent_workers: bool,
        in_order: bool = True,
        segments: WorkerSegments | None = None,
        times: Tally | None = None,
        seeds: SeedOfWorkers | None = None,
    ) -> None:
        self.times = times or Tally()
        self.context = _Context(multiprocessing_context)
        segments = segments or WorkerSegments(keep=prefetch_factor)
        self.side = WorkerAdapter(
            maker,
            dataset,
            initialise,
            pack=functools.partial(pack, segments=segments),
            segments=segments,
            seeds=seeds,
        )
        generator = torch.Generator()
        generator.manual_seed(base_seed)
        super().__init__(
            self.side,
            batch_size=None,
            sampler=(),
            collate_fn=_identity,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            timeout=timeout,
            worker_init_fn=self.side.start,
            multiprocessing_context=self.context,
            persistent_workers=persistent_workers,
            in_order=in_order,
            generator=generator,
        )

    def launch(self) -> TorchWorkers:
        """Start the workers.

        Raises:
            WorkersDied: one of them died before all were started.
            LoaderError: this process imports the main script to become a worker itself.
            OSError: the system lacks what processes need; the message has the remedy.
        """
        if is_being_started():
            raise LoaderError(f"{BEING_STARTED}. Remedy: {GUARD}")
        self.context.renew()
        reports: StartReports | None = None
        try:
            # create the directory for all of them here, so that it outlives killed workers
            get_temp_dir()
            reports = StartReports()
            self.side.report = reports.workers_side
            torch_workers = TorchWorkers(self, reports)
            reports.close_writer()
            return torch_workers
        except BaseException as error:
            failure = self._explained(error, reports)
            if reports is not None:
                reports.close()
            try:
                if failure is error:
                    raise
                raise failure from error
            finally:
                del failure  # a cycle would keep open what the workers were given
        finally:
            self.side.report = None
            self.side.forget_what_was_sent()
            self.context.forget()

    def _explained(self, error: BaseException, reports: StartReports | None) -> BaseException:
        """End the processes that were started; return what to raise for the error of a start."""
        started, has_delivered = self.context.started(), self.times.batches > 0
        died = [worker for worker in started if worker.exitcode is not None]
        texts = ". ".join(map(describe_exit, died))
        kill(started)
        if died and reports is not None:
            is_forked = self.context.is_forked
            return loss(
                texts,
                died,
                reports,
                oldest=None,
                is_forked=is_forked,
                has_delivered=has_delivered,
            )
        if error is self.side.refusal:
            avoided = self.context.has_avoided_a_fork
            return LoaderError(NOT_FORKED.format(error)) if avoided else error
        if isinstance(error, (EOFError, ConnectionError)):
            return loss_of_the_server(has_delivered=has_delivered)
        return explained(error)

    def check_worker_number_rationality(self) -> None:
        """Do nothing: the outer loader was checked."""


class TorchWorkers(_MultiProcessingDataLoaderIter):
    """Torch's own iterator, of which only the start and the end are used.

    The rest of it would wait for locks that a dead worker holds, raise a worker's death in the
    user's own code, and lose batches.
    """

    _ended = True  # until there are workers to end

    def __init__(self, loader: InnerLoader, reports: StartReports) -> None:
        self._owner = os.getpid()
        self._watch: WorkerMonitor | None = None
        self._ended = False
        self._times: Tally = loader.times
        self._segments = MappedSegments()
        self._reports = reports
        self._is_forked = loader.context.is_forked
        try:
            super().__init__(loader)
        except BaseException:
            with contextlib.suppress(ValueError):  # torch does not watch them yet, or any more
                _remove_worker_pids(id(self))
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        # Otherwise torch's SIGCHLD handler would raise in whatever code the main thread runs.
        _remove_worker_pids(id(self))
        self._worker_pids_set = False
        # The pipe then ends when all workers are dead.
        self._results = _untyped(self._worker_result_queue)
        self._results._writer.close()
        with contextlib.suppress(OSError, AttributeError):
            # A message of 1 MB arrives in a few reads instead of 17; Linux only.
            fcntl.fcntl(self._results._reader.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._watch = WorkerMonitor(self._workers, loader.timeout)
        self._pipe = AnswerPipe(self._results._reader, self._watch)

    def _try_put_index(self) -> None:
        """Do nothing: torch would fill its queues here, but requests are sent by :meth:`send`."""

    @property
    def has_ended(self) -> bool:
        """Whether the workers were ended, as some programs do with ``_shutdown_workers``."""
        return self._ended

    @property
    def monitor(self) -> WorkerMonitor:
        """The monitor of the workers."""
        if self._watch is None:
            raise RuntimeError("the workers have not been started")
        return self._watch

    @property
    def workers(self) -> list[BaseProcess]:
        """The worker processes."""
        return list(self._workers)

    def send(self, worker: int, number: int, message: WorkerMessage) -> None:
        """Send a message to a worker, to be answered with this number."""
        message = message._replace(returned=self._segments.to_return(worker))
        self._index_queues[worker].put((number, message))

    def has_answer(self) -> bool:
        """Whether an answer has begun to arrive."""
        return self._pipe.has_begun()

    def loss(self, oldest: Any) -> WorkersDied:
        """Return the loss of these workers.

        Args:
            oldest: the oldest unanswered request, if it is known.
        """
        return loss(
            self.monitor.verdict(),
            self.monitor.died,
            self._reports,
            oldest=oldest,
            is_forked=self._is_forked,
            has_delivered=self._times.batches > 0,
        )

    def wait(self) -> None:
        """Wait for an answer to begin to arrive; an interrupt here loses nothing.

        Raises:
            WritersLost: no answer will come.
        """
        self._pipe.wait()

    def receive(self) -> tuple[int, Any]:
        """Return the number of a request and its answer.

        Raises:
            WritersLost: a worker died while sending it.
        """
        message = self._pipe.receive()
        self._results._sem.release()  # as Queue.get does
        started = perf_counter()
        try:
            number, packed = pickle.loads(message)
            self._segments.unmap(packed.given_up)
            answer = unpack(packed, self._segments.lend)
            self._times.own.add(packed.seconds)
            self._times.own.seconds["transfer"] += perf_counter() - started
            return number, answer
        except Exception as error:
            broken = isinstance(error, (OSError, EOFError, RuntimeError))
            if self.monitor.has_lost(_SECONDS_TO_NOTICE if broken else 0):
                raise WritersLost from error
            return _first_integer(message), Failure(_explained(error))

    def end(self) -> None:
        """End the workers, gracefully unless one of them is lost."""
        self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        """End the workers; torch calls this at the end of a pass and in ``__del__``."""
        if _is_ending is not False:
            return  # multiprocessing ends its daemons itself
        if self._ended or os.getpid() != self._owner:
            return  # a forked child has the object, but not the workers
        started = getattr(self, "_workers", [])
        try:
            if self._watch is not None:
                is_healthy = not self._watch.has_lost()
                self._watch.stop()
                if is_healthy and not self._workers_done_event.is_set():
                    self._dismiss()
        finally:
            kill(started)
            for worker in started:
                if worker.exitcode:
                    remove_what_was_left_by(worker.pid)
            for queue in getattr(self, "_index_queues", []):
                if not queue._reader.closed:
                    _close(queue)
            if self._watch is not None:
                self._results._reader.close()
        # Not before: after an interrupt, torch's ``__del__`` does all of it again.
        self._ended = True

    def _dismiss(self) -> None:
        """Let the workers run the user's cleanup; wait for no lock that a dead one may hold."""
        self._workers_done_event.set()
        for queue in self._index_queues:
            queue.put(None)
        if have_ended(self._workers, _SECONDS_TO_CLEAN_UP):
            return
        for worker in self._workers:
            if worker.exitcode is None:
                worker.terminate()
        have_ended(self._workers, _SECONDS_TO_CLEAN_UP)


def interpreter_is_ending() -> bool:
    """Whether this process is at its exit, where multiprocessing ends all workers."""
    return _is_ending is not False


_is_ending: bool | None = False
"""Whether the exit has begun; None once the interpreter has cleared its modules."""


@atexit.register
def _note_exit() -> None:
    # Called before multiprocessing ends the workers, because its module was imported earlier.
    global _is_ending
    _is_ending = True


def _identity(answer: Any) -> Any:
    return answer


def _untyped(queue: Any) -> Any:
    """Return a queue without its type, to use its private attributes."""
    return queue


def is_profiling() -> bool:
    """Return whether one of torch's profilers is running in this process."""
    return torch_profiler._is_profiler_enabled


def is_being_started() -> bool:
    """Return whether this process was started by multiprocessing, and imports the main script."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def has_modes() -> bool:
    """Return whether autocast or a mode of torch's functions, as a default device is, is on.

    It takes a twentieth of the time of ``torch.get_default_device()``.
    """
    return _is_any_autocast_enabled() or _len_torch_function_stack() > 0


def pin(batch: Any) -> Any:
    """Copy the batch's tensors to page-locked memory, as DataLoader's ``pin_memory`` does."""
    return torch_pin_memory.pin_memory(batch)


def become_worker(worker: int, dataset: Any, *, num_workers: int, base_seed: int) -> None:
    """Make this process a worker of a loader, as torch's own loop of a worker process begins.

    Args:
        worker: its number, which ``get_worker_info()`` gives.
        dataset: what ``get_worker_info().dataset`` gives.
    """
    seed = base_seed + worker
    torch.set_num_threads(1)
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_worker._generate_state(base_seed, worker))
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=worker, num_workers=num_workers, seed=seed, dataset=dataset
    )


class _Queue(Queue):  # type: ignore[type-arg]
    """A queue to or from a worker that reports what cannot be pickled in place of the message.

    Python's queue prints the error in its feeder thread, and the reader waits for ever. The thread
    has a name of the package here, by which it is known to draw from no generator.
    """

    def _start_thread(self) -> None:
        queue: Any = super()
        queue._start_thread()
        _untyped(self)._thread.name = "stateful_gpu_loader feeder"

    def _on_queue_feeder_error(self, error: Exception, message: Any) -> None:
        if not isinstance(message, tuple):
            return  # it was pickled, but its reader has ended
        number, content = message
        queue = _untyped(self)
        queue._sem.acquire(False)
        with queue._notempty:
            # Put first: what a worker begins with must come before its next request.
            queue._buffer.appendleft((number, in_place_of(content, error)))


class _Context(BaseContext):
    """The parts of multiprocessing that torch uses, made so that they survive a dead worker."""

    def __init__(self, wanted: Any) -> None:
        self._wanted = wanted
        self.has_avoided_a_fork = False
        self._real: Any = None
        self._processes: list[Any] = []

    def renew(self) -> None:
        """Prepare to start other workers."""
        default = default_context() if self._wanted is None else None
        self.has_avoided_a_fork = default is not None
        if self.has_avoided_a_fork:
            warnings.warn(FORK_AVOIDED, RuntimeWarning, stacklevel=2)
        wanted = default or self._wanted
        is_context = isinstance(wanted, BaseContext)
        self._real = wanted if is_context else multiprocessing.get_context(wanted)
        self._processes = []

    @property
    def is_forked(self) -> bool:
        """Whether the processes are forked from this one."""
        return bool(self._real.get_start_method() == "fork")

    def started(self) -> list[BaseProcess]:
        """Return the processes that were started."""
        return [process for process in self._processes if process.pid is not None]

    def forget(self) -> None:
        """Forget the processes; the caller now holds them."""
        self._processes = []

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: N802
        return _Queue(maxsize, ctx=self._real.get_context())

    def Event(self) -> Any:  # noqa: N802
        return _Flag(self._real.Semaphore(0))

    def Process(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        process = self._real.Process(*args, **kwargs)
        _PROCESSES.add(process)
        self._processes.append(process)
        return process


_PROCESSES: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


def _leave_workers_to_the_parent() -> None:
    """Let a forked child forget its parent's workers, which multiprocessing would end at exit."""
    children: Any = multiprocessing.process
    children._children.difference_update(_PROCESSES)


os.register_at_fork(after_in_child=_leave_workers_to_the_parent)


class _Flag:
    """An Event without a lock, as a dead worker can hold that of multiprocessing's Event."""

    def __init__(self, semaphore: Any) -> None:
        self._semaphore = semaphore

    def set(self) -> None:
        self._semaphore.release()

    def is_set(self) -> bool:
        return bool(self._semaphore.get_value())


def with_sharding(
    dataset: Any, worker_init_fn: Callable[[int], None] | None
) -> Callable[[int], None] | None:
    """Return what initialises a worker; torch's data pipes are divided among the workers."""
    if not isinstance(dataset, (IterDataPipe, MapDataPipe)):
        return worker_init_fn
    return functools.partial(_sharding_worker_init_fn, worker_init_fn, *size_and_rank())


def _first_integer(pickled: memoryview) -> int:
    """Return the number at the head of a message whose rest cannot be unpickled."""
    for code, argument, _ in pickletools.genops(bytes(pickled)):
        if isinstance(argument, int) and code.name not in ("PROTO", "FRAME"):
            return argument
    raise pickle.UnpicklingError("a worker's answer has no number")


def _explained(error: Exception) -> Exception:
    too_many = isinstance(error, OSError) and error.errno == 24  # EMFILE
    if too_many or "ancdata" in str(error):
        full = RuntimeError(
            "Too many open files: a batch of a worker cannot be received. Remedy: raise the limit "
            "with `ulimit -n`, or call "
            "torch.multiprocessing.set_sharing_strategy('file_system') at the start"
        )
        full.__cause__ = without_frames(error)
        return full
    return without_frames(error)


def _close(queue: Any) -> None:
    """Let the queue's feeder thread end, and close the pipe.

    The thread may be sending a request to a dead worker, so the pipe is read here until it is done.
    """
    with os.fdopen(os.dup(queue._reader.fileno()), "rb", buffering=0) as reader:
        queue.cancel_join_thread()
        queue.close()
        # After an interrupt during the thread's start, close() does not end the thread.
        queue._finalize_close(queue._buffer, queue._notempty)
        feeder = queue._thread
        deadline = time.monotonic() + _SECONDS_TO_CLEAN_UP
        while feeder not in (None, threading.current_thread()) and feeder.is_alive():
            feeder.join(0.001)
            if wait([reader.fileno()], 0):
                reader.read(1 << 16)
            if time.monotonic() > deadline:
                return  # it is pickling, in the user's own code
    queue._reader.close()
    queue._writer.close()
