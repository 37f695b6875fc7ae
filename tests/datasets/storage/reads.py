"""Records of what is read of files, and storage that fails."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets the offset and the size of each read."""
    reads, read = [], OpenFiles.read

    def recorded(files: OpenFiles, path: str, offset: int, size: int) -> Bytes:
        reads.append((offset, size))
        return read(files, path, offset, size)

    monkeypatch.setattr(OpenFiles, "read", recorded)
    return reads


def recorded_fills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[memoryview]]]:
    """Return a list that gets the path of each read into given memory, and that memory."""
    fills, fill = [], OpenFiles.fill

    def recorded(files: OpenFiles, path: str, offset: int, parts: Sequence[memoryview]) -> None:
        fills.append((path, parts))
        fill(files, path, offset, parts)

    monkeypatch.setattr(OpenFiles, "fill", recorded)
    return fills


def break_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each further read fail, as of a lost connection."""

    def broken(files: OpenFiles, path: str, offset: int, size: int) -> Any:
        raise OSError(errno.EIO, "lost", path)

    monkeypatch.setattr(OpenFiles, "read", broken)
