"""read_file: the bytes of a file as a tensor, with the fewest calls."""

from __future__ import annotations

import os

import torch

from stateful_gpu_loader.datasets.storage.memory import Memory, new_memory


def read_file(path: str, memory: Memory = new_memory) -> torch.Tensor:
    """The file's bytes: uint8 [num_bytes] on the CPU; the GIL is released while it is read.

    Args:
        path: of the file.
        memory: where its bytes go.

    Raises:
        OSError: the file cannot be opened or read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"abc")
    ...     file.flush()
    ...     read_file(file.name)
    tensor([97, 98, 99], dtype=torch.uint8)
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        rest = data = memory(os.fstat(descriptor).st_size)
        # One read gives at most 2 GiB, and less on some network file systems.
        while len(rest) and (got := os.readv(descriptor, [rest.data])):
            rest = rest[got:]
    finally:
        os.close(descriptor)
    return torch.from_numpy(data[: len(data) - len(rest)])
