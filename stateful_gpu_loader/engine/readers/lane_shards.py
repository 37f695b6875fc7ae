"""LaneShards: reads the samples of one lane's shards and handles damage."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from typing import Any

from stateful_gpu_loader.datasets.lanes import key_of_lane
from stateful_gpu_loader.datasets.sharded import EncodedShards, ShardedDataset
from stateful_gpu_loader.engine.makers.bad_sample_policy import (
    MAX_READS,
    RETRIED,
    is_bad,
    reason_of,
)
from stateful_gpu_loader.engine.makers.own_generators import SampleGenerators
from stateful_gpu_loader.engine.pipeline import Stopped, add_note, never_stopped
from stateful_gpu_loader.engine.readers.reading import ReadySample, place_in_shard
from stateful_gpu_loader.errors import BadSample, LoaderError
from stateful_gpu_loader.randomness.draw_rule import DrawRule
from stateful_gpu_loader.randomness.philox import SeedBlock, Stream
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.bad_samples import FoundBad

_MAX_OFFSET = 2**63


@dataclass(frozen=True, kw_only=True)
class LaneAddress:
    """One lane of one epoch, read for the ``lap``-th time."""

    seed: int
    epoch: int
    lane: int
    shards: list[str]
    lap: int = 0

    def position(self, ordinal: int) -> int:
        """Return the key of a sample of the lane by its ordinal."""
        return key_of_lane(self.lane, ordinal)


class LaneShards:
    """Reads shard after shard until the lane ends.

    Args:
        shard, offset: where to begin: ordinal of a shard in the lane, cursor in the shard.
        ordinal: ordinal in the lane of the first sample.
        drops_bad: drop the rest of a damaged shard instead of raising an exception.
        rule: notes which of the seeded samples draw.
        generators: generators that are seeded for each sample.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        address: LaneAddress,
        *,
        shard: int,
        offset: int,
        ordinal: int,
        drops_bad: bool,
        rule: DrawRule,
        generators: SampleGenerators,
    ) -> None:
        self._dataset = dataset
        self._address = address
        self._drops_bad = drops_bad
        self._rule = rule
        self._generators = generators
        self.is_damage_reported = False
        """Whether the samples' damage was reported before."""
        self.is_seeded = False
        """Whether generators are seeded for each sample."""
        self._is_encoded = isinstance(dataset, EncodedShards)
        self._seeds = SeedBlock(Stream.ITERABLE)
        self.end = (address.lap + 1) * len(address.shards)
        """Ordinal after the last shard of the lap."""
        self.place = shard, offset
        """Shard and offset of the next sample."""
        self.ordinal = ordinal
        """Ordinal of the next sample, in the order of reading."""
        self._generator: Iterator[tuple[Any, int]] | None = None
        self._given: deque[Any] = deque()
        """Samples yielded by the generator and not read yet."""
        self._raised: Exception | None = None
        """Exception that the generator raised after these samples."""
        self._num_read: int | None = None if self.place[1] else 0
        """Number of samples read from the present shard, if from its beginning."""
        self._promised: int | None = None
        """Number of samples in the present shard, according to the dataset."""
        self._found: list[FoundBad] = []

    def read(self, samples: list[ReadySample], size: int, check: Callable[[], None]) -> None:
        """Append samples until there are ``size`` of them, or the lane ends.

        Args:
            samples: receives the samples, even before an exception.
            size: number of samples, including the present ones.
            check: called between samples.

        Raises:
            BadSample: encoded images are damaged from here on; the next call continues with the
                next shard.
            OSError: the storage failed at each of 3 attempts; the next call tries again.
            LoaderError: ``num_samples()`` or ``read_shard()`` does not keep its contract.
            Exception: exception of a user's own ``read_shard``.
        """
        while len(samples) < size:
            check()
            if not (self._given or self._raised or self.is_seeded) and self._generator is not None:
                self._ask_ahead(self._generator, size - len(samples), check)
                if sound := self._all_if_sound():
                    samples += sound
                    continue
            sample = self._read_one()
            if sample is None:
                return
            samples.append(sample)

    def _ask_ahead(self, generator: Iterator[Any], n: int, check: Callable[[], None]) -> None:
        """Let a shard's generator yield n samples, or as many as it has before it raises."""
        try:
            for given in islice(generator, n):
                self._given.append(given)
                if check is not never_stopped:
                    check()
        except Stopped:
            raise
        except Exception as error:
            self._raised = error

    def _all_if_sound(self) -> list[ReadySample]:
        """Return all yielded samples; nothing if one of them needs special handling.

        The first sample of a shard is read alone.
        """
        given, num_read, promised = self._given, self._num_read, self._promised
        if not given or num_read == 0:
            return []
        if num_read is not None and promised is not None and num_read + len(given) > promised:
            return []
        try:
            samples, cursors = zip(*given, strict=True)
        except (TypeError, ValueError):
            return []
        if set(map(type, cursors)) != {int} or min(cursors) < 0 or max(cursors) >= _MAX_OFFSET:
            return []
        kinds = set(map(type, samples))
        if self._is_encoded and not all(issubclass(kind, EncodedSample) for kind in kinds):
            return []
        if any(issubclass(kind, ValueError) for kind in kinds):
            return []
        given.clear()
        number, offset = self.place
        shard = self._address.shards[number % len(self._address.shards)]
        self.place = number, cursors[-1]
        self.ordinal += len(samples)
        if num_read is not None:
            self._num_read = num_read + len(samples)
        return list(map(ReadySample, samples, repeat(shard), (offset, *cursors)))

    def _read_one(self) -> ReadySample | None:
        """Return the next sample; None at the lane's end."""
        attempts = 0
        shards = self._address.shards
        while self.place[0] < self.end:
            number, offset = self.place
            shard = shards[number % len(shards)]
            try:
                sample, following = self._next(shard, offset)
            except StopIteration:
                self._end_shard(shard)
            except Stopped:
                raise
            except RETRIED as error:
                if not isinstance(error, FileNotFoundError) and not self._is_damage(error):
                    self.close()
                    attempts += 1
                    if attempts < MAX_READS:
                        continue
                    raise add_note(  # noqa: B904 - it is the same error
                        error, f"in {place_in_shard(shard, offset)}"
                    )
                self._give_up(error, place_in_shard(shard, offset))
            except Exception as error:
                self._give_up(error, place_in_shard(shard, offset))
            else:
                self.place = number, following
                is_due = self._is_due(shard)
                if isinstance(sample, ValueError):
                    self._leave_out(sample, place_in_shard(shard, offset), offset)
                    continue
                self.ordinal += 1
                if is_due:
                    return ReadySample(sample, shard, offset)
        return None

    def take_bad(self) -> tuple[FoundBad, ...]:
        bad, self._found = tuple(self._found), []
        return bad

    def close(self) -> None:
        """Close the dataset's generator, which may hold a file open."""
        generator: Any = self._generator
        self._generator = self._raised = None
        self._given.clear()
        if callable(getattr(generator, "close", None)):
            generator.close()

    def _next(self, shard: str, offset: int) -> tuple[Any, int]:
        if self._given:
            return self._checked(self._given.popleft())
        if self._raised is not None:
            error, self._raised = self._raised, None
            raise error
        if self.is_seeded:
            address = self._address
            place = address.position(self.ordinal)
            seed = self._seeds.at(address.seed, address.epoch, place)
            return self._checked(
                self._rule.seeded(
                    partial(self._generators.seed, seed), lambda: self._yielded(shard, offset)
                )
            )
        return self._checked(self._yielded(shard, offset))

    def _yielded(self, shard: str, offset: int) -> Any:
        if self._generator is None:
            self._generator = iter(self._dataset.read_shard(shard, offset))
        return next(self._generator)

    def _checked(self, given: Any) -> tuple[Any, int]:
        try:
            sample, offset = given
            following = operator.index(offset)
        except (TypeError, ValueError):
            following = -1
        if not 0 <= following < _MAX_OFFSET:
            raise LoaderError(
                f"{type(self._dataset).__name__}.read_shard() gave {_brief(given)}. Remedy: yield "
                "pairs of a sample and the cursor after it, an int from 0 to 2**63 - 1"
            )
        if self._is_encoded and not isinstance(sample, (EncodedSample, ValueError)):
            raise LoaderError(
                f"{type(self._dataset).__name__}.read_shard() gave {_brief(sample)} as a sample. "
                "Remedy: yield an EncodedSample, or derive from ShardedDataset"
            )
        return sample, following

    def _give_up(self, error: Exception, name: str) -> None:
        """Drop the rest of a shard, and record or raise the reason."""
        offset = self.place[1]
        self._leave_shard()
        if isinstance(error, FileNotFoundError) or self._is_damage(error):
            self._leave_out(error, f"rest of {name}" if self._drops_bad else name, offset)
        elif not self.is_damage_reported:
            raise add_note(error, f"in {name}")

    def _leave_out(self, error: Exception, name: str, offset: int) -> None:
        """Record a dropped sample or rest, or raise the reason."""
        address = self._address
        position = address.position(self.ordinal)
        if self.is_damage_reported:
            return
        if self._drops_bad:
            self._found.append(FoundBad(name, position, address.epoch, reason_of(error), False))
        elif self._is_encoded and self._is_damage(error) and not isinstance(error, BadSample):
            raise BadSample(
                name, index=offset, position=position, epoch=address.epoch, reason=str(error)
            ) from error
        else:
            raise add_note(error, f"in {name}")

    def _is_damage(self, error: Exception) -> bool:
        return isinstance(error, ValueError) if self._is_encoded else is_bad(error)

    def _is_due(self, shard: str) -> bool:
        """Count a sample; leave the shard with an error if it exceeds ``num_samples()``.

        Otherwise the rest would be dropped silently.
        """
        if self._num_read is None:
            return True
        self._num_read += 1
        if self._num_read == 1:
            self._promised = self._dataset.num_samples(shard)
        if self._promised is not None and self._num_read > self._promised:
            self._leave_with(shard, f"more than {self._promised}")
            return False
        return True

    def _end_shard(self, shard: str) -> None:
        num_read = self._num_read
        promised = self._promised if num_read else self._dataset.num_samples(shard)
        if num_read is not None and promised is not None and promised != num_read:
            self._leave_with(shard, f"only {num_read}")
        else:
            self._leave_shard()

    def _leave_with(self, shard: str, number: str) -> None:
        promised = self._dataset.num_samples(shard)
        self._leave_shard()
        if self.is_damage_reported:
            return
        raise LoaderError(
            f"shard {shard!r} has {number} samples, but {type(self._dataset).__name__}."
            f"num_samples() returns {promised}. Remedy: correct it"
        )

    def _leave_shard(self) -> None:
        self.close()
        self.place = self.place[0] + 1, 0
        self._num_read = 0


def _brief(given: Any) -> str:
    return f"{repr(given)[:100]} of type {type(given).__name__}"
