"""What is looked at of a long list or a large array, so that the cost is bounded.

Up to a number of entries all are looked at. Of more, it is the first, the last and others evenly
spread between them: a renamed folder is noticed, one renamed file of a million most likely not.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch

MOST_ENTRIES = 1024
"""Entries of a list that are looked at, where they are numbers, strings, or pairs of these."""
MOST_ROWS = 256
"""Rows of an array, or entries of a list of other things, that are looked at."""
MOST_IN_ALL = 4096
"""Entries and rows of all lists and arrays of one dataset that are looked at."""
FEWEST_ENTRIES = 8
"""Of each list or array all the same."""
_MOST_MAPPED_ROWS = 8
"""Of an array in a file, where each row may cost an access to the disk."""
_MOST_VALUES = 16
"""Values of a row that are looked at."""


def spread(length: int, most: int) -> list[int]:
    """Indices of a sequence: all of them, or the first, the last and evenly spread ones.

    >>> spread(3, 5), spread(101, 5)
    ([0, 1, 2], [0, 25, 50, 75, 100])
    """
    if length <= most:
        return list(range(length))
    return [number * (length - 1) // (most - 1) for number in range(most)]


def digest(content: bytes) -> str:
    """A short name of bytes."""
    return f"blake2b {hashlib.blake2b(content, digest_size=16).hexdigest()}"


def array_text(
    array: np.ndarray[Any, Any] | torch.Tensor, *, most_rows: int = MOST_ROWS
) -> str | None:
    """Shape, dtype and a digest of sampled values; None if the values cannot be read.

    >>> array_text(torch.zeros(2, 3))[:22]
    'float32 [2, 3] blake2b'
    """
    dtype = str(array.dtype).removeprefix("torch.")
    try:
        sampled = _sampled_bytes(array, most_rows)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return None  # of objects, sparse, on the meta device
    return f"{dtype} {list(array.shape)} {digest(sampled)}"


def _sampled_bytes(array: np.ndarray[Any, Any] | torch.Tensor, most_rows: int) -> bytes:
    shape = tuple(array.shape) or (1,)
    size = math.prod(shape)
    if not size:
        return b""
    if isinstance(array, np.memmap):
        most_rows = min(most_rows, _MOST_MAPPED_ROWS)
    row_size = size // shape[0]
    rows = np.array(spread(shape[0], most_rows * (_MOST_VALUES if row_size == 1 else 1)))
    values = np.array(spread(row_size, _MOST_VALUES))
    places = np.unravel_index((rows[:, None] * row_size + values).ravel(), shape)
    if isinstance(array, torch.Tensor):
        given = array.detach().reshape(1) if array.ndim == 0 else array.detach()
        found = given[tuple(torch.from_numpy(place).to(array.device) for place in places)]
        plain = found.resolve_conj().resolve_neg().contiguous()
        return plain.view(torch.uint8).cpu().numpy().tobytes()
    if array.dtype.hasobject:
        raise TypeError("pointers are no content")
    return (array.reshape(1) if array.ndim == 0 else array)[places].tobytes()
