"""A program that fills the GPU's memory; the loader continues once the memory is free again.

Run in a separate process, because libraries beside torch may not survive a full GPU: ``python -m
tests.gpu.full_memory FOLDER BACKEND``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.conformance import same
from tests.gpu.photos import make_loader

_LEFT = 8 * 2**20
"""Bytes that stay free: fewer than the libraries take for a batch."""


def main() -> None:
    """Print ``refused`` and ``the same`` on success."""
    root, backend = Path(sys.argv[1]), sys.argv[2]
    expected = [[part.cpu() for part in batch] for batch in make_loader(root, decoder=backend)]
    loader = make_loader(root, decoder=backend, num_workers=2)
    batches = iter(loader)
    delivered = [[part.cpu() for part in next(batches)]]
    torch.cuda.empty_cache()
    filling = [_fill()]
    refusals = 0
    while refusals < 3 and len(delivered) < len(expected):
        state = loader.state_dict()
        try:
            delivered.append([part.cpu() for part in next(batches)])
        except torch.OutOfMemoryError as error:
            print(f"refused: {str(error).partition('Remedy')[0]}")
            assert loader.state_dict() == state
            refusals += 1
    filling.clear()
    torch.cuda.empty_cache()
    delivered += [[part.cpu() for part in batch] for batch in batches]
    print("the same" if same(delivered, expected) else "not the same")


def _fill() -> list[torch.Tensor]:
    """Fill all but a little of the GPU's memory, in pieces of every size."""
    pieces, size = [], 2**36
    while size >= 2**20:
        free, _ = torch.cuda.mem_get_info()
        if free <= _LEFT:
            break
        try:
            pieces.append(torch.empty(min(size, free - _LEFT), dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return pieces


if __name__ == "__main__":
    main()
