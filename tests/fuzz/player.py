"""Plays a life, and compares every batch with the oracle."""

from __future__ import annotations

import copy
import gc
import io
import json
import random
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from stateful_gpu_loader import StatefulGPULoader, StateMismatch, merge_state_dicts
from tests.fuzz.configurations import Configuration
from tests.fuzz.data import LANES, PRIVATE
from tests.fuzz.lives import Life
from tests.fuzz.oracle import Difference, Oracle, index_of, indices_of, next_of, units_of
from tests.fuzz.orders import OWN
from tests.fuzz.records import Record, is_failure, shown
from tests.generators import generators
from tests.interrupts import interrupt_at

LAST_EPOCH = 3
"""The last epoch that a life reaches."""


@dataclass(frozen=True)
class Place:
    """Place in a stream: the delivered part of an epoch."""

    epoch: int = 0
    done: tuple[int, ...] = ()
    """Delivered units; in order, those before the next one."""
    again: tuple[int, ...] = ()
    """Failed units at its end, which a resumed loader may try again."""


@dataclass(frozen=True)
class Saved:
    """States of all ranks, and their place."""

    states: list[dict[str, Any]]
    place: Place
    configuration: Configuration


class Player:
    """A loader, or one for each rank, and the expected place of its stream."""

    def __init__(self, configuration: Configuration) -> None:
        self._stream = configuration
        _demand_warning(configuration)
        self._oracle = Oracle(configuration)
        self._present = configuration
        self._ranks = _build(configuration)
        self._iterators: list[Any] | None = None
        self._place = Place()
        self._history: deque[Place] = deque(maxlen=16)
        self._saved: list[Saved] = []
        self._is_resumed = False
        self._retries: tuple[int, ...] = ()
        """Failed units that may come again, because the stream continues after them."""
        self._has_begun = False
        self._began_at = self._place, self._retries
        """Place of a new iterator, if the present one has moved nothing."""
        self._has_moved = False
        self._has_delivered = False
        self._is_lost = False
        self._is_over = False
        """Whether nothing is guaranteed any more."""
        self._interrupt: tuple[int, Literal["line", "opcode"]] | None = None
        """Number and kind of the place in the package where the next step is interrupted."""
        self._next_epoch: int | None = None
        """Epoch of the pass after a broken-off one, which the state still describes."""
        self._broken_off: Place | None = None
        """Place of the broken-off pass, until the pass after it has delivered a batch."""

    def play(self, life: Life) -> None:
        """Play the life.

        Raises:
            Difference: an unexpected batch came, or an expected one did not.
        """
        for number, action in enumerate(life):
            if self._is_over:
                return
            before = generators()
            try:
                getattr(self, action.name)(**action.arguments)
            except StateMismatch as error:
                if self._stream.order == "in place" and error.field in ("sampler", "ahead"):
                    return  # no other object can repeat what its list went through
                if self._stream["data"] == "once" and error.field == "iterable":
                    return  # it was read, and the digest has noticed
                raise
            except Exception as error:
                error.args = (f"{error} [in action {number}, {action}]",)
                raise
            if not self._stream["beside"]:
                self._demand(generators() == before, f"{action} drew from the caller's generators")

    def play_beside_draws(self, life: Life) -> None:
        """Play the life in a thread, while this thread draws from the global generators.

        Raises:
            Difference: as :meth:`play`, or this thread drew a number twice.
        """
        drawn: list[tuple[float, ...]] = []
        with ThreadPoolExecutor(1) as pool:
            played = pool.submit(self.play, life)
            while not played.done():
                numbers = random.random(), float(np.random.rand())
                drawn.append((*numbers, torch.rand((), dtype=torch.float64).item()))
        played.result()
        repeated = [len(numbers) - len(set(numbers)) for numbers in zip(*drawn, strict=True)]
        self._demand(
            not any(repeated),
            f"of {len(drawn)} draws of each kind beside the loop {repeated} came twice",
        )

    def close(self) -> None:
        self._ranks, self._iterators = [], None
        self._oracle.close()

    # The actions.

    def take(self, batches: int) -> None:
        """Continue with the present iterator, past the end of an epoch if necessary."""
        for _ in range(batches):
            if self._is_lost or self._place.epoch > LAST_EPOCH:
                return
            if self._iterators is None:
                self._iterators = [iter(loader) for loader in self._ranks]
            if not self._has_begun:
                self._begin()
            if self._is_lost:
                return
            if self._stream["data"] == "caching" and self._place.epoch:
                self._is_over = True  # the content depends on which samples were read before
                return
            step = self._next_step()
            if self._is_over:
                return
            units = [] if step is None else units_of(step, is_flat=self._stream.is_flat)
            self._compare(units)

    def interrupt(self, at: int, by: Literal["line", "opcode"]) -> None:
        """Raise KeyboardInterrupt in the next step of each rank, and continue after it."""
        self._interrupt = at, by
        self.take(1)
        self._interrupt = None

    def _next_step(self) -> list[Any] | None:
        """Return the next batch of each rank; None after the end of all."""
        if self._interrupt is None:
            return next_of(self._iterators or [])
        at, by = self._interrupt
        step = []
        for loader, batches in zip(self._ranks, self._iterators or [], strict=True):
            before = loader.state_dict()
            try:
                with interrupt_at(at, by=by) as interrupt:
                    found = next_of([batches])
            except KeyboardInterrupt:
                where = interrupt.where
                if where is not None and not where.callers and where.opcode.startswith("RETURN"):
                    # The loader has delivered the batch, and it cannot be recovered.
                    self._is_over = True
                    return None
                if self._has_moved and self._expected():
                    is_unmoved = loader.state_dict() == before
                    self._demand(is_unmoved, f"an interrupt has moved the state, {where}")
                found = next_of([batches])
            step.append(None if found is None else found[0])
        return None if all(batch is None for batch in step) else step

    def save(self, batches_ago: int) -> None:
        """Save a state, as of some batches ago."""
        if batches_ago > len(self._history):
            return
        if batches_ago and self._stream["data"] in LANES and self._ranks[1:]:
            return  # a rank may have ended before the others, and delivered fewer
        present = self._place
        if self._has_begun and not self._has_moved and self._broken_off is not None:
            present = self._broken_off
        place = self._history[-batches_ago] if batches_ago else present
        if self._stream["data"] == "once" and place.epoch:
            return  # a fresh loader cannot know that it was read
        states = [loader.state_dict(batches_ago=batches_ago) for loader in self._ranks]
        again = [loader.state_dict(batches_ago=batches_ago) for loader in self._ranks]
        self._demand(states == again, "state_dict() has changed something")
        if self._stream["data"] not in LANES:
            self._demand(states[0]["epoch"] == place.epoch, "the state is of another epoch")
            # Except for the record of bad samples, which each rank keeps by itself.
            alike = [{**state, "bad_samples": None} for state in states]
            self._demand(all(state == alike[0] for state in alike), "ranks' states differ")
        self._saved.append(Saved(copy.deepcopy(states), place, self._present))

    def load(
        self,
        which: int,
        into: str,
        through: str,
        used: int,
        keep_iterator: bool,
        in_a_cycle: bool,
        changes: dict[str, Any],
    ) -> None:
        """Resume from one of the states, in this loader or another."""
        if not self._saved:
            return
        saved = self._saved[-1 - which % len(self._saved)]
        is_used = used if into == "used" else into == "same" and self._has_delivered
        changes_itself = self._stream["data"] == "once" or self._stream.order == "in place"
        if changes_itself and is_used and set(saved.place.done) <= set(saved.place.again):
            return  # before the place only failures were read, which cannot be compared
        if into != "same":
            self._drop_iterators(in_a_cycle=in_a_cycle)
            self._has_moved = False
            self._present = self._present.but(**changes).settled()
            self._ranks = _build(self._present)
            if into == "used" and used > 0:
                self._iterators = [iter(loader) for loader in self._ranks]
                steps = [next_of(self._iterators) for _ in range(used)]
                self._has_moved = steps[0] is not None
                if steps[-1] is None:
                    self._iterators = None  # an ended iterator stays ended
        self._has_delivered = False
        older, coming = None, []
        if self._has_moved or not keep_iterator:
            can_go_on = into == "same" and self._stream.has_own_order and self._stream.is_flat
            if keep_iterator and can_go_on and self._has_begun:
                older, coming = self._iterators, self._expected()
                self._iterators = None
            self._drop_iterators(in_a_cycle=in_a_cycle)
        self._place, self._is_resumed, self._is_lost = saved.place, True, False
        self._retries = saved.place.again
        self._has_begun = self._has_moved = False
        self._next_epoch = self._broken_off = None
        self._history.clear()
        # Ranks without a common length end by themselves; the states of all show which have.
        has_lanes = self._stream["data"] in LANES
        state = merge_state_dicts(saved.states) if has_lanes else saved.states[-1]
        for loader in self._ranks:
            state = _carried(state, through)
            loader.load_state_dict(state)
            if saved.configuration == self._present and not (has_lanes and self._ranks[1:]):
                self._demand(loader.state_dict() == state, "state_dict() is not what was loaded")
        if older is not None and coming:
            before = [loader.state_dict() for loader in self._ranks]
            units = units_of(next_of(older) or [], is_flat=True)
            self._check(units[:1], [coming[0][1]])
            after = [loader.state_dict() for loader in self._ranks]
            self._demand(before == after, "an older iterator has moved the state")

    def redeal(self, which: int, changes: dict[str, Any]) -> None:
        """Change the ranks or the batch size of shards: each sample of the epoch comes once."""
        c = self._stream
        if c["data"] not in LANES or c["bad"] or c["drop_last"] or not self._saved:
            return
        saved = self._saved[-1 - which % len(self._saved)]
        if (self._present["num_replicas"] > 1) != (changes["num_replicas"] > 1):
            return  # only shards for several ranks have their samples counted
        others = _build(self._present.but(**changes).settled())
        state = merge_state_dicts(saved.states)
        for loader in others:
            loader.load_state_dict(state)
        units, found = self._oracle.units(saved.place.epoch), []
        if saved.place.done and self._expected_at(saved.place) == []:
            return
        ranks = [iter(loader) for loader in others]
        while step := next_of(ranks):
            found += units_of(step, is_flat=False)
        found = [*(units[i] for i in saved.place.done), *found]
        got, wanted = ([i for unit in each for i in indices_of(c, unit)] for each in (found, units))
        if c["num_replicas"] > 1 or len(others) > 1:
            got, wanted = list(set(got)), list(set(wanted))  # some repeat, so that all end
        self._demand(sorted(got) == sorted(wanted), f"dealt anew, samples {got}, not {wanted}")

    def leave(self, in_a_cycle: bool) -> None:
        """Break out of the loop."""
        if self._has_moved:
            self._is_lost = self._is_of_the_users
            self._next_epoch, self._has_moved = self._place.epoch + 1, False
        elif self._has_begun and self._broken_off is not None:
            self._next_epoch, self._place = self._place.epoch, self._broken_off
        elif self._has_begun:
            self._place, self._retries = self._began_at
        self._drop_iterators(in_a_cycle=in_a_cycle)
        self._has_begun = False

    def _drop_iterators(self, *, in_a_cycle: bool) -> None:
        """Drop the iterators, which the garbage collector must free from a reference cycle."""
        iterators, self._iterators = self._iterators, None
        if in_a_cycle and iterators is not None:
            iterators.append(iterators)
            del iterators
            gc.collect()

    @property
    def _is_of_the_users(self) -> bool:
        """Whether an object of the user's has moved on with the request: a sampler's draws are
        its own, and torch's RandomSampler draws from its generator once more at its end.
        """
        has_sampler = self._stream.order not in (*OWN, "none")
        return self._stream.has_state or has_sampler or self._stream["data"] == "once"

    @property
    def _moves_by_failing(self) -> bool:
        """Whether a batch that raises moves the loader, because a user's object has moved on."""
        return self._is_of_the_users or self._stream.is_tied

    def kill(self, worker: int) -> None:
        """SIGKILL one of the workers, if they are processes."""
        for batches in self._iterators or ():
            workers = [each for each in batches._workers if each.is_alive()]
            if self._has_moved and workers:
                workers[worker % len(workers)].kill()
                workers[worker % len(workers)].join()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, between two passes."""
        is_between = self._iterators is None and not self._is_resumed
        has_own = self._stream.has_own_order or self._stream.order == "none"
        if (
            is_between
            and has_own
            and not (self._stream.has_state or self._stream["data"] in ("once", "caching"))
        ):
            for loader in self._ranks:
                loader.set_epoch(epoch)
            if self._next_epoch is None:
                self._place = Place(epoch)
            else:
                self._next_epoch = epoch

    def refuse(self, changes: dict[str, Any], after: int) -> None:
        """Refuse a state of another loader, which must change nothing."""
        foreign = self._present.but(**changes, prefetch_factor=None, persistent_workers=False)
        if foreign["beside"] and foreign.may_draw:
            return
        others = _build(foreign if "num_workers" in changes else foreign.but(num_workers=0))
        iterators = [iter(other) for other in others]
        try:
            for _ in range(after):
                if next_of(iterators) is None:
                    return
        except ValueError:
            return  # lanes that hold no batch for one of the ranks, where the last is dropped
        if "num_workers" in changes and not after:
            return  # states of no worker's objects are free
        before = [loader.state_dict() for loader in self._ranks]
        for loader, other in zip(self._ranks, others, strict=True):
            try:
                loader.load_state_dict(other.state_dict())
            except StateMismatch:
                continue
            raise Difference(f"a state with {changes} was not refused")
        after_all = [loader.state_dict() for loader in self._ranks]
        self._demand(before == after_all, "a refused load has changed the state")

    # The comparison.

    def _begin(self) -> None:
        """Begin a pass. If nothing of the epoch is left, it is a pass of the next epoch."""
        self._has_begun = True
        self._broken_off = None
        if self._next_epoch is not None:
            self._broken_off = self._place
            self._place, self._next_epoch = Place(self._next_epoch), None
        self._began_at = self._place, self._retries
        skips = self._stream["on_epoch_boundary"] == "next_epoch"
        if self._is_resumed and skips and self._place.done and not self._expected():
            self._place = Place(self._place.epoch + 1)
            self._is_lost = self._stream["data"] == "once"  # nothing of the rest was read

    def _expected(self) -> list[tuple[int, Record]]:
        return self._expected_at(self._place)

    def _expected_at(self, place: Place) -> list[tuple[int, Record]]:
        """Return the next step's units and their numbers; past the end of the epoch they repeat."""
        units, done = self._oracle.units(place.epoch), place.done
        if not self._stream.is_flat:
            left = [(i, unit) for i, unit in enumerate(units) if i not in done]
            return left[:1] if self._stream["in_order"] else left
        size, ranks = self._present["batch_size"], self._present["num_replicas"]
        left_over = len(units) - len(done)
        if left_over <= 0 or (left_over < size * ranks and self._present["drop_last"]):
            return []
        count = min(size, -(-left_over // ranks)) * ranks
        positions = range(len(done), len(done) + count)
        return [(position, units[position % len(units)]) for position in positions]

    def _compare(self, found: list[Record]) -> None:
        if self._retries:
            # From one of them on, since the state may be of a place between them.
            units = self._oracle.units(self._place.epoch)
            while self._retries:
                again, self._retries = units[self._retries[0]], self._retries[1:]
                if found[:1] == [again]:
                    # Of two equal failures, it is unknown which one came.
                    self._is_over = again in [unit for _, unit in self._expected()]
                    self._has_moved |= self._moves_by_failing
                    return
        place, n = self._place, len(self._oracle.units(self._place.epoch))
        wanted = self._expected()
        if not found or not wanted:
            self._check(found, [unit for _, unit in wanted])
            self._iterators, self._place = None, Place(place.epoch + 1)
            # Nothing is read of an empty rest, so it can still be the next epoch.
            self._is_lost = self._is_resumed and self._stream["data"] == "once"
            self._has_begun = self._has_moved = self._is_resumed = False
            states = [loader.state_dict() for loader in self._ranks]
            ends = {(state["epoch"], state["position"]) for state in states}
            self._demand(ends == {(place.epoch + 1, 0)}, f"the state behind the end is at {ends}")
            return
        if not self._stream["in_order"]:
            wanted = [(number, unit) for number, unit in wanted if unit == found[0]] or wanted
            wanted = wanted[:1]
        self._check(
            [u if i < n else self._padding(u) for (i, _), u in _pairs(wanted, found)],
            [u if i < n else self._padding(u) for i, u in wanted],
        )
        done = tuple(sorted({*place.done, *(i for i, _ in wanted if i < n)}))
        if self._stream.is_flat and self._present["drop_last"]:
            size = self._present["batch_size"] * self._present["num_replicas"]
            done = tuple(range(n)) if n - len(done) < size else done
        failed = is_failure(found[0])
        again = (*place.again, *done[len(place.done) :]) if failed else ()
        if not failed:
            self._history.append(place)
            self._is_resumed = False
        self._has_moved |= not failed or self._moves_by_failing
        self._has_delivered = True
        self._place = Place(place.epoch, done, again)

    def _padding(self, unit: Record) -> Any:
        """Return what a repeated unit, which pads the ranks to equal length, shares with the first.

        Its draws differ, and a bad sample has another replacement.
        """
        return None if self._stream["bad"] else index_of(self._stream, unit)

    def _check(self, found: list[Record], wanted: list[Record]) -> None:
        if found == wanted:
            return
        for i in range(max(len(found), len(wanted))):
            one = found[i] if i < len(found) else None
            other = wanted[i] if i < len(wanted) else None
            if one != other:
                raise Difference(
                    f"epoch {self._place.epoch}, behind {len(self._place.done)} units, number {i} "
                    f"of the batch: {shown(one)}; not {shown(other)}"
                )

    def _demand(self, holds: bool, what: str) -> None:
        if not holds:
            raise Difference(f"{what} (epoch {self._place.epoch}, {len(self._place.done)} units)")


def _pairs(wanted: list[Any], found: list[Record]) -> list[Any]:
    """Return each delivered unit with its number, surplus units included."""
    surplus = [(0, None)] * (len(found) - len(wanted))
    return list(zip([*wanted, *surplus], found, strict=False))


def _build(configuration: Configuration) -> list[StatefulGPULoader[Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        replicas = configuration["num_replicas"]
        return [configuration.build(rank=rank) for rank in range(replicas)]


def _demand_warning(configuration: Configuration) -> None:
    """Require that the first batch warns of a private generator, if the data has one."""
    path = PRIVATE.get(configuration["data"])
    if path is None:
        return
    loader = configuration.but(num_workers=0).settled().build()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with suppress(ValueError):  # a bad sample
            next(iter(loader), None)
    told = [str(warning.message) for warning in caught]
    if not any(text.startswith(f"{path}: ") for text in told):
        raise Difference(f"no warning of {path}, but {told}")


def _carried(state: dict[str, Any], through: str) -> dict[str, Any]:
    """Return the state as another process reads it from a file."""
    carried: dict[str, Any] = copy.deepcopy(state)
    if through == "json":
        carried = json.loads(json.dumps(state))
    if through == "torch.save":
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        carried = torch.load(file, weights_only=True)
    return carried
