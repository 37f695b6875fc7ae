"""What stands for a long array in the text that names an order."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt


def digest_of(array: npt.NDArray[np.generic]) -> str:
    """BLAKE2b of the array's length and of its elements as little-endian bytes.

    Args:
        array: [n] of any number type; the same numbers of another type are another array.

    Returns:
        the length and 16 hexadecimal digits.

    >>> digest_of(np.array([3, 1, 2]))
    '3:c22d70e57dc8bf9f'
    """
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    text = blake2b(little.data, digest_size=8, person=little.dtype.str.encode()).hexdigest()
    return f"{len(array)}:{text}"
