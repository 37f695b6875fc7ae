"""Main function of worker processes: takes messages and answers them with the maker."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import struct
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd, ForkingPickler
from queue import SimpleQueue
from time import perf_counter
from typing import IO, Any, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from stateful_gpu_loader.engine.isolation import limit_this_thread
from stateful_gpu_loader.engine.pipeline import (
    Answer,
    Maker,
    RemoteFailure,
    Stopped,
    execute,
    never_stopped,
)
from stateful_gpu_loader.engine.stats import PRESENT, StageTimes
from stateful_gpu_loader.engine.torch_names import become_worker, stack_into
from stateful_gpu_loader.engine.workers.channel import (
    Channel,
    Message,
    Sender,
    pickled,
    received,
    spawning_process,
)
from stateful_gpu_loader.engine.workers.packing import pack, unpack
from stateful_gpu_loader.engine.workers.segments import Returned, WorkerSegments
from stateful_gpu_loader.engine.workers.worker_start import (
    INITIALISING,
    NUMBER,
    READY,
    REFUSED,
    UNPICKLING,
    StartReport,
)
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds
from stateful_gpu_loader.records import WorkerStart


class SeedOfWorkers(NamedTuple):
    """Inputs of ``get_worker_info().seed`` other than the worker's number."""

    seed: int
    epoch: int
    rank: int

    def base(self) -> int:
        """Return the seed of worker 0, to which torch adds the worker's number.

        >>> 0 <= SeedOfWorkers(seed=1, epoch=0, rank=0).base() < 2**63
        True
        """
        place = np.array([self.rank])
        (seed,) = sample_seeds(self.seed, self.epoch, place, Stream.WORKERS)
        return seed >> 1


class WorkerMessage(NamedTuple):
    """A message to a worker."""

    request: Any
    """A request, or the :class:`RemoteFailure` of sending it."""
    start: WorkerStart | None
    """State to begin a pass with before the request, or None."""
    returned: tuple[Returned, ...] = ()
    """Segments of the worker that the main process no longer refers to."""


