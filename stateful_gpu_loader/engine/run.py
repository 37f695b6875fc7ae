"""Run: one pass of a loader, which the user iterates."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from stateful_gpu_loader.engine.device.device_prefetch import is_out_of_memory
from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.makers.bad_sample_policy import MAX_BAD_IN_A_ROW
from stateful_gpu_loader.engine.pipeline import (
    NOTHING,
    Answer,
    BeginFailure,
    Failure,
    NoBatch,
    Pipeline,
    Stopped,
    WorkersDied,
    described,
)
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.resume.places import restore_sampler
from stateful_gpu_loader.engine.schedules.schedule import Schedule
from stateful_gpu_loader.engine.stats import stage, waiting
from stateful_gpu_loader.engine.torch_names import pin
from stateful_gpu_loader.engine.workers.processes import interpreter_is_ending
from stateful_gpu_loader.engine.workers.worker_pool import WorkerPool
from stateful_gpu_loader.errors import BadSample, LoaderError, WorkerLost
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.epoch_progress import Address, Offer, Pass


class Run:
    """Delivers the batches of one pass and reports each batch to :class:`Passes`.

    Nothing happens before the first ``next()``. If one batch raises, the following ``next()``
    continues after it. Lost workers with states of the user's objects are replaced, and the pass
    continues from the delivered position. Several threads may share a run.
    """

    # The following attributes exist once the pass has begun.

    _plan: Plan
    """Plan of this pass."""
    _seed: int
    _schedule: Schedule
    _pipeline: Pipeline
    _pool: WorkerPool
    """Worker pool that provided the pipeline."""
    _losses: int
    """Number of worker losses since the last delivered batch."""
    _is_started: bool
    """Whether the pipeline was started for this pass."""
    _is_running: bool
    """Whether the pipeline was started and has raised no exception since."""
    _is_moving: bool
    """Whether a delivery has begun to advance the schedule."""
    _is_given_up: bool
    """Whether this pass ends early; the next pass continues it."""
    _ended_workers: set[int]
    """Workers whose iterators have ended."""
    _found_bad: tuple[FoundBad, ...]
    """Bad samples since the last batch, to be recorded with the next batch."""
    _bad_in_a_row: int
    """Number of consecutive bad samples since the last delivered batch."""
    _has_all: bool
    """Whether all requests of the pass were answered."""
    _has_met_end: bool
    """Whether the last batch of the epoch was delivered or failed."""
    _has_failed: bool
    """Whether a batch of this pass has raised an exception."""

    def __init__(self, engine: Engine, length: Callable[[], int]) -> None:
        self._engine = engine
        self._passes = engine.passes
        self._waiting = waiting("wait", engine.tally.own)
        self._length = length
        self._current: Pass | None = None
        """Deliveries of the pass; None before it begins and after it is left."""
        self._former_workers: list[Any] = []
        self._ended = False
        self._lock = threading.RLock()
        self._owner = os.getpid()

    def __reduce__(self) -> Any:
        raise NotImplementedError(
            "an iterator of a StatefulGPULoader cannot be pickled or copied: it has workers, "
            "and its loader counts its deliveries. Remedy: save loader.state_dict(); elsewhere "
            "build the loader again, call load_state_dict(), and iterate it"
        )

    def __iter__(self) -> Run:
        return self

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        if self._owner != os.getpid():
            raise _inherited(self._owner)
        # Only the lock itself knows its owner at any moment at which a handler runs.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise LoaderError(
                "next() was called inside next() of the same iterator, by a sampler or a signal "
                "handler. Remedy: let the handler set a flag, and call next() after the batch has "
                "come"
            )
        try:
            while True:
                offer = self._offered()
                try:
                    if not offer.is_failure:
                        # Taking the batch delivers it. An interrupt loses it only before the
                        # caller's assignment.
                        return offer.content.pop()
                    failure = offer.content.pop()
                    break
                except IndexError:
                    continue  # another thread has taken the batch
        except BaseException as error:
            # No variable may refer to the error, because its traceback refers to this frame.
            hidden = _hidden_by_lock(error)
            self._note_interrupt(hidden or error)
            _end_at_exit()
            if hidden is not None:
                raise hidden from None
            raise
        try:
            failure.reraise()
        finally:
            # The traceback must not keep the workers alive.
            del self, offer, failure

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit, workers have ended, and modules may be gone. A forked child leaves
        # the pass and its workers to the parent.
        if not _is_finalizing() and self._owner == os.getpid():
            self._stop()

    @property
    def _workers(self) -> list[Any]:
        """Worker processes; after the end of the pass, the processes that it had.

        The name is torch's, for programs that inspect a torch iterator.
        """
        pipeline: Pipeline | None = self.__dict__.get("_pipeline")
        return self._former_workers if pipeline is None else pipeline.workers

    def depth(self) -> tuple[int, int]:
        """Return the numbers of batches in progress and of batches that are ready.

        Any thread may call it at any time.
        """
        pipeline: Pipeline | None = self.__dict__.get("_pipeline")
        return (0, 0) if pipeline is None else pipeline.depth()

    def _offered(self) -> Offer:
        """Return the next batch, or the exception in its place, ready to be taken.

        A signal handler may raise at any moment. Work is marked before it begins (``is_running``
        and ``is_moving``), and repeated from the delivered position if it was interrupted.
        """
        with self._lock, self._waiting:
            while not self._ended:
                current = self._ready()
                offer = current.offered
                if offer is not None:
                    return offer
                if self._has_met_end:
                    self._end(current)
                    continue
                self._is_running = False
                try:
                    request, result = next(self._pipeline)
                except WorkersDied as loss:
                    self._recover(current, loss)
                except StopIteration:
                    self._end(current)
                except Stopped:
                    # An exception interrupted an earlier request, or the pipeline was collected.
                    _end_at_exit()
                else:
                    self._is_moving = True
                    has_started = self._arrived(current, request, result)
                    self._is_moving = False
                    self._is_running = has_started
        raise StopIteration

    def _ready(self) -> Pass:
        current = self._current
        if current is not None:
            is_superseded = current.generation != self._passes.generation
            if self._is_given_up or (is_superseded and not current.progress.delivered):
                self._leave(current)
                current = None
        if current is None:
            current = self._begin()
        elif self._is_running or current.offered is not None:
            return current
        elif self._is_started and not self._is_interrupted and self._pipeline.is_whole:
            self._is_running = True
            return current
        else:
            self._is_running = False
            self._pipeline.close()
            if self._is_interrupted:
                self._draw_again(current)
            self._pipeline = self._rebuilt(current)
        self._start(current)
        return current

    @property
    def _is_interrupted(self) -> bool:
        """Whether an exception interrupted a move of the schedule."""
        return self._is_moving or self._schedule.is_interrupted

    def _begin(self) -> Pass:
        """Begin a pass without starting its pipeline.

        It is called at the first ``next()``, and again after a load before the first delivery.
        """
        engine = self._engine
        plan, seed, current = engine.begin()
        self._plan, self._seed, self._pool = plan, seed, engine.workers
        pipeline, has_new_workers = engine.workers.take(
            plan, engine.policy(plan), seed, current.start
        )
        self._schedule = self._scheduled(
            current.start, resumed=current.resumed, has_new_workers=has_new_workers
        )
        self._losses = self._bad_in_a_row = 0
        self._is_started = self._is_running = self._is_moving = self._is_given_up = False
        self._has_all = self._has_met_end = self._has_failed = False
        self._ended_workers, self._found_bad = set(), ()
        engine.tally.begin(self)
        self._pipeline = pipeline
        self._current = current
        return current

    def _scheduled(self, place: Address, *, resumed: bool, has_new_workers: bool) -> Schedule:
        engine = self._engine  # a reference from the schedule to the run would keep workers alive
        return self._plan.schedule(
            place,
            resumed=resumed,
            seed=self._seed,
            has_new_workers=has_new_workers,
            promised_length=lambda: engine.promised_length,
        )

    def _rebuilt(self, current: Pass) -> Pipeline:
        """Return a pipeline with new workers that are not started."""
        engine, plan = self._engine, self._plan
        place = current.progress.place
        return self._pool.renew(plan, engine.policy(plan), self._seed, place)

    def _draw_again(self, current: Pass) -> None:
        """Build the schedule again from the delivered position, as in a resume."""
        resumed = current.resumed or self._has_answered(current)
        place = current.progress.place
        self._schedule = self._scheduled(place, resumed=resumed, has_new_workers=True)
        self._has_met_end = self._is_moving = False
        self._found_bad = ()
        self._ended_workers.clear()

    def _start(self, current: Pass) -> None:
        self._is_started = False
        try:
            self._pipeline.start(self._schedule.requests(), self._schedule.starts())
        except WorkersDied as loss:
            self._recover(current, loss)
        else:
            self._is_started = self._is_running = True

    def _arrived(self, current: Pass, request: Any, result: Any) -> bool:
        """Offer the pipeline's answer to the user, if it is a batch or an exception.

        Returns:
            Whether the worker has begun its pass; otherwise it can only be replaced.
        """
        answer = result if isinstance(result, Answer) else None
        payload = result if answer is None else answer.payload
        if isinstance(payload, BeginFailure):
            self._passes.offer_failure(current, payload, None)
            return False
        if answer is not None and answer.ended_at is not None:
            self._has_met_end = True  # later answers are ignored
        if isinstance(payload, Failure):
            self._fail(current, request, answer, payload)
            return True
        if isinstance(payload, NoBatch):
            self._note_no_batch(current, request, answer, payload)
            return True
        arrival = self._schedule.arrive(request, answer)
        if arrival is None:
            self._schedule.deliver(request, answer)
            return True
        if self._plan.has_last_step:
            try:
                payload = self._finished(current, payload, position=arrival.position)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self._fail(current, request, answer, Failure(error))
                return True
        bad = () if answer is None else answer.bad
        if bad:
            self._note_bad(bad)
        self._engine.tally.deliver(request, answer)
        place = self._schedule.deliver(request, answer)
        self._losses = self._bad_in_a_row = 0
        self._passes.offer(
            current,
            payload,
            place,
            request=arrival.request,
            bad=bad,
            found_bad=self._found_bad,
        )
        if self._found_bad:
            self._note_recorded(current)
        return True

    def _finished(self, current: Pass, batch: Any, *, position: int) -> Any:
        """Transform and pin a batch in the user's thread.

        Args:
            position: position of its first sample.
        """
        plan, own = self._plan, self._engine.tally.own
        if plan.batch_transform is not None:
            with stage("augment", own):
                batch = plan.batch_transform(
                    batch,
                    device=self._pool.device,
                    seed=self._seed,
                    epoch=current.start.epoch,
                    position=position,
                )
        if plan.config.pin_memory and plan.device is None and torch.accelerator.is_available():
            with stage("transfer", own):
                batch = pin(batch)
        return batch

    def _fail(self, current: Pass, request: Any, answer: Answer | None, failure: Failure) -> None:
        self._has_failed = True
        place = self._schedule.fail(request, answer)
        self._losses = self._bad_in_a_row = 0
        if place is None:
            self._passes.offer_failure(current, failure, None)
            return
        self._passes.offer_failure(current, failure, place, found_bad=self._found_bad)
        self._note_recorded(current)

    def _has_answered(self, current: Pass) -> bool:
        """Whether the pass has delivered a batch or raised an exception."""
        return self._has_failed or current.progress.delivered

    def _note_interrupt(self, error: BaseException) -> None:
        """Rewind the pass if it has delivered nothing and has moved the user's objects."""
        with self._lock:
            current = self._current
            if current is None or self._has_answered(current) or self._is_given_up:
                return
            # An offered batch has no exception, so a handler raised this one.
            is_made = current.offered is not None
            is_interrupt = self._is_interrupted or is_made or not isinstance(error, Exception)
            has_moved = self._plan.memory is not None or current.start.user is not None
            if is_interrupt and has_moved:
                self._go_back(current)

    def _note_bad(self, bad_samples: tuple[FoundBad, ...]) -> None:
        """Note bad samples once each: a replaced worker meets the same samples again."""
        self._found_bad += tuple(bad for bad in bad_samples if bad not in self._found_bad)

    def _count_bad(self, current: Pass, bad: tuple[FoundBad, ...]) -> None:
        """Stop a function that signals its end by an exception other than StopIteration.

        Raises:
            BadSample: too many consecutive samples could not be used.
        """
        self._bad_in_a_row += len(bad)
        if not self._plan.is_endless or self._bad_in_a_row < MAX_BAD_IN_A_ROW:
            return
        count, self._bad_in_a_row = self._bad_in_a_row, 0
        self._passes.note_bad(current, self._found_bad)
        self._note_recorded(current)
        last = bad[-1]
        raise BadSample(
            str(last.index),
            index=last.position,
            position=last.position,
            epoch=last.epoch,
            reason=f"{last.reason}; the {count - 1} samples before it could not be used either. If "
            "it is the end of the epoch, raise StopIteration there, or declare length=",
        )

    def _note_no_batch(
        self, current: Pass, request: Any, answer: Answer | None, payload: NoBatch
    ) -> None:
        if answer is not None and payload is not NOTHING and answer.bad:
            self._note_bad(answer.bad)
            self._count_bad(current, answer.bad)
        elif answer is not None and payload is NOTHING and answer.worker not in self._ended_workers:
            self._note_bad(answer.bad)
            self._ended_workers.add(answer.worker)
        self._schedule.deliver(request, answer)

    def _note_recorded(self, current: Pass) -> None:
        """Note that the bad samples are recorded with the offered batch."""
        if current.generation == self._passes.generation:
            self._engine.tally.bad_samples += len(self._found_bad)
        self._found_bad = ()

    def _end(self, current: Pass) -> None:
        has_answered = self._has_answered(current)
        if current.progress.following is None:
            self._is_moving = True
            self._passes.end(current, self._schedule.end(), found_bad=self._found_bad)
            self._note_recorded(current)
            self._engine.tally.epochs += has_answered
        self._has_all = self._is_running = True
        is_empty_rest = current.resumed and not has_answered and current.start.position > 0
        skips_empty_rest = self._plan.config.on_epoch_boundary == "next_epoch"
        self._former_workers = self._workers
        self._ended = not (is_empty_rest and skips_empty_rest)
        self._leave(current)

    def _recover(self, current: Pass, loss: WorkersDied) -> None:
        """Replace lost workers, as if the pass were resumed from the delivered position."""
        _end_at_exit()
        self._losses += 1
        self._pipeline.close()
        place = current.progress.place
        where = f"epoch {place.epoch}, position {place.position}"
        at = "" if loss.oldest is None else f", {described(loss.oldest)}"
        limit = self._plan.config.max_worker_restarts
        if self._losses > limit or loss.remedy is not None:
            self._is_given_up = True
            self._leave(current)
            details, remedy = f" at {where}{at}", loss.remedy
            if remedy is None:
                details = (
                    f". Workers were lost {self._losses} times at {where}{at}, and "
                    f"max_worker_restarts is {limit}"
                )
                remedy = "find out what ends them (memory, a crash in native code)"
            raise WorkerLost(
                f"{loss.message}{details}. Remedy: {remedy}; the state is intact, and a new "
                "iterator continues from it"
            ) from loss
        warnings.warn(
            f"{loss.message}. The workers are replaced and the stream goes on at {where}{at} "
            f"(restart {self._losses} of at most {limit} without a batch between them)",
            RuntimeWarning,
            stacklevel=4,
        )
        self._engine.tally.worker_restarts += 1
        self._pipeline = self._rebuilt(current)
        self._start(current)

    def _go_back(self, current: Pass) -> None:
        """Let the next pass continue where this pass stopped, unless another pass has begun."""
        generation = self._passes.generation
        self._passes.go_back(current)
        if self._plan.memory is not None and self._passes.generation != generation:
            restore_sampler(self._plan.memory, current.progress.place)

    def _leave(self, current: Pass) -> None:
        """Leave the pass, so that another pass may begin.

        Persistent workers are kept, unless they are outdated, dismissed, or ahead.
        """
        if self._is_given_up:
            self._go_back(current)
        current.is_left = True
        engine, plan, pipeline = self._engine, self._plan, self._pipeline
        is_current = current.generation == self._passes.generation
        is_reusable = (
            self._has_all and is_current
            if plan.has_worker_states
            else plan.decoder is engine.plan.decoder
        )
        is_whole = self._is_running or pipeline.is_whole
        keeps = engine.plan.config.persistent_workers and is_reusable and is_whole
        keeps = keeps and self._pool is engine.workers
        self._current = None
        del self._pipeline, self._schedule, self._plan, self._pool
        if keeps:
            engine.workers.keep(pipeline)
        else:
            pipeline.close()

    def _stop(self) -> None:
        current = getattr(self, "_current", None)
        if current is not None:
            self._leave(current)


def _inherited(owner: int) -> LoaderError:
    return LoaderError(
        f"this iterator belongs to process {owner}; process {os.getpid()} was forked from it, and "
        "would take batches that the parent waits for. Remedy: iterate the loader itself here, "
        "which begins the next pass with workers of this process; to continue from the parent's "
        "position, call loader.load_state_dict(loader.state_dict()) before"
    )


def _end_at_exit() -> None:
    """End a daemon thread quietly at the interpreter's exit."""
    if interpreter_is_ending() and threading.current_thread().daemon:
        raise SystemExit


_LOCK_ERRORS = frozenset({"release unlocked lock", "cannot release un-acquired lock"})
"""Messages of the errors that releasing an unheld lock raises."""


def _hidden_by_lock(error: BaseException) -> BaseException | None:
    """Return the signal handler's exception that a lock error has replaced, if any.

    If the handler raises inside ``Condition.wait``, leaving the lock raises RuntimeError.
    """
    is_lock_error = type(error) is RuntimeError and str(error) in _LOCK_ERRORS
    return error.__context__ if is_lock_error else None
