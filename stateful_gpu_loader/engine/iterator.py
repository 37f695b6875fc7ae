"""Run: the iterator over one pass that a loader returns."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from stateful_gpu_loader.engine.device.memory import is_out_of_memory
from stateful_gpu_loader.engine.engine import ActivePass, Engine
from stateful_gpu_loader.engine.makers.bad_sample_policy import MAX_BAD_IN_A_ROW
from stateful_gpu_loader.engine.pipeline import (
    NOTHING,
    Answer,
    BeginFailure,
    Failure,
    NoBatch,
    Stopped,
    WorkersDied,
    described,
)
from stateful_gpu_loader.engine.stats import waiting
from stateful_gpu_loader.engine.workers.processes import interpreter_is_ending
from stateful_gpu_loader.errors import BadSample, LoaderError, WorkerLost
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.epoch_progress import Offer


class Run:
    """Delivers the batches of one pass and reports each to :class:`Passes`.

    Nothing happens before the first ``next()``. An exception in one batch does not affect the
    others: the following ``next()`` continues after it. Lost workers that kept states of the user's
    objects are replaced, and work continues from the delivered position. Several threads may share
    a run.
    """

    def __init__(self, engine: Engine, length: Callable[[], int]) -> None:
        self._engine = engine
        self._passes = engine.passes
        self._length = length
        self._active: ActivePass | None = None
        self._former_workers: list[Any] = []
        self._ended = False
        self._lock = threading.RLock()
        self._owner = os.getpid()

    def __reduce__(self) -> Any:
        raise TypeError(
            "an iterator of a StatefulGPULoader can be neither pickled nor copied: it has workers, "
            "and its loader counts what it delivers. Remedy: keep loader.state_dict(), which says "
            "where it stands; elsewhere build the loader again, load_state_dict(), and iterate it"
        )

    def __iter__(self) -> Run:
        return self

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        if self._owner != os.getpid():
            raise _inherited(self._owner)
        while True:
            offer = self._offered()
            try:
                if not offer.is_failure:
                    # Taking the batch delivers it: between this call and the caller's own
                    # assignment an interrupt loses it, and nowhere else.
                    return offer.content.pop()
                failure = offer.content.pop()
            except IndexError:
                continue  # another thread that shares this iterator has taken it
            try:
                failure.reraise()
            finally:
                # The traceback must not keep the workers alive.
                del self, offer, failure

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit threads and processes have ended already, and modules that closing a
        # pipeline needs may be gone.
        # A forked child leaves the pass, and its workers, to the parent.
        if not _is_finalizing() and self._owner == os.getpid():
            self._stop()

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, or those it had once it has ended.

        The name is torch's, for programs that inspect a torch iterator.
        """
        if self._active is None:
            return self._former_workers
        return self._active.pipeline.workers

    def _offered(self) -> Offer:
        """Return the next batch, or an exception in its place, ready to be taken.

        A signal handler may raise at any moment. What was half done is then made again from the
        delivered place, so it is marked before it is done: ``is_running`` and ``is_moving``.
        """
        with self._lock:
            try:
                with waiting("wait", self._engine.tally.own):
                    while not self._ended:
                        active = self._ready()
                        offer = active.current.offered
                        if offer is not None:
                            return offer
                        if active.has_met_end:
                            self._end(active)
                            continue
                        active.is_running = False
                        try:
                            request, found = next(active.pipeline)
                        except WorkersDied as loss:
                            self._recover(active, loss)
                        except StopIteration:
                            self._end(active)
                        except Stopped:
                            continue  # an exception has torn an earlier request: made again
                        else:
                            active.is_moving = True
                            has_started = self._arrived(active, request, found)
                            active.is_moving = False
                            active.is_running = has_started
            except BaseException as error:
                # No variable may refer to the error itself: its traceback refers to this frame.
                hidden = _hidden_by_lock(error)
                self._note_interrupt(hidden or error)
                _end_at_exit()
                if hidden is not None:
                    raise hidden from None
                raise
            raise StopIteration

    def _ready(self) -> ActivePass:
        """Return the pass, with a pipeline that is running."""
        active = self._active
        if active is not None:
            current = active.current
            is_superseded = current.generation != self._passes.generation
            if active.is_given_up or (is_superseded and not current.standing.delivered):
                self._leave(active)
                active = None
        if active is None:
            self._active = active = self._engine.begin()
        elif active.current.offered is not None or active.is_running:
            return active
        elif not active.can_go_on:
            active.is_running = False
            active.pipeline.close()
            if active.is_torn:
                self._engine.draw_again(active)
            active.pipeline = self._engine.rebuild(active)
        else:
            active.is_running = True
            return active
        self._start(active)
        return active

    def _start(self, active: ActivePass) -> None:
        active.is_started = False
        try:
            active.pipeline.start(active.schedule.requests(), active.schedule.starts())
        except WorkersDied as loss:
            self._recover(active, loss)
        else:
            active.is_started = active.is_running = True

    def _arrived(self, active: ActivePass, request: Any, found: Any) -> bool:
        """Offer what the pipeline has returned to the user, if it is for the user.

        Returns:
            Whether the worker has begun its pass; otherwise it can only be replaced.
        """
        answer = found if isinstance(found, Answer) else None
        payload = found if answer is None else answer.payload
        if isinstance(payload, BeginFailure):
            self._passes.offer_failure(active.current, payload, None)
            return False
        if isinstance(payload, Failure):
            self._fail(active, request, answer, payload)
            return True
        if isinstance(payload, NoBatch):
            self._note_no_batch(active, request, answer, payload)
            return True
        arrival = active.schedule.arrive(request, answer)
        if arrival is None:
            active.schedule.deliver(request, answer)
            return True
        try:
            batch = self._engine.finish(active, payload, position=arrival.position)
        except Exception as error:
            if is_out_of_memory(error) or not active.plan.has_last_step:
                raise
            self._fail(active, request, answer, Failure(error))
            return True
        bad = () if answer is None else answer.bad
        if bad:
            _note_bad(active, bad)
        self._engine.tally.deliver(request, answer)
        place = active.schedule.deliver(request, answer)
        _note_end_of_epoch(active, answer)
        # The user's objects are asked for their state when the first request is drawn.
        self._note_start(active)
        active.losses = active.bad_in_a_row = 0
        self._passes.offer(
            active.current,
            batch,
            place,
            request=arrival.request,
            bad=bad,
            found=active.found_bad,
        )
        if active.found_bad:
            self._note_recorded(active)
        return True

    def _fail(
        self, active: ActivePass, request: Any, answer: Answer | None, failure: Failure
    ) -> None:
        self._note_start(active)
        active.has_failed = True
        place = active.schedule.fail(request, answer)
        _note_end_of_epoch(active, answer)
        active.losses = active.bad_in_a_row = 0
        if place is None:
            self._passes.offer_failure(active.current, failure, None)
            return
        self._passes.offer_failure(active.current, failure, place, found=active.found_bad)
        self._note_recorded(active)

    def _note_start(self, active: ActivePass) -> None:
        """Complete the place where the pass began, once its first request was drawn."""
        if not active.has_answered:
            self._passes.note_start(active.current, active.schedule.start_place())

    def _note_interrupt(self, error: BaseException) -> None:
        """Let the pass begin again, if it has delivered nothing and moved the user's objects."""
        active = self._active
        if active is None or active.has_answered or active.is_given_up:
            return
        # A batch that is offered was made without an exception, so this one is a handler's.
        is_made = active.current.offered is not None
        is_interrupt = active.is_torn or is_made or not isinstance(error, Exception)
        has_moved = active.plan.memory is not None or active.schedule.start_place().user is not None
        if is_interrupt and has_moved:
            self._note_start(active)
            self._engine.go_back(active)

    def _count_bad(self, active: ActivePass, found: tuple[FoundBad, ...]) -> None:
        """Stop a function that signals its end by another exception than StopIteration.

        It would otherwise be called for ever.

        Raises:
            BadSample: none of many samples in a row could be used.
        """
        active.bad_in_a_row += len(found)
        if not active.plan.is_endless or active.bad_in_a_row < MAX_BAD_IN_A_ROW:
            return
        count, active.bad_in_a_row = active.bad_in_a_row, 0
        self._passes.note_bad(active.current, active.found_bad)
        self._note_recorded(active)
        last = found[-1]
        raise BadSample(
            str(last.index),
            index=last.position,
            position=last.position,
            epoch=last.epoch,
            reason=f"{last.reason}; nor could any of the {count - 1} samples before it be used. If "
            "it is the end of the epoch, raise StopIteration there, or declare length=",
        )

    def _note_no_batch(
        self, active: ActivePass, request: Any, answer: Answer | None, payload: NoBatch
    ) -> None:
        if payload is NOTHING:
            if answer is not None and answer.worker not in active.ended_workers:
                _note_bad(active, answer.bad)
                active.ended_workers.add(answer.worker)
        elif answer is not None and answer.bad:
            _note_bad(active, answer.bad)
            self._count_bad(active, answer.bad)
        active.schedule.deliver(request, answer)
        _note_end_of_epoch(active, answer)

    def _note_recorded(self, active: ActivePass) -> None:
        """Note that the bad samples that were found are recorded with what was offered."""
        if active.current.generation == self._passes.generation:
            self._engine.tally.bad_samples += len(active.found_bad)
        active.found_bad = ()

    def _end(self, active: ActivePass) -> None:
        current = active.current
        if current.standing.following is None:
            active.is_moving = True
            self._passes.end(current, active.schedule.end(), found=active.found_bad)
            self._note_recorded(active)
            self._engine.tally.epochs += active.has_answered
        active.ended = active.is_running = True
        is_empty_rest = current.resumed and not active.has_answered and current.start.position > 0
        skips_empty_rest = active.plan.config.on_epoch_boundary == "next_epoch"
        self._former_workers = self._workers
        self._ended = not (is_empty_rest and skips_empty_rest)
        self._leave(active)

    def _recover(self, active: ActivePass, loss: WorkersDied) -> None:
        """Replace lost workers, as if the pass were resumed from the delivered position."""
        _end_at_exit()
        active.losses += 1
        active.pipeline.close()
        place = active.current.standing.place
        where = f"epoch {place.epoch}, position {place.position}"
        at = "" if loss.oldest is None else f", {described(loss.oldest)}"
        limit = active.plan.config.max_worker_restarts
        if active.losses > limit or loss.remedy is not None:
            active.is_given_up = True
            self._leave(active)
            why, remedy = f" at {where}{at}", loss.remedy
            if remedy is None:
                why = (
                    f". Workers were lost {active.losses} times at {where}{at}, and "
                    f"max_worker_restarts is {limit}"
                )
                remedy = "look for what ends them (memory, a crash in native code)"
            raise WorkerLost(
                f"{loss.what}{why}. Remedy: {remedy}; the state is intact, and a new iterator goes "
                "on from it"
            ) from loss
        warnings.warn(
            f"{loss.what}. The workers are replaced and the stream goes on at {where}{at} "
            f"(restart {active.losses} of at most {limit} without a batch between them)",
            RuntimeWarning,
            stacklevel=4,
        )
        self._engine.tally.worker_restarts += 1
        active.pipeline = self._engine.rebuild(active)
        self._start(active)

    def _leave(self, active: ActivePass) -> None:
        """Leave the pass; another one may begin."""
        if active.is_given_up:
            self._note_start(active)
            self._engine.go_back(active)
        active.current.is_left = True
        self._active = None
        self._engine.release(active)

    def _stop(self) -> None:
        active = getattr(self, "_active", None)
        if active is not None:
            self._leave(active)