class WorkerAdapter:
    """Answers messages in a worker.

    Args:
        dataset: the user's dataset, which ``get_worker_info().dataset`` returns.
        initialise: called with the worker's number before anything else; its exception fails every
            request.
        segments: memory for the maker's batches, if they are sent in shared memory.
        seeds: seeds of the first pass; each later pass has its own.
    """

    def __init__(
        self,
        maker: Maker,
        dataset: Any,
        initialise: Callable[[int], None] | None,
        pack: Callable[[Any], Any] = pack,
        segments: WorkerSegments | None = None,
        seeds: SeedOfWorkers | None = None,
    ) -> None:
        self._seeds = seeds
        self._maker = maker
        self._segments = segments
        self._dataset = dataset
        self._initialise = initialise
        self._pack = pack
        self._worker = 0
        self._unusable: RemoteFailure | None = None
        self._start: WorkerStart | None = None
        self._times = StageTimes()
        self._epoch: int | None = None
        self._idle_since = 0.0
        self._sent: IO[bytes] | None = None
        self.report: StartReport | None = None
        """Receiver of the reports on the start of a worker process."""
        self.refusal: Exception | None = None
        """Exception that prevented sending the adapter to the workers."""

    @property
    def dataset(self) -> Any:
        return self._dataset

    def start(self, worker: int) -> None:
        """Initialise the worker, given its number among the loader's workers."""
        self._worker = worker
        if self._segments is not None and self.report is not None:
            self._segments.worker = self.report.worker
            stack_into(self._segments.empty)
        PRESENT.work = self._times.own
        main = parent_process()
        if main is not None:
            end_with(main)
        self._set_seed()
        try:
            if self._initialise is not None:
                self._report_stage(INITIALISING)
                self._initialise(worker)
        except KeyboardInterrupt:
            self._report_stage(READY)  # it could start
            raise
        except Exception as error:
            self._unusable = self._failed(error)
        self._report_stage(READY)

    def _report_stage(self, stage: str) -> None:
        if self.report is not None:
            self.report.send(stage)

    def for_this_thread(self) -> WorkerAdapter:
        """Return an adapter to the same maker, for another thread of a started worker."""
        other = WorkerAdapter(
            self._maker, self._dataset, None, self._pack, self._segments, self._seeds
        )
        other._worker, other._unusable = self._worker, self._unusable
        PRESENT.work = other._times.own
        return other

    def answer_to(self, sent: Message, check: Callable[[], None]) -> Any:
        """Return the serialized answer to a serialized message; None if it is no longer needed.

        Args:
            check: raises :class:`Stopped` once the answer is no longer needed.
        """
        try:
            if sent.files is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            with received(sent.files):
                message: WorkerMessage = pickle.loads(sent.body)
        except Exception as error:
            return self._pack(self._failed(error))
        if self._segments is not None:
            self._segments.take_back(message.returned)
        try:
            check()
            return self.answer(message, check)
        except Stopped:
            with suppress(Stopped):
                check()
                raise
            return None

    def answer(self, message: WorkerMessage, check: Callable[[], None]) -> Any:
        """Return the serialized answer to a message.

        Args:
            check: called between samples; may raise :class:`Stopped`.
        """
        self._note_idle(message)
        answer = self._answer(message, check)
        started = perf_counter()
        try:
            packed = self._pack(answer)
        except Exception as error:
            packed = self._pack(_unsent(answer, error))
        self._idle_since = perf_counter()
        self._times.own.seconds["transfer"] += self._idle_since - started
        return packed._replace(seconds=self._times.take())

    def _note_idle(self, message: WorkerMessage) -> None:
        """Note the time since the last answer; between passes no answer is due."""
        epoch = getattr(message.request, "epoch", self._epoch)
        if self._idle_since and message.start is None and epoch == self._epoch:
            self._times.own.seconds["idle"] += perf_counter() - self._idle_since
        self._epoch = epoch

    def _answer(self, message: WorkerMessage, check: Callable[[], None]) -> Any:
        request, start, _ = message
        if start is not None:
            self._start = start
        if isinstance(request, RemoteFailure):
            return request
        if self._unusable is not None:
            return self._unusable
        self._enter_pass(request if start is None else start)
        if self._start is not None:
            stateful: Any = self._maker
            try:
                stateful.begin(self._start)
            except Exception as error:
                return self._failed(error).at_the_beginning()
            self._start = None
        return execute(self._maker, request, check, self._failed, worker=self._worker)

    def _enter_pass(self, message: Any) -> None:
        """Give the worker the seed of the pass that a request or a start belongs to."""
        seeds, epoch = self._seeds, getattr(message, "epoch", None)
        if seeds is not None and epoch is not None and epoch != seeds.epoch:
            self._seeds = seeds._replace(seed=message.seed, epoch=epoch)
            self._set_seed()

    def _set_seed(self) -> None:
        if self._seeds is not None:
            object.__setattr__(get_worker_info(), "seed", self._seeds.base() + self._worker)

    def _failed(self, error: Exception) -> RemoteFailure:
        return RemoteFailure(error, f"in DataLoader worker process {self._worker}")

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (
            *(self._maker, self._dataset, self._initialise, self._pack, self._segments),
            self._seeds,
        )
        if spawning_process() is None:
            return WorkerAdapter, parts
        # Sent in a file, not in multiprocessing's message that starts the worker: writing that to a
        # pipe would wait for ever if the worker died.
        self.close_sent_maker()
        self._sent = _anonymous_file()
        try:
            ForkingPickler(self._sent, pickle.HIGHEST_PROTOCOL).dump(parts)
        except Exception as error:
            self.refusal = error
            raise
        self._sent.flush()
        return _read_worker_side, (DupFd(self._sent.fileno()), self.report)

    def close_sent_maker(self) -> None:
        """Close the file with the maker, after the workers have read it."""
        sent, self._sent, self.refusal = self._sent, None, None
        if sent is not None:
            sent.close()


def run_worker(
    adapter: WorkerAdapter, worker: int, num_workers: int, base_seed: int, threads: int
) -> None:
    """Answer the messages of the main process until it ends the connection.

    Args:
        adapter: answers them; its report has the connection.
        worker: number of this worker among the loader's workers.
        num_workers, base_seed: as in torch's worker processes.
        threads: number of threads that answer them; 1 is this thread.
    """
    report = adapter.report
    if report is None:
        raise RuntimeError("the adapter of a worker process has no connection")
    become_worker(worker, adapter.dataset, num_workers=num_workers, base_seed=base_seed)
    with suppress(KeyboardInterrupt, EOFError):  # the main process is interrupted as well
        adapter.start(worker)
        answers = _Answers(report.channel)
        if threads == 1:
            _answer_all(adapter, report.channel, answers)
        else:
            _ThreadGroup(adapter, answers, threads).answer_all(report.channel)


def _answer_all(adapter: WorkerAdapter, channel: Channel, answers: _Answers) -> None:
    newest, requests = 0, deque[tuple[int, int, Message]]()
    while True:
        arrived = channel.receive() if requests else [channel.next(), *channel.receive()]
        if channel.has_ended:
            return  # the remaining answers are not needed
        for message in arrived:
            number, first = HEAD.unpack(message.head)
            newest = max(newest, first)
            requests.append((number, first, message))
        number, first, message = requests.popleft()
        check = never_stopped if first == newest else _stop
        answers.send(number, adapter.answer_to(message, check))


