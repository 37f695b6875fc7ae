"""ProcessCluster: worker processes of this machine, which may die at any time.

Only public names of multiprocessing are used here.
"""

from __future__ import annotations

import atexit
import errno
import multiprocessing
import os
import pickle
import select
import signal
import socket
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from time import perf_counter
from typing import Any

from stateful_gpu_loader.engine.pipeline import Failure, without_frames
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.torch_names import is_being_started, leave_to_the_parent
from stateful_gpu_loader.engine.workers.channel import (
    Channel,
    Message,
    Sender,
    close_all,
    pickled,
    received,
)
from stateful_gpu_loader.engine.workers.cluster import Answered, Event, Lost, Started
from stateful_gpu_loader.engine.workers.packing import remove_leftovers_of, unpack
from stateful_gpu_loader.engine.workers.segments import MappedSegments
from stateful_gpu_loader.engine.workers.worker_main import (
    HEAD,
    WorkerAdapter,
    WorkerMessage,
    replacement_for,
    run_worker,
)
from stateful_gpu_loader.engine.workers.worker_start import (
    BEING_STARTED,
    CREATED,
    FORK_AVOIDED,
    GUARD,
    NOT_FORKED,
    NUMBER,
    READY,
    StartReport,
    default_context,
    explain_failed_start,
    explained,
    loss_of_the_server,
)
from stateful_gpu_loader.errors import LoaderError

_SECONDS_TO_CLEAN_UP = 5.0
"""Seconds in which workers may end by themselves, and again after SIGTERM, as in torch."""
_SECONDS_TO_NOTICE = 1.0
"""Maximum seconds from a broken connection until its process's death is known."""


