"""LmdbSource: records of one or several LMDBs by position, whatever a record holds."""

from __future__ import annotations

import bisect
import errno
import os
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.damage import damaged
from stateful_gpu_loader.datasets.lmdb.environment import LmdbIndex, absolute, environment_at
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.paths import AnyPath
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.content_id import ContentDigest

RECORDS_IN_FINGERPRINT = 32
"""Records of each database whose content the fingerprint includes."""


class LmdbSource(Source):
    """The base of sources over LMDB: a format defines :meth:`parse` and :meth:`settings`.

    Records come in the order of their keys, those of the first path first, as in DALI's readers.
    The keys are read once, here (under 1 s a million, without the records), and travel with the
    source into workers. A database must not be written while it is read.

    Args:
        paths: the folder with ``data.mdb``, or the file itself; or several, one after the other.

    Attributes:
        paths: the paths, absolute.

    Raises:
        FileNotFoundError: no such path.
        OSError: it is no LMDB, or truncated.
        ValueError: a database holds no record, or no path was given.
        MissingDependency: the package ``lmdb`` is not installed.
    """

    paths: tuple[str, ...]

    def __init__(self, paths: AnyPath | Iterable[AnyPath]) -> None:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given:
            raise ValueError("no paths were given. Remedy: give at least one")
        self._environments = [environment_at(path) for path in given]
        self.paths = tuple(map(absolute, given))
        self._indexes: list[LmdbIndex] = []
        for environment in self._environments:
            index = environment.index()
            if not len(index.keys):
                raise ValueError(
                    f"{environment.path!r} holds no record. Remedy: check the path; sub-databases "
                    "are not read"
                )
            self._indexes.append(index)
        self._ends: list[int] = np.cumsum([len(each.keys) for each in self._indexes]).tolist()
        self._fingerprint: str | None = None

    @abstractmethod
    def parse(self, record: memoryview, index: int) -> tuple[npt.NDArray[np.uint8], Any]:
        """A record's image as a file, uint8 [num_bytes], and its target.

        Args:
            record: of which the image may be a part.
            index: of the sample.

        Raises:
            ValueError: the record is malformed.
        """

    @abstractmethod
    def settings(self) -> str:
        """What the format and its arguments make of the records, for the fingerprint."""

    def __len__(self) -> int:
        return self._ends[-1]

    def read(self, index: int) -> EncodedSample:
        """The image, its target, and the path and key of its record.

        Raises:
            ValueError: the record is malformed; the text names path, key and byte.
            OSError: the database cannot be opened, or has no such key any more.
        """
        number, key = self._place(index)
        try:
            data, target = self.parse(self._record(number, key).data, index)
        except ValueError as error:
            raise damaged(self.paths[number], str(error), record=_text(key)) from error
        name = f"{self.paths[number]}, record {_text(key)!r}"
        return EncodedSample(torch.from_numpy(data), target, name)

    def _place(self, index: int) -> tuple[int, bytes]:
        """The number of the database, and the key there, of a sample."""
        number = bisect.bisect_right(self._ends, index)
        start = self._ends[number - 1] if number else 0
        return number, self._indexes[number].keys[index - start]

    def _record(self, number: int, key: bytes) -> npt.NDArray[np.uint8]:
        """uint8 [num_bytes]: the whole record of a key in a database."""
        if key in self._indexes[number].outside:
            raise ValueError("damaged LMDB: the value would lie beyond the file's end")
        record = self._environments[number].read(key)
        if record is None:
            raise OSError(
                errno.ESTALE,
                f"record {_text(key)!r} was here when the keys were read, and is not any more. "
                "Remedy: make the source anew, and do not write a database that is read",
                self.paths[number],
            )
        return record

    def fingerprint(self) -> str:
        """blake2b of keys and lengths of all records in order, and of 32 whole ones a database.

        Keys alone are often mere numbers, the same for every data set. The 32 records are evenly
        spread, the first and the last among them; so other labels throughout are noticed. A
        single record that changed in place and kept its length is noticed only if it is one of
        them. Equal for copies at other paths, and for databases that were written anew with the
        same records.
        """
        if self._fingerprint is None:
            digest = ContentDigest(f"lmdb 1, {self.settings()}")
            for number, index in enumerate(self._indexes):
                keys = index.keys
                places = np.linspace(0, len(keys) - 1, min(len(keys), RECORDS_IN_FINGERPRINT))
                chosen = [keys[int(place)] for place in places]
                records = [
                    self._record(number, key).tobytes()
                    for key in chosen
                    if key not in index.outside
                ]
                digest.add_blocks((*keys.blocks(), index.lengths.encode(), *records))
            self._fingerprint = f"{len(self)} LMDB records, {digest.text()}"
        return self._fingerprint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.paths)!r}, {len(self)} records)"


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")
