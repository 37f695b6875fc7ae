"""BadSamplePolicy: what is done about a bad sample, and which one takes its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stateful_gpu_loader.randomness.philox import WORDS_PER_BLOCK, Stream, words
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.samplers.orders import PositionOrder, key_offset_of
from stateful_gpu_loader.state.bad_samples import FoundBad, plain_index

ON_BAD_SAMPLE = ("raise", "replace", "drop")

MAX_TRIES = 8
"""Samples that are tried in a bad one's place before it is given up."""

MAX_BAD_IN_A_ROW = 100
"""Bad samples without a sound one between them, after which it is given up: an iterator that only
raises, or a function without an end, would otherwise be asked for ever."""

MAX_REMEMBERED = 10_000
"""Bad samples that a worker remembers beyond those it was told of."""


@dataclass(frozen=True, kw_only=True)
class BadSamplePolicy:
    """What makers do about bad samples; pickled to the workers.

    What is known of bad samples saves the reading of them and changes nothing else: one is treated
    as if it had been read again, and found as bad as before.

    Raises:
        ValueError: no such mode.
    """

    mode: str
    """One of ``ON_BAD_SAMPLE``."""
    order: PositionOrder | None = None
    """The loader's; None where the user's own sampler has it."""
    known: Mapping[int, str] = field(default_factory=dict)
    """Indices that need not be read, with their reasons: :attr:`BadSamples.known`."""
    reads_again: bool = False
    """For a dataset that carries state, which every reading moves: skip nothing that is known."""
    _remembered: dict[int | str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in ON_BAD_SAMPLE:
            raise ValueError(
                f"on_bad_sample={self.mode!r} is none of {ON_BAD_SAMPLE}. Remedy: pass one of them"
            )
        object.__setattr__(self, "known", dict(self.known))
        object.__setattr__(self, "_remembered", {} if self.reads_again else dict(self.known))

    @property
    def is_active(self) -> bool:
        """Whether anything is to be done at all."""
        return self.mode != "raise"

    def known_reason(self, index: Any) -> str | None:
        """Why a sample need not be read, or None."""
        return self._remembered.get(plain_index(index)) if self._remembered else None

    def remember(self, bad: FoundBad) -> None:
        """Do not read it again in this worker's life."""
        if (
            bad.always
            and not self.reads_again
            and isinstance(bad.index, int)
            and len(self._remembered) < len(self.known) + MAX_REMEMBERED
        ):
            self._remembered[bad.index] = bad.reason

    def candidates(self, request: Request, number: int) -> Iterator[tuple[int, Any]]:
        """Who may take the place of a request's sample, in turn: position and index of each.

        Chosen by the sample's key alone: other positions of the order, uniformly and none twice,
        at most ``MAX_TRIES``. Without an order, other samples of the batch.

        Args:
            number: of the sample in the request, counted from 0.
        """
        positions = request.positions
        position = int(positions[number])
        if self.order is None:
            indices = request.index_list()
            for other in _others(request, position, number, len(indices)):
                yield int(positions[other]), indices[other]
            return
        order = self.order.of_epoch(request.seed, request.epoch)
        own = (position - key_offset_of(order)) % order.n
        for other in _others(request, position, own, order.n):
            yield other, int(order(np.array([other], dtype=np.int64))[0])


def _others(request: Request, position: int, own: int, n: int) -> Iterator[int]:
    """Distinct elements of range(n) other than ``own``, drawn by the key's position.

    The first steps of a Fisher-Yates shuffle of the n - 1 others, of which only what was moved
    is kept. Each step takes one Philox block, 128 bits: no bias at any n.
    """
    num_tries = min(MAX_TRIES, n - 1)
    drawn = words(
        request.seed,
        request.epoch,
        [position],
        Stream.REPLACEMENT,
        MAX_TRIES * WORDS_PER_BLOCK,
    )
    moved: dict[int, int] = {}
    for step, block in enumerate(drawn.reshape(MAX_TRIES, WORDS_PER_BLOCK)[:num_tries].tolist()):
        number = sum(word << 32 * place for place, word in enumerate(block))
        chosen = step + (number * (n - 1 - step) >> 128)
        other = moved.get(chosen, chosen)
        moved[chosen] = moved.get(step, step)
        yield other + (other >= own)