class ProcessCluster:
    """Starts processes with multiprocessing and exchanges messages with them; see Cluster.

    Args:
        adapter: each worker gets a copy.
        base_seed: seed of the workers' own generators; nothing is drawn from the caller's.
        tally: receives the workers' seconds, and shows whether a batch was delivered.

    Raises:
        LoaderError: this process is itself a starting worker that imports the main script.
    """

    queues = True
    _owner = -1
    """Process that started the workers."""

    def __init__(
        self,
        adapter: WorkerAdapter,
        *,
        num_workers: int,
        threads: int,
        base_seed: int,
        multiprocessing_context: Any,
        tally: Tally,
    ) -> None:
        if is_being_started():
            raise LoaderError(f"{BEING_STARTED}. Remedy: {GUARD}")
        self._adapter = adapter
        self._worker_arguments = num_workers, base_seed, threads
        self._tally = tally
        self._has_avoided_a_fork = False
        self._context: Any = self._chosen(multiprocessing_context)
        self._workers: dict[int, _Worker] = {}
        self._by_descriptor: dict[int, _Worker] = {}
        """Workers whose messages are received, by file descriptor."""
        self._starting: Channel | None = None
        """This end of the connection to a starting worker."""
        self._poll = select.poll()
        self._events: deque[Event] = deque()
        self._segments = MappedSegments()
        self._has_been_ready = False
        """Whether a worker was ready, so that others can start as well."""
        self._owner = os.getpid()
        _CLUSTERS.add(self)

    def __del__(self) -> None:
        # A signal handler's exception may drop the cluster unclosed.
        self.close()

    @property
    def processes(self) -> list[BaseProcess]:
        workers = sorted(self._workers.values(), key=lambda worker: worker.place)
        return [worker.process for worker in workers]

    def start(self, worker: int, place: int) -> None:
        """Start a process; see Cluster.

        Raises:
            WorkersDied: the fork server has ended.
            OSError: the system lacks resources for processes; the message has the remedy.
            Exception: the adapter cannot be pickled.
        """
        # create the directory here, so that it outlives killed workers
        get_temp_dir()
        adapter = self._adapter
        process = ours = theirs = None
        try:
            ours, theirs = map(Channel, socket.socketpair())
            self._starting = ours
            adapter.report = StartReport(theirs, worker)
            process = self._context.Process(
                target=run_worker, args=(adapter, place, *self._worker_arguments), daemon=True
            )
            _PROCESSES.add(process)
            process.start()
            self._add(_Worker(worker, place, process, ours))
        except BaseException as error:
            if process is not None and process.pid is not None:
                kill([process])
            if ours is not None:
                ours.close()
            failure = self._explained(error)
            try:
                if failure is error:
                    raise
                raise failure from error
            finally:
                del failure  # a cycle would keep the workers' files open
        finally:
            self._starting = None
            if theirs is not None:
                theirs.close()
            adapter.report = None
            adapter.close_sent_maker()

    def send(self, worker: int, number: int, message: WorkerMessage, *, first: int) -> None:
        target = self._workers[worker]
        if target.channel.fileno() not in self._by_descriptor:
            return  # the worker is lost, which is about to be reported
        message = message._replace(returned=self._segments.to_return(worker))
        try:
            content, files = pickled(message)
        except Exception as error:
            if _can_be_pickled(message):
                raise  # a signal handler has raised it
            content, files = pickled(replacement_for(message, error))
        target.sender.send(HEAD.pack(number, first), content, files)

    def wait(self, seconds: float) -> None:
        if not self._events:
            self._poll.poll(min(seconds, 3600) * 1000)

    def receive(self) -> Event | None:
        if not self._events:
            for descriptor, _ in self._poll.poll(0):
                # An earlier descriptor may have removed its worker.
                worker = self._by_descriptor.get(descriptor)
                if worker is not None:
                    self._look_at(worker, descriptor)
        return self._events.popleft() if self._events else None

    def kill(self, worker: int) -> None:
        lost = self._workers.pop(worker, None)
        if lost is not None:
            kill([lost.process])
            self._remove(lost)

    def resources(self) -> str:
        return f"{len(self._workers)} processes of this machine are running"

    def close(self) -> None:
        """End the workers, gracefully at first."""
        if _is_ending is None or os.getpid() != self._owner:
            return
        if _is_ending:  # multiprocessing ends its daemons itself
            self.close_connections()
            return
        workers, self._workers = self._workers, {}
        processes = [worker.process for worker in workers.values()]
        try:
            for worker in workers.values():
                worker.channel.end()
            with suppress(OSError):  # no descriptor is free to wait for them
                if not have_ended(processes, _SECONDS_TO_CLEAN_UP):
                    for process in processes:
                        if process.exitcode is None:
                            process.terminate()
                    have_ended(processes, _SECONDS_TO_CLEAN_UP)
        finally:
            kill(processes)
            for worker in workers.values():
                self._remove(worker)

    def close_connections(self) -> None:
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.close()
        if self._starting is not None:
            self._starting.close()

    def _explained(self, error: BaseException) -> BaseException:
        """Return the exception to raise for the error of a start."""
        if error is self._adapter.refusal:
            avoided = self._has_avoided_a_fork
            return LoaderError(NOT_FORKED.format(error)) if avoided else error
        if isinstance(error, (EOFError, ConnectionError)):
            return loss_of_the_server(has_delivered=self._can_start)
        return explained(error)

    def _chosen(self, wanted: Any) -> BaseContext:
        """Return the start method, without a harmful fork unless requested."""
        default = default_context() if wanted is None else None
        self._has_avoided_a_fork = default is not None
        if self._has_avoided_a_fork:
            warnings.warn(FORK_AVOIDED, RuntimeWarning, stacklevel=2)
        wanted = default or wanted
        context: BaseContext = (
            wanted if isinstance(wanted, BaseContext) else multiprocessing.get_context(wanted)
        )
        return context

    @property
    def _can_start(self) -> bool:
        return self._has_been_ready or self._tally.batches > 0

    def _add(self, worker: _Worker) -> None:
        self._workers[worker.number] = worker
        for one in (worker.channel, worker.exit):
            self._by_descriptor[one.fileno()] = worker
            self._poll.register(one, select.POLLIN)

    def _stop_listening(self, worker: _Worker) -> None:
        for watched in (worker.channel, worker.exit):
            with suppress(KeyError):  # an interrupt came before it was registered
                if self._by_descriptor.pop(watched.fileno(), None) is not None:
                    self._poll.unregister(watched)

    def _remove(self, worker: _Worker) -> None:
        self._stop_listening(worker)
        worker.close()
        self._segments.forget(worker.number)
        if worker.process.exitcode and worker.process.pid:
            remove_leftovers_of(worker.process.pid)

    def _look_at(self, worker: _Worker, descriptor: int) -> None:
        channel = worker.channel
        has_exited = descriptor != channel.fileno()
        for message in channel.receive(rest=has_exited):
            self._note(worker, message)
        if has_exited or channel.has_ended:
            self._lose(worker)

    def _note(self, worker: _Worker, message: Message) -> None:
        (number,), head = NUMBER.unpack_from(message.head), message.head[NUMBER.size :]
        if number >= 0:
            answer = self._answer(worker, head, message)
            if answer is not None:
                self._events.append(Answered(number, answer[0]))
            return
        worker.stage, _, worker.report = bytes(head).decode(errors="replace").partition(" ")
        if worker.stage == READY:
            self._has_been_ready = True
            self._events.append(Started(worker.number))

    def _answer(self, worker: _Worker, head: memoryview, message: Message) -> tuple[Any] | None:
        """Return the answer; None if its memory was lost with its worker."""
        started = perf_counter()
        try:
            if message.files is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            with received(message.files):
                packed = pickle.loads(head)._replace(content=message.body)
                self._segments.unmap(packed.given_up)
                answer = unpack(packed, self._segments.lend)
            self._tally.own.add(packed.seconds)
        except Exception as error:
            is_broken = isinstance(error, (OSError, EOFError, RuntimeError))
            if worker.exit.wait(_SECONDS_TO_NOTICE if is_broken else 0):
                return None
            answer = Failure(_explained(error))
        self._tally.own.seconds["transfer"] += perf_counter() - started
        return (answer,)

    def _lose(self, worker: _Worker) -> None:
        """Report a lost worker, which has ended or is killed."""
        self._stop_listening(worker)
        if not worker.exit.wait(_SECONDS_TO_NOTICE):
            kill([worker.process])
        reason, remedy = describe_exit(worker.process), None
        if worker.stage != READY:
            reason, remedy = explain_failed_start(
                reason,
                worker.process,
                stage=worker.stage,
                report=worker.report,
                is_forked=self._context.get_start_method() == "fork",
                can_start=self._can_start,
            )
        self._events.append(Lost(worker.number, reason, remedy))


