"""A torch generator's state as short text, and back, bit for bit."""

from __future__ import annotations

import base64
import re
import struct
import sys
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.errors import StateMismatch

# torch's CPUGeneratorImplState: seed, left, seeded, next; the words of the Mersenne Twister, 64
# bits each with 32 in use; the cache of the normal distribution.
_GENERATOR_BYTES = 5056
_HEADER = struct.Struct("=QiiQ")
_SEED = 8
_NUM_WORDS = 624
_CACHE = _HEADER.size + _NUM_WORDS * 8
_PACKED_BYTES = _GENERATOR_BYTES - _NUM_WORDS * 4
_TEXT = re.compile(r"mt19937_[0-9a-f]{8}_([!-~]*)")


def generator_to_text(state: torch.Tensor) -> str:
    """Write the state of a torch CPU generator as printable ASCII characters without quotes.

    At most 27 characters for a generator that was seeded but not drawn from, else about 3,170.

    Args:
        state: uint8 [5056], from ``torch.Generator.get_state()``.

    Raises:
        StateMismatch: the state is not that of a CPU generator.

    >>> generator_to_text(torch.Generator().manual_seed(42).get_state())
    'mt19937_ee508d56_Dg'
    """
    data = _generator_bytes(state, "generator")
    packed = data[:_SEED]
    if data != _seeded(packed):
        words = _words(data).astype(np.uint32)
        packed = data[: _HEADER.size] + words.tobytes() + data[_CACHE:]
    text = base64.b85encode(packed.rstrip(b"\0")).decode("ascii")
    return f"mt19937_{zlib.crc32(data):08x}_{text}"


def generator_from_text(text: Any) -> torch.Tensor:
    """Read back :func:`generator_to_text`, bit for bit.

    Returns:
        uint8 [5056].

    Raises:
        StateMismatch: the text is not such a state, or was altered.

    >>> generator = torch.Generator()
    >>> _ = generator.set_state(generator_from_text("mt19937_ee508d56_Dg"))
    >>> generator.initial_seed()
    42
    """
    written = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if written is not None:
        try:
            data = _unpacked(base64.b85decode(written[1]))
        except ValueError:
            data = b""
        # Several texts may decode to the same bytes.
        if _is_generator_state(data) and generator_to_text(_as_tensor(data)) == text:
            return _as_tensor(data)
    raise StateMismatch(
        "generator",
        saved=text,
        present="a generator's state as text",
        remedy="use what generator_to_text() returned, unchanged",
    )


def checked_generator_state(state: Any, field: str) -> torch.Tensor:
    """Return a copy of a CPU generator's state, from a tensor on any device.

    Raises:
        StateMismatch: ``state`` is not such a state; the error names ``field``.
    """
    return _as_tensor(_generator_bytes(state, field))


def _generator_bytes(state: Any, field: str) -> bytes:
    if (
        isinstance(state, torch.Tensor)
        and state.dtype == torch.uint8
        and state.ndim == 1
        and state.layout == torch.strided
        and not state.is_meta
    ):
        data = bytes(state.detach().cpu().numpy().tobytes())
        if _is_generator_state(data):
            return data
    saved = f"{state.dtype} {tuple(state.shape)}" if isinstance(state, torch.Tensor) else state
    raise StateMismatch(
        field,
        saved=saved,
        present=f"a CPU generator's state, uint8 [{_GENERATOR_BYTES}]",
        remedy="use what torch.Generator.get_state() returned, unchanged",
    )


def _is_generator_state(data: bytes) -> bool:
    """Whether the bytes are valid; otherwise torch may read out of bounds."""
    if len(data) != _GENERATOR_BYTES:
        return False
    _, left, seeded, following = _HEADER.unpack_from(data)
    drawn_from = 1 <= left <= _NUM_WORDS and left + following == _NUM_WORDS + 1
    in_place = drawn_from or (left, following) == (1, 0)
    return seeded == 1 and in_place and int(_words(data).max()) < 1 << 32


def _words(data: bytes) -> npt.NDArray[np.uint64]:
    return np.frombuffer(data, np.uint64, _NUM_WORDS, _HEADER.size)


def _seeded(seed: bytes) -> bytes:
    """Return the state of a generator that was seeded and not drawn from."""
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(seed, sys.byteorder))
    return bytes(generator.get_state().numpy().tobytes())


def _unpacked(packed: bytes) -> bytes:
    if len(packed) <= _SEED:
        return _seeded(packed.ljust(_SEED, b"\0"))
    end = _HEADER.size + _NUM_WORDS * 4
    packed = packed.ljust(_PACKED_BYTES, b"\0")
    words = np.frombuffer(packed[_HEADER.size : end], np.uint32).astype(np.uint64)
    return packed[: _HEADER.size] + words.tobytes() + packed[end:]


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
