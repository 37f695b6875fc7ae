"""DevicePipeline: what another pipeline reads is finished on a device, ahead of the user."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stateful_gpu_loader.engine.device.memory import is_out_of_memory, out_of_memory
from stateful_gpu_loader.engine.device.moving import move_rest
from stateful_gpu_loader.engine.device.stage import Stage, Task
from stateful_gpu_loader.engine.pipeline import NOTHING, Answer, Failure, Pipeline, WorkersDied
from stateful_gpu_loader.records import WorkerStart

_NOT_FINISHED = (StopIteration, WorkersDied)


@dataclass(eq=False)
class _Turn:
    """One answer on its way over the device."""

    request: Any
    answer: Any
    """Of the inner pipeline."""
    task: Task | None
    """None where there is nothing to finish, or where it has to be begun again."""

    @property
    def payload(self) -> Any:
        return self.answer.payload if isinstance(self.answer, Answer) else self.answer

    @property
    def has_batch(self) -> bool:
        return self.payload is not NOTHING and not isinstance(self.payload, Failure)


class DevicePipeline:
    """Answers of ``inner``, each finished by the stage; at most ``ahead`` of them at a time.

    The user's thread alone asks ``inner``, whose requests may run the user's own sampler: at each
    ``next()`` it takes over as many answers as are ready, and waits for the oldest. An exception
    keeps its turn. Memory that has run out on the device loses nothing: the batch is tried again
    at the next ``next()``.

    Args:
        inner: reads batches.
        stage: finishes them.
        finish: a batch of ``inner`` to a batch on the device, or an :class:`Answer` about it; runs
            in the stage's thread.
        ahead: batches given to the stage that the user has not seen, at most.
        timeout: seconds that ``next()`` waits for the stage at most; 0 waits for ever.
        forks: whether ``inner`` starts processes: then nothing touches the device before it has.
    """

    def __init__(
        self,
        inner: Pipeline,
        *,
        stage: Stage,
        finish: Callable[[Any], Any],
        ahead: int,
        timeout: float,
        forks: bool,
    ) -> None:
        self._inner = inner
        self._stage = stage
        self._finish = finish
        self._ahead = self._limit = ahead
        self._timeout = timeout
        self._forks = forks
        self._turns: deque[_Turn | Exception] = deque()

    @property
    def workers(self) -> list[Any]:
        """The worker processes of the inner pipeline."""
        return list(getattr(self._inner, "workers", []))

    def launch(self) -> None:
        self._inner.launch()

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        self._abandon()
        self._limit = 1 if one_at_a_time else self._ahead
        place = self._stage.place
        if not self._forks:
            place.open()
        self._inner.start(requests, starts, one_at_a_time=one_at_a_time)
        if self._forks:
            place.open()

    def __next__(self) -> tuple[Any, Any]:
        self._fill()
        turn = self._turns[0]
        if isinstance(turn, Exception):
            self._turns.popleft()
            try:
                raise turn
            finally:
                del self, turn  # the traceback holds this frame
        answer = self._finished(turn)
        self._turns.popleft()
        return turn.request, answer

    def is_ready(self) -> bool:
        return bool(self._turns) or self._inner.is_ready()

    def close(self) -> None:
        self._abandon()
        self._inner.close()

    def _fill(self) -> None:
        """Take over what is ready; wait for it only if there is nothing else to wait for."""
        turns = self._turns
        for turn in turns:
            self._begin(turn)
        while len(turns) < self._limit and not (turns and isinstance(turns[-1], Exception)):
            if turns and not self._inner.is_ready():
                return
            try:
                request, answer = next(self._inner)
            except Exception as error:
                turns.append(error)
            else:
                turns.append(_Turn(request, answer, None))
                self._begin(turns[-1])

    def _begin(self, turn: _Turn | Exception) -> None:
        if isinstance(turn, _Turn) and turn.task is None and turn.has_batch:
            payload, finish = turn.payload, self._finish
            turn.task = self._stage.submit(lambda: finish(payload))

    def _finished(self, turn: _Turn) -> Any:
        task = turn.task
        if task is None:
            return turn.answer
        if not task.wait(self._timeout):
            raise WorkersDied(
                f"the device stage did not finish a batch within timeout={self._timeout} seconds",
                turn.request,
            )
        try:
            result = move_rest(task.take(self._stage.place), self._stage.place.device)
        except Exception as error:
            if is_out_of_memory(error):
                turn.task = None
                in_flight = sum(isinstance(other, _Turn) for other in self._turns)
                device = self._stage.place.device
                raise out_of_memory(error, turn.payload, device, in_flight) from error
            result = Failure(error)
        return _with_payload(turn.answer, result)

    def _abandon(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if isinstance(turn, _Turn) and turn.task is not None:
                turn.task.cancel()


def _with_payload(answer: Any, result: Any) -> Any:
    """What the inner pipeline said, about the finished batch."""
    if not isinstance(answer, Answer):
        return result
    if not isinstance(result, Answer):
        return dataclasses.replace(answer, payload=result)
    return dataclasses.replace(answer, payload=result.payload, bad=(*answer.bad, *result.bad))