class _Worker:
    def __init__(self, number: int, place: int, process: BaseProcess, channel: Channel) -> None:
        self.number = number
        self.place = place
        self.process = process
        self.channel = channel
        self.sender = Sender(channel)
        self.stage = CREATED
        """Last stage that its start reached."""
        self.report = ""
        """Text of its last report."""
        self.exit = Exit(process)
        """Becomes readable when the process has ended."""

    def close(self) -> None:
        self.channel.close()
        self.exit.close()


def _can_be_pickled(message: WorkerMessage) -> bool:
    try:
        close_all(pickled(message)[1])
    except Exception:
        return False
    return True


def interpreter_is_ending() -> bool:
    """Whether this process is exiting."""
    return _is_ending is not False


_is_ending: bool | None = False
"""Whether the exit has begun; None once modules are cleared."""


@atexit.register
def _note_exit() -> None:
    # Called before multiprocessing ends the workers, as it was imported earlier.
    global _is_ending
    _is_ending = True


_PROCESSES: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_CLUSTERS: weakref.WeakSet[ProcessCluster] = weakref.WeakSet()


def _leave_workers_to_the_parent() -> None:
    leave_to_the_parent(_PROCESSES)
    for cluster in _CLUSTERS:
        cluster.close_connections()  # so that only the parent holds the connections


os.register_at_fork(after_in_child=_leave_workers_to_the_parent)


def _explained(error: Exception) -> Exception:
    too_many = isinstance(error, OSError) and error.errno == errno.EMFILE
    if too_many or "ancdata" in str(error):
        full = RuntimeError(
            "Too many open files: a worker's batch cannot be received. Remedy: raise the limit "
            "with `ulimit -n`, or call "
            "torch.multiprocessing.set_sharing_strategy('file_system') at the start"
        )
        full.__cause__ = without_frames(error)
        return full
    return without_frames(error)


_SECONDS_TO_DIE = 5.0
"""Seconds that a process may take to end after SIGKILL."""
_SECONDS_TO_BE_REAPED = 1.0


class Exit:
    """A descriptor that becomes readable when a process has ended; ``close()`` it.

    A process's sentinel is a pipe, which the process's own children keep open.

    Raises:
        OSError: no descriptor is free.
    """

    _fd = -1

    def __init__(self, process: BaseProcess) -> None:
        try:
            self._fd = os.pidfd_open(process.pid or 0)
        except ProcessLookupError:
            self._fd = _readable()  # it has ended, and its parent has collected its exit code
        except (AttributeError, OSError):
            self._fd = os.dup(process.sentinel)

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the end; return whether it has come."""
        return bool(wait([self._fd], seconds))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def describe_exit(process: BaseProcess) -> str:
    """Describe how a process ended, in torch's words."""
    reap(process)
    code = process.exitcode
    if code is None or code >= 0:
        how = "" if code is None else f" with exit code {code}"
        return f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly{how}"
    hint = ""
    if -code == signal.SIGBUS:
        hint = (
            ". It is possible that dataloader's workers are out of shared memory. "
            "Please try to raise your shared memory limit"
        )
    name = signal.strsignal(-code) or f"signal {-code}"
    return f"DataLoader worker (pid {process.pid}) is killed by signal: {name}{hint}"


def have_ended(processes: Iterable[BaseProcess], seconds: float) -> bool:
    """Wait up to ``seconds`` for all processes to end; return whether they have."""
    exits: list[Exit] = []
    try:
        exits.extend(map(Exit, processes))
        deadline = time.monotonic() + seconds
        pending = {one.fileno() for one in exits}
        while pending:
            ended = wait(pending, max(0.0, deadline - time.monotonic()))
            if not ended:
                return False
            pending.difference_update(fd for fd in ended if isinstance(fd, int))
        return True
    finally:
        for one in exits:
            one.close()


def kill(processes: Iterable[BaseProcess]) -> None:
    processes = list(processes)
    for process in processes:
        if process.exitcode is None:
            process.kill()
    with suppress(OSError):  # no descriptor is free to wait for them
        have_ended(processes, _SECONDS_TO_DIE)
    for process in processes:
        reap(process)


def reap(process: BaseProcess) -> None:
    """Collect the exit code of a process that has ended."""
    if process.exitcode is None:  # a forkserver reports it a little later
        process.join(_SECONDS_TO_BE_REAPED)
    process.join(0)


def _readable() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader
