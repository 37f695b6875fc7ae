"""FramedSource: records that carry their lengths, in one file or several, by index."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.framed.framing import Bytes, Framing, Offsets, Place
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.failures import failed
from stateful_gpu_loader.datasets.storage.index_files import cached_index, identity_of
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles, file_number
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths, is_url, names_of
from stateful_gpu_loader.datasets.storage.streams import is_compressed
from stateful_gpu_loader.state.content_id import ContentDigest

AnyPaths = AnyPath | Iterable[AnyPath]

_WINDOW, _REMOTE_WINDOW = 1 << 12, 1 << 20
_CHECKED, _CHECKED_REMOTE = 16, 2


class FramedSource(Source):
    """The base of TFRecordSource and RecordIOSource; a subclass makes samples of the records.

    Args:
        paths: the files, one after the other.
        framing: where their records begin and end.
        given: the offsets of the records, int64 [n + 1] for each file, from the sizes of the files;
            None where there is no index, and one is built by walking over the files.
        cache_dir: where a built index is kept; None is beside the file.
        stream_class: what reads compressed files, for the text of an error.

    Attributes:
        paths: absolute, or URLs.

    Raises:
        OSError: a file is not there or cannot be read.
        ValueError: a file is damaged, compressed or unlike its index, or no file has a record.
    """

    paths: list[str]

    def __init__(
        self,
        paths: list[str],
        framing: Framing,
        *,
        given: Callable[[list[int]], list[Offsets]] | None,
        cache_dir: AnyPath | None,
        stream_class: str,
    ) -> None:
        for path in paths:
            if is_compressed(path):
                raise ValueError(
                    f"{path!r} is compressed: its records cannot be read by index. Remedy: read it "
                    f"with {stream_class}, or decompress it"
                )
        self.paths = paths
        self._framing = framing
        self._files = OpenFiles(numbers={path: file_number(path) for path in paths})
        kept = None if cache_dir is None else str(cache_dir)
        if given is None:
            self._offsets = [self._built(path, kept) for path in paths]
        else:
            sizes = [identity_of(path)[0] for path in paths]
            self._offsets = given(sizes)
            for path, size, offsets in zip(paths, sizes, self._offsets, strict=True):
                self._check(path, size, offsets)
        counts = self.block_lengths()
        self._starts: list[int] = [0, *np.cumsum(counts).tolist()]
        self._fingerprint: str | None = None
        if not len(self):
            raise ValueError(
                f"no record in {', '.join(paths[:5])}. Remedy: give files with records"
            )

    def __len__(self) -> int:
        return self._starts[-1]

    def block_lengths(self) -> npt.NDArray[np.int64]:
        """int64 [num_files]: the samples of each file, in the order of the indices."""
        return np.array([len(offsets) - 1 for offsets in self._offsets], dtype=np.int64)

    @abstractmethod
    def record(self, index: int) -> dict[str, Any]:
        """All that the record at ``0 <= index < len(self)`` holds, by name."""

    def fingerprint(self) -> str:
        """blake2b of the files' names and of where each record begins and ends, and the choice.

        Equal wherever the files lie; another one once a record is added, removed or of another
        length. What is overwritten in place by as many bytes is not noticed.
        """
        if self._fingerprint is None:
            digest = ContentDigest(self._framing.kind)
            for name, offsets in zip(names_of(self.paths), self._offsets, strict=True):
                digest.add_name(name).add_blocks([offsets.astype("<i8").tobytes()])
            self._fingerprint = f"{len(self)} records, {digest.text()}, {self._choice()}"
        return self._fingerprint

    @abstractmethod
    def _choice(self) -> str:
        """What is made of a record, for the fingerprint."""

    def _payload(self, index: int) -> tuple[Bytes, Place]:
        """uint8 [n], this record's own memory; and where it lies."""
        if not 0 <= index < len(self):
            raise IndexError(f"{index = } is outside of 0 to {len(self) - 1}. Remedy: keep within")
        file = bisect_right(self._starts, index) - 1
        number = index - self._starts[file]
        start, end = self._offsets[file][number : number + 2].tolist()
        place = Place(self.paths[file], number, start)
        try:
            framed = self._files.read(place.path, start, end - start)
        except ValueError as error:
            raise place.damaged(f"the file has become shorter ({error})") from error
        except OSError as error:
            raise failed(error, place.path, f"sample {index = }") from error
        return self._framing.payload(framed, place), place

    def _built(self, path: str, cache_dir: str | None) -> Offsets:
        def build() -> dict[str, npt.NDArray[np.generic]]:
            window = _REMOTE_WINDOW if is_url(path) else _WINDOW
            read = partial(OpenFiles().read, path)
            return {"offsets": self._framing.walk(path, identity_of(path)[0], read, window=window)}

        index = cached_index(path, kind=self._framing.kind, build=build, cache_dir=cache_dir)
        return index["offsets"].astype(np.int64, copy=False)

    def _check(self, path: str, size: int, offsets: Offsets) -> None:
        """An index that was given is of this file: its end, and a few of its records."""
        if offsets[-1] != size:
            raise ValueError(
                f"{path!r} has {size} bytes, and its index ends at byte {offsets[-1]}. Remedy: "
                "make the index anew, or leave index_paths out"
            )
        # Not the source's own: until a sample is read, it has no file open.
        files = OpenFiles()
        checked = _CHECKED_REMOTE if is_url(path) else _CHECKED
        last = len(offsets) - 2
        for number in sorted({last * i // max(1, checked - 1) for i in range(checked)}):
            if 0 <= number <= last:
                start, end = offsets[number : number + 2].tolist()
                length = min(self._framing.header_size, end - start)
                header = files.read(path, start, length).tobytes()
                self._framing.check_extent(header, end - start, Place(path, number, start))

    def __repr__(self) -> str:
        names = names_of(self.paths)
        files = names[0] if len(names) == 1 else f"{len(names)} files"
        return f"{type(self).__name__}({files}, {len(self)} records, {self._choice()})"


def one_index_each(index_paths: AnyPaths, paths: list[str]) -> list[str]:
    """The paths of the indices.

    Raises:
        ValueError: there are not as many as files.
    """
    found = as_paths(index_paths)
    if len(found) != len(paths):
        raise ValueError(
            f"{len(paths)} files and {len(found)} indices. Remedy: give one for each file, in the "
            "same order"
        )
    return found
