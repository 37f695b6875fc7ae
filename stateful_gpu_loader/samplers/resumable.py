"""Base of this package's samplers, and their state without a loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.seed import SettledSeed
from stateful_gpu_loader.samplers.orders import PositionOrder
from stateful_gpu_loader.state.schema import as_epoch
from stateful_gpu_loader.state.text_state import TextState

_BLOCK = 4096


class Resumable(TextState):
    """State of a sampler without a loader: seed, epoch, position and order."""

    order: PositionOrder
    """The order; a loader takes it and divides it among ranks."""

    seed: Any
    epoch: int
    requested_epoch: int | None = None
    """Epoch given to :meth:`set_epoch`, until a loader has read it."""
    resume_at: int | None = None
    """Position given to :meth:`load_state_dict`, until the next iteration."""
    _position: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        Raises:
            ValueError: the epoch is not an int from 0 to 2**32 - 2.
        """
        self.epoch = self.requested_epoch = as_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return seed, epoch, number of indices yielded, and the order's name and length."""
        return {
            "seed": 0 if self.seed is None else self.seed,
            "epoch": self.epoch,
            "position": self._position if self.resume_at is None else self.resume_at,
            "order": self.order.algorithm,
            "length": self.order.num_positions,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume: the next iteration yields the rest of the epoch.

        Raises:
            StateMismatch: a field is missing, not an int or out of range, the order or its length
                differs, or the sampler has another explicit seed.
        """
        for field, present in (
            ("order", self.order.algorithm),
            ("length", self.order.num_positions),
        ):
            if state_dict.get(field, present) != present:
                raise StateMismatch(
                    field,
                    saved=state_dict[field],
                    present=present,
                    remedy="build the sampler with the arguments that it was saved with",
                )
        found = {field: state_dict.get(field) for field in ("seed", "epoch", "position")}
        for field, value in found.items():
            if not isinstance(value, int):
                raise StateMismatch(
                    field,
                    saved=value,
                    present="an int",
                    remedy=f"load what {type(self).__name__}.state_dict() returned",
                )
        if not 0 <= state_dict["position"] <= self.order.num_positions:
            raise StateMismatch(
                "position",
                saved=found["position"],
                present=f"0 to {self.order.num_positions}",
                remedy=f"load what {type(self).__name__}.state_dict() returned",
            )
        if self.seed not in (None, found["seed"]):
            raise StateMismatch(
                "seed",
                saved=found["seed"],
                present=self.seed,
                remedy="build the sampler with the saved seed, or with seed=None",
            )
        self.seed, self.epoch = found["seed"], int(found["epoch"] or 0)
        self.resume_at = found["position"]

    def ordinals(self, num_samples: int) -> Iterator[range]:
        """Yield the epoch's remaining ordinals in blocks."""
        start = self.resume_at or 0
        self.resume_at, self._position = None, start
        for first in range(start, num_samples, _BLOCK):
            yield range(first, min(first + _BLOCK, num_samples))
        self._position = 0
        self.epoch += 1


class OrderSampler(Resumable):
    """Base class of this package's samplers: yields a :class:`PositionOrder` epoch after epoch."""

    def __len__(self) -> int:
        """Return the number of samples in an epoch, all ranks together."""
        return self.order.num_positions

    def __iter__(self) -> Iterator[int]:
        indices = self.order.of_epoch(self.seed or 0, self.epoch)
        for block in self.ordinals(indices.n):
            for index in indices(np.arange(block.start, block.stop, dtype=np.int64)).tolist():
                self._position += 1
                yield index


def settled(seed: int | None, generator: torch.Generator | None) -> int | None:
    """Return the seed of an order: the given seed, or the next number of the generator.

    The number is drawn from a copy, so the generator does not advance. It determines all epochs,
    unlike in torch.

    Raises:
        ValueError: both are given.

    >>> settled(None, torch.Generator().manual_seed(1)) == settled(
    ...     None, torch.Generator().manual_seed(1)
    ... )
    True
    >>> settled(5, None)
    5
    """
    if generator is None:
        return seed
    if seed is not None:
        raise ValueError(
            f"{seed = } and a generator were given, but only one can decide the order. Remedy: "
            "omit one of them"
        )
    return SettledSeed(None, generator).value
