"""DevicePrefetch: finishes another pipeline's batches on a device, ahead of the user."""

from __future__ import annotations

import dataclasses
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from stateful_gpu_loader.decoders.rule import OUT_OF_MEMORY
from stateful_gpu_loader.engine.device.moving import move_rest, tensors_of
from stateful_gpu_loader.engine.device.stage import Stage, Task
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch
from stateful_gpu_loader.engine.pipeline import Answer, Failure, NoBatch, Pipeline, WorkersDied
from stateful_gpu_loader.records import WorkerStart


@dataclass(eq=False)
class _Turn:
    """An answer of the inner pipeline while the device finishes it."""

    request: Any
    answer: Any
    """The inner pipeline's answer; the finished answer in the end."""
    task: Task | None = None
    """The stage's task; None before it begins, or without one."""
    is_finished: bool = False
    has_room: bool = False
    """Whether it is retried after freeing memory."""

    @property
    def payload(self) -> Any:
        return self.answer.payload if isinstance(self.answer, Answer) else self.answer

    @property
    def waits(self) -> bool:
        """Whether its batch still has to be finished."""
        return not (self.is_finished or isinstance(self.payload, (Failure, NoBatch)))


@dataclass(frozen=True)
class _Raised:
    """An exception of the inner pipeline, raised in its turn."""

    error: Exception
    left_whole: bool
    """Whether the inner pipeline can continue."""


class DevicePrefetch:
    """Finishes the answers of ``inner`` in the stage, at most ``ahead`` of them at a time.

    Only the user's thread calls ``inner``, whose requests may run the user's own sampler. Each
    ``next()`` waits for the oldest answer and takes all others that are ready. When the device is
    out of memory, the batch is made again.

    Args:
        inner: pipeline that reads batches.
        stage: threads that finish them.
        finish: the last step in the stage; called with the result of ``begin``, with a batch of
            ``inner``, or with an :class:`Answer` about it.
        begin: the step before, called with a batch of ``inner``; None if there is only one step.
        ahead: largest number of undelivered batches in the stage.
        timeout: seconds that ``next()`` waits for the stage at most; 0 means no limit. The stage's
            first batch, which compiles kernels, has no limit.
        forks: whether ``inner`` starts processes, before the device is used.
    """

    def __init__(
        self,
        inner: Pipeline,
        *,
        stage: Stage,
        finish: Callable[[Any], Any],
        begin: Callable[[Any], Any] | None = None,
        ahead: int,
        timeout: float,
        forks: bool,
    ) -> None:
        self._inner = inner
        self._stage = stage
        self._finish = finish
        self._first = begin
        self._limit = ahead
        self._timeout = timeout
        self._forks = forks
        self._turns: deque[_Turn | _Raised] = deque()
        self._is_asking = False
        """Whether the inner pipeline is being asked, and nothing else was interrupted."""
        self._is_idle = False
        """Whether nothing was interrupted here, and the inner pipeline is not being asked."""

    @property
    def is_whole(self) -> bool:
        return self._is_idle or (self._is_asking and self._inner.is_whole)

    @property
    def is_collected(self) -> bool:
        return self._inner.is_collected

    @property
    def workers(self) -> list[Any]:
        """The worker processes of the inner pipeline."""
        return self._inner.workers

    def launch(self) -> None:
        self._inner.launch()

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
    ) -> None:
        self.abandon()
        place = self._stage.place
        if not self._forks:
            place.open()
        self._inner.start(requests, starts)
        if self._forks:
            place.open()

    def __next__(self) -> tuple[Any, Any]:
        turns = self._turns
        self._is_asking = self._is_idle = False
        self._fill(self._limit)
        turn = turns[0]
        if isinstance(turn, _Raised):
            turns.popleft()
            self._is_idle = turn.left_whole
            try:
                raise turn.error
            finally:
                del self, turn, turns  # the traceback refers to this frame
        if turn.waits:
            turn.answer = self._finished(turn)
            turn.is_finished = True
        # Make the next batches while the user works with this one.
        self._fill(self._limit + 1)
        turns.popleft()
        return turn.request, turn.answer

    def is_ready(self) -> bool:
        return bool(self._turns) or self._inner.is_ready()

    def depth(self) -> tuple[int, int]:
        under_way, ready = self._inner.depth()
        turns = [turn for turn in self._turns if isinstance(turn, _Turn)]
        done = sum(
            not turn.waits or (turn.task is not None and turn.task.is_done) for turn in turns
        )
        return under_way + ready + len(turns) - done, done

    def abandon(self) -> None:
        """Abandon all batches, finished or not, and release their memory on the device."""
        while self._turns:
            turn = self._turns.popleft()
            if isinstance(turn, _Turn) and turn.task is not None:
                turn.task.cancel()

    def close(self) -> None:
        self.abandon()
        self._inner.close()

    def _fill(self, limit: int) -> None:
        """Take the answers that are ready; wait for one only if there is nothing to deliver."""
        turns = self._turns
        for turn in turns:
            self._begin(turn)
        while len(turns) < limit and not (turns and isinstance(turns[-1], _Raised)):
            if turns and not self._inner.is_ready():
                return
            self._is_asking = True
            try:
                request, answer = next(self._inner)
            except Exception as error:
                if isinstance(error, StopIteration):
                    error.__traceback__ = None  # it refers to this frame
                turns.append(_Raised(error, left_whole=self._inner.is_whole))
            else:
                turns.append(_Turn(request, answer))
                self._begin(turns[-1])
            self._is_asking = False

    def _begin(self, turn: _Turn | _Raised) -> None:
        if isinstance(turn, _Turn) and turn.task is None and turn.waits:
            if self._first is None:
                turn.task = self._stage.submit(partial(self._finish, turn.payload))
            else:
                turn.task = self._stage.submit(partial(self._first, turn.payload), self._finish)

    def _finished(self, turn: _Turn) -> Any:
        """Return the finished answer of a turn."""
        stage = self._stage
        while True:
            self._begin(turn)
            task = turn.task
            self._is_idle = True
            is_done = task is not None and task.wait(self._timeout if stage.has_finished else 0)
            self._is_idle = False
            if task is None or not is_done:
                stage.abandon()
                raise WorkersDied(
                    "the device stage did not finish a batch within "
                    f"timeout={self._timeout} seconds",
                    turn.request,
                )
            try:
                result = move_rest(task.take(stage.place), stage.place.device)
                stage.has_finished = True
            except Exception as error:
                if is_out_of_memory(error):
                    self._make_room(turn, error)
                    continue
                result = Failure(error)
            return _with_payload(turn.answer, result)

    def _make_room(self, turn: _Turn, error: Exception) -> None:
        """Free the memory of the other batches, and torch's cache, for the oldest batch.

        Raises:
            torch.OutOfMemoryError: the memory was already freed.
        """
        in_flight = sum(isinstance(other, _Turn) for other in self._turns)
        place = self._stage.place
        full = out_of_memory(error, turn.payload, place.device, in_flight)
        turn.task = None
        for other in self._turns:
            if isinstance(other, _Turn) and other.task is not None:
                other.task.cancel()
                other.task = None
        self._stage.pause()  # running steps hold memory until they are done
        place.free_cached()
        turn.has_room = not turn.has_room
        if not turn.has_room:
            self._is_idle = True
            raise full from error