def _inherited(owner: int) -> LoaderError:
    return LoaderError(
        f"this iterator belongs to process {owner}; process {os.getpid()} was forked from it, and "
        "would take batches that the parent waits for. Remedy: iterate the loader itself here, "
        "which begins the next pass with workers of this process; "
        "loader.load_state_dict(loader.state_dict()) before it goes on from the parent's place"
    )


def _end_at_exit() -> None:
    """End a daemon thread without a traceback once the interpreter's exit has ended its workers."""
    if interpreter_is_ending() and threading.current_thread().daemon:
        raise SystemExit


_OF_LOCKS = frozenset({"release unlocked lock", "cannot release un-acquired lock"})
"""Messages of the errors of a lock that is not held."""


def _hidden_by_lock(error: BaseException) -> BaseException | None:
    """Return the exception of a signal handler that this error of a lock has replaced, if any.

    The handler may raise inside ``Condition.wait``, after that has released its lock. Leaving the
    lock then raises RuntimeError.
    """
    is_of_lock = type(error) is RuntimeError and str(error) in _OF_LOCKS
    return error.__context__ if is_of_lock else None


def _note_bad(active: ActivePass, found: tuple[FoundBad, ...]) -> None:
    """Note bad samples, once each: those of a worker that was lost are met again."""
    active.found_bad += tuple(bad for bad in found if bad not in active.found_bad)


def _note_end_of_epoch(active: ActivePass, answer: Answer | None) -> None:
    """Note that later answers do not count, if the epoch was found to end with this one."""
    active.has_met_end = active.has_met_end or (answer is not None and answer.ended_at is not None)
