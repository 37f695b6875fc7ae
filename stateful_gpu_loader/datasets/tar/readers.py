"""Two ways through the bytes of an archive: by ranges of a file, and along a stream."""

from __future__ import annotations

from typing import IO

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.storage.paths import is_url

_LOCAL_WINDOW = 4 << 10
_REMOTE_WINDOW = 8 << 20
_PIECE = 64 << 20
"""Bytes that are reserved at a time, for a damaged header may claim any size."""


class RangeReader:
    """Reads windows of a file whose size is known, and skips what lies between them.

    A window is 4 KiB of a local file, which skips the contents of images, and 8 MiB of a remote
    one, where a request takes as long as that transfer.
    """

    def __init__(self, files: OpenFiles, path: str, size: int) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._width = _REMOTE_WINDOW if is_url(path) else _LOCAL_WINDOW
        self._window = b""
        self._window_start = 0
        self.position = 0

    def read(self, size: int) -> bytes:
        size = min(size, self._size - self.position)
        begin = self.position - self._window_start
        if begin + size > len(self._window):
            width = min(max(size, self._width), self._size - self.position)
            self._window = self._files.read(self._path, self.position, width).tobytes()
            self._window_start, begin = self.position, 0
        self.position += size
        return self._window[begin : begin + size]

    def advance(self, position: int) -> bool:
        self.position = min(position, self._size)
        return position <= self._size


class StreamReader:
    """Reads a stream from where it is, and reads over what is skipped.

    Args:
        stream: buffered; it is not closed.
        position: of its next byte in the archive.
    """

    def __init__(self, stream: IO[bytes], position: int = 0) -> None:
        self._stream = stream
        self.position = position

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self.position += len(content)
        return content

    def advance(self, position: int) -> bool:
        while self.position < position and self.read(min(position - self.position, 1 << 20)):
            pass
        return self.position >= position

    def read_array(self, size: int) -> npt.NDArray[np.uint8] | None:
        """uint8 [size], in memory of its own; None where the file ends before."""
        pieces = []
        while size:
            piece = np.empty(min(size, _PIECE), dtype=np.uint8)
            done = 0
            while done < len(piece) and (got := self._fill(piece[done:])):
                done += got
            self.position += done
            if done < len(piece):
                return None
            pieces.append(piece)
            size -= done
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([np.empty(0, dtype=np.uint8), *pieces])

    def _fill(self, piece: npt.NDArray[np.uint8]) -> int:
        return int(self._stream.readinto(piece.data))  # type: ignore[attr-defined]