def _with_payload(answer: Any, result: Any) -> Any:
    """Put the finished batch into the inner pipeline's answer."""
    if not isinstance(answer, Answer):
        return result
    if not isinstance(result, Answer):
        return dataclasses.replace(answer, payload=result)
    num_samples = answer.num_samples if result.num_samples is None else result.num_samples
    return dataclasses.replace(
        answer,
        payload=result.payload,
        bad=(*answer.bad, *result.bad),
        num_samples=num_samples,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of torch or a decoder library reports that memory has run out.

    >>> is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    True
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


def out_of_memory(
    error: Exception, batch: Any, device: torch.device, in_flight: int
) -> torch.OutOfMemoryError:
    """Return an error with the sizes of the batch.

    Args:
        error: error of torch or of a library.
        batch: the batch to be finished: an EncodedBatch, or tensors.
        in_flight: number of the loader's batches on the device, including this batch.
    """
    if isinstance(batch, EncodedBatch):
        size = batch.describe()
    else:
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(batch))
        size = f"a batch of {_megabytes(num_bytes)}"
    reason = str(error).partition("\n")[0]
    # The traceback's frames hold partial results of the batch.
    traceback.clear_frames(error.__traceback__)
    return torch.OutOfMemoryError(
        f"{device} is out of memory while the loader made {size} there, {in_flight} in flight: "
        f"{reason} Remedy: use a smaller batch_size or prefetch_factor, or free memory of the "
        "model; nothing is lost: next() tries the same batch again, and the state is unchanged"
    )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
