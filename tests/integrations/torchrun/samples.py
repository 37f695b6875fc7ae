"""Samples as tests of several processes compare them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import chain
from typing import Any


def samples_of(batch: Any) -> list[tuple[int, str]]:
    """Of each sample its number and a digest of its pixels, if it has any."""
    if isinstance(batch, (list, tuple)):
        first, second = batch
        images, numbers = (first, second) if first.dim() > 1 else (second, first)
        return [
            (int(number), hashlib.blake2b(image.numpy().tobytes(), digest_size=8).hexdigest())
            for number, image in zip(numbers, images, strict=True)
        ]
    numbers = batch["index"] if isinstance(batch, dict) else batch
    return [(int(number), "") for number in numbers]


def sorted_samples(batches: Iterable[list[tuple[int, str]]]) -> list[tuple[int, str]]:
    """All samples of the batches, by number."""
    return sorted(chain.from_iterable(batches))
