"""Small pieces of a file, read in windows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.streams import Lookahead

FILE = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)


def reads_of(step: int, window: int) -> list[tuple[int, int]]:
    """Return offset and size of the reads for 12 bytes at every ``step``."""
    reads = []

    def read(offset: int, size: int) -> Bytes:
        reads.append((offset, size))
        return FILE[offset : offset + size]

    ahead = Lookahead(read, len(FILE), window=window)
    for at in range(0, len(FILE) - 12, step):
        assert ahead.at(at, 12) == FILE[at : at + 12].tobytes()
    return reads


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 40)), max_size=50))
def test_pieces_are_those_of_the_file(pieces: list[tuple[int, int]]) -> None:
    ahead = Lookahead(lambda offset, size: FILE[offset : offset + size], len(FILE), window=64)
    at = 0
    for gap, size in pieces:
        assert ahead.at(at, size) == FILE[at : at + size].tobytes()
        at += gap


def test_far_pieces_are_read_apart_and_near_ones_in_growing_windows() -> None:
    """Bytes between far pieces are not read."""
    far, near = reads_of(step=50_000, window=64), reads_of(step=20, window=64)
    assert [size for _, size in far] == [64] * 21
    assert len(near) < 12
    assert max(size for _, size in near) > 200_000


def test_nothing_behind_the_end_is_asked_for() -> None:
    for step in (20, 3000, 50_000):
        assert all(offset + size <= len(FILE) for offset, size in reads_of(step, window=4096))