def _stop() -> None:
    raise Stopped


class _ThreadGroup:
    """Threads of a worker process, which share its requests."""

    def __init__(self, adapter: WorkerAdapter, answers: _Answers, threads: int) -> None:
        self._requests: SimpleQueue[tuple[int, int, Message] | None] = SimpleQueue()
        self._newest = 0
        """Number of the first request of the pass; -1 when no answers are needed any more."""
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(adapter, answers),
                name=f"stateful_gpu_loader worker {number}",
                daemon=True,
            )
            for number in range(threads)
        ]

    def answer_all(self, channel: Channel) -> None:
        """Let the threads answer messages.

        Raises:
            EOFError: the main process has ended the connection, and the threads have ended.
        """
        for thread in self._threads:
            thread.start()
        try:
            while True:
                message = channel.next()
                number, first = HEAD.unpack(message.head)
                self._newest = max(self._newest, first)
                self._requests.put((number, first, message))
        finally:
            self._newest = -1
            for _ in self._threads:
                self._requests.put(None)
            for thread in self._threads:
                thread.join()

    def _work(self, adapter: WorkerAdapter, answers: _Answers) -> None:
        limit_this_thread()
        adapter = adapter.for_this_thread()
        try:
            while (taken := self._requests.get()) is not None:
                number, first, message = taken
                answers.send(number, adapter.answer_to(message, partial(self._check, first)))
                del message, taken  # they hold memory while the thread waits
        except BaseException:
            # End the process, so the requests are not lost.
            traceback.print_exc()
            os._exit(1)

    def _check(self, first: int) -> None:
        if first != self._newest:
            raise Stopped


HEAD = struct.Struct("=qq")
"""Head of a message to a worker: the numbers of its request and of the pass's first request."""


class _Answers:
    def __init__(self, channel: Channel) -> None:
        self._sender = Sender(channel)

    def send(self, number: int, answer: Any) -> None:
        if answer is None:
            return
        try:
            head, files = pickled(answer._replace(content=b""))
        except Exception as error:
            answer = replacement_for(answer, error)
            try:
                head, files = pickled(answer._replace(content=b""))
            except OSError:  # no file is free for its segments either
                answer = answer._replace(segments=())
                head, files = pickled(answer._replace(content=b""))
        content = b"" if answer.is_apart else answer.content
        self._sender.send(NUMBER.pack(number) + head, content, files)


def end_with(main: BaseProcess) -> None:
    """End this process as soon as process ``main`` has ended or runs another program.

    A forked child of ``main`` keeps the sentinel open, so the pid is watched as well.
    """
    watched: list[Any] = [main.sentinel]
    try:
        watched.append(os.pidfd_open(main.pid or 0))
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        pass  # another system, or an old kernel

    def watch() -> None:
        wait(watched)
        os._exit(1)

    threading.Thread(target=watch, name="stateful_gpu_loader parent", daemon=True).start()


def replacement_for(content: Any, error: Exception) -> Any:
    """Return the replacement for a message or packed answer that could not be sent."""
    if isinstance(content, WorkerMessage):
        where = f"when {content.request!r:.300} was sent to a worker process. {_REMEDY}"
        return content._replace(request=RemoteFailure(error, where))
    packed = pack(_unsent(unpack(content._replace(is_apart=False)), error))
    # The main process returns the unsent batch's segments.
    return packed._replace(segments=content.segments, given_up=content.given_up)


def _unsent(answer: Any, error: Exception) -> Any:
    """Return an answer with an exception in place of its batch."""
    payload = answer.payload if isinstance(answer, Answer) else answer
    worker = get_worker_info()
    where = (
        f"when a batch of type {type(payload).__name__} was sent from DataLoader worker process "
        f"{worker.id if worker else 0}. {_REMEDY}"
    )
    failure = RemoteFailure(error, where)
    return dataclasses.replace(answer, payload=failure) if isinstance(answer, Answer) else failure


_REMEDY = "Remedy: make it of objects that pickle supports, such as tensors"


def _anonymous_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("stateful_gpu_loader"), "w+b")
    return tempfile.TemporaryFile()


def _read_worker_side(duplicate: Any, report: StartReport) -> WorkerAdapter:
    report.send(UNPICKLING)
    try:
        with open(duplicate.detach(), "rb") as file:
            file.seek(0)
            adapter = WorkerAdapter(*pickle.load(file))
    except Exception as error:
        report.send(REFUSED, f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None  # the main process raises it
    adapter.report = report
    return adapter
