"""Comparison of a resumed pass with an uninterrupted one, sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Batches = Sequence[dict[str, Any]]
"""Reports of :mod:`benchmarks.peers.process` for each batch: ``numbers`` and ``pixels``."""


@dataclass(frozen=True, kw_only=True)
class Exactness:
    """Agreement of a resumed pass with the rest of an uninterrupted one."""

    batches: int
    """Number of batches of the uninterrupted pass after the state."""
    same_samples: int
    """Number of batches of the resumed pass with the same samples in the same order."""
    same_pixels: int
    """Number of batches of the resumed pass with the same samples and the same pixels."""
    lost: int
    """Number of samples that the resumed pass did not deliver."""
    repeated: int
    """Number of samples that the resumed pass delivered twice, or after they were seen."""

    @property
    def are_samples_exact(self) -> bool:
        """Whether every batch had its samples, and none too many."""
        return self.same_samples == self.batches and not (self.lost or self.repeated)

    @property
    def are_pixels_exact(self) -> bool:
        """Whether the pixels agree, too."""
        return self.are_samples_exact and self.same_pixels == self.batches

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "samples_exact": self.are_samples_exact,
            "pixels_exact": self.are_pixels_exact,
        }


def compare(rest: Batches, resumed: Batches) -> Exactness:
    """Compare an uninterrupted pass after the state with a resumed pass.

    >>> left = [{"numbers": [3, 1], "pixels": "a"}, {"numbers": [0, 2], "pixels": "b"}]
    >>> compare(left, left).are_pixels_exact
    True
    >>> other = [{"numbers": [3, 1], "pixels": "a"}, {"numbers": [0, 2], "pixels": "c"}]
    >>> compare(left, other).are_samples_exact, compare(left, other).are_pixels_exact
    (True, False)
    >>> compare(left, left[:1]).lost, compare(left, [*left, left[0]]).repeated
    (2, 2)
    """
    pairs = list(zip(rest, resumed, strict=False))
    expected, delivered = _numbers(rest), _numbers(resumed)
    return Exactness(
        batches=len(rest),
        same_samples=sum(ours["numbers"] == theirs["numbers"] for ours, theirs in pairs),
        same_pixels=sum(ours == theirs for ours, theirs in pairs),
        lost=len(set(expected) - set(delivered)),
        repeated=len(delivered) - len(set(delivered) & set(expected)),
    )


def _numbers(batches: Batches) -> list[int]:
    return [number for batch in batches for number in batch["numbers"]]
