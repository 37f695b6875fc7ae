"""TarIndex: where the members of one tar lie, and which of them make a sample."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.damage import damaged
from stateful_gpu_loader.datasets.storage.index_files import Index, cached_index, identity_of
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.storage.streams import is_compressed
from stateful_gpu_loader.datasets.tar.member import SampleGrouping
from stateful_gpu_loader.datasets.tar.members import Members
from stateful_gpu_loader.datasets.tar.readers import RangeReader

_KIND = "tar-1"
_TWICE = "pack the files anew, each name once"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TarIndex:
    """The samples of one tar in their order; those of several follow each other the same way."""

    members: Numbers
    """int64 [num_members, 3]: byte of the content, bytes of it, CRC-32 of the header before it."""
    extensions: Numbers
    """int64 [num_members]: of each member, its number in ``vocabulary``."""
    vocabulary: tuple[str, ...]
    """The extensions that occur, lower-cased."""
    starts: Numbers
    """int64 [num_samples + 1]: a sample's first member; its last is before the next one's first."""
    keys: bytes
    """The keys of all samples, one after the other, as file names are encoded."""
    key_ends: Numbers
    """int64 [num_samples + 1]: key i is ``keys[key_ends[i]:key_ends[i + 1]]``."""
    ignored: Numbers
    """int64 [n]: bytes of the contents of files that belong to no sample, ascending."""

    def key(self, sample: int) -> str:
        """The key of a sample."""
        return os.fsdecode(self.keys[self.key_ends[sample] : self.key_ends[sample + 1]])

    def extensions_of(self, sample: int) -> list[str]:
        """The extensions of a sample's members, in their order."""
        codes = self.extensions[self.starts[sample] : self.starts[sample + 1]]
        return [self.vocabulary[code] for code in codes.tolist()]


def tar_index(files: OpenFiles, path: str, cache_dir: str | None) -> TarIndex:
    """The index of a tar, kept from an earlier time or built by reading its headers.

    Raises:
        OSError: the tar cannot be opened or read.
        ValueError: it is damaged, cut off, compressed, or no tar; the text names the byte.
    """
    if is_compressed(path):
        raise ValueError(
            f"{path!r} is compressed: its samples cannot be read by their index. Remedy: "
            "decompress it, or stream it with TarShards"
        )
    build = partial(_build, files, path)
    arrays: Any = cached_index(path, kind=_KIND, build=build, cache_dir=cache_dir)
    vocabulary = arrays["vocabulary"].tobytes().decode("utf-8", "surrogateescape")
    return TarIndex(
        members=arrays["members"],
        extensions=arrays["extensions"],
        vocabulary=tuple(vocabulary.split("/")[:-1]),
        starts=arrays["starts"],
        keys=arrays["keys"].tobytes(),
        key_ends=arrays["key_ends"],
        ignored=arrays["ignored"],
    )


def joined(parts: list[TarIndex]) -> TarIndex:
    """Several indices as one; extensions are numbered anew."""
    vocabulary = list(dict.fromkeys(name for part in parts for name in part.vocabulary))
    numbers = {name: number for number, name in enumerate(vocabulary)}
    codes = [
        np.array([numbers[name] for name in part.vocabulary], dtype=np.int64)[part.extensions]
        for part in parts
    ]
    return TarIndex(
        members=np.concatenate([part.members for part in parts]),
        extensions=np.concatenate(codes),
        vocabulary=tuple(vocabulary),
        starts=_joined_ends([part.starts for part in parts]),
        keys=b"".join(part.keys for part in parts),
        key_ends=_joined_ends([part.key_ends for part in parts]),
        ignored=np.empty(0, dtype=np.int64),
    )


def _joined_ends(parts: list[Numbers]) -> Numbers:
    lengths = [np.diff(part) for part in parts]
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)


def _build(files: OpenFiles, path: str) -> Index:
    size, _ = identity_of(path)
    grouping = SampleGrouping()
    numbers: dict[str, int] = {}
    members: list[tuple[int, int, int]] = []
    extensions: list[int] = []
    starts: list[int] = []
    keys: list[bytes] = []
    ignored: list[int] = []
    for member in Members(RangeReader(files, path, size), path):
        try:
            place = grouping.place(member.name)
        except ValueError as error:
            raise damaged(path, str(error), offset=member.start, remedy=_TWICE) from None
        if place is None:
            ignored.append(member.offset)
            continue
        begins, extension = place
        if begins:
            starts.append(len(members))
            keys.append(os.fsencode(grouping.key or ""))
        members.append((member.offset, member.size, member.mark))
        extensions.append(numbers.setdefault(extension, len(numbers)))
    # An extension is what follows the last "/" of a name, so it holds none.
    vocabulary = "".join(f"{name}/" for name in numbers).encode("utf-8", "surrogateescape")
    ends = np.cumsum([0, *map(len, keys)], dtype=np.int64)
    return {
        "members": np.array(members, dtype=np.int64).reshape(-1, 3),
        "extensions": np.array(extensions, dtype=np.int64),
        "vocabulary": np.frombuffer(vocabulary, dtype=np.uint8),
        "starts": np.array([*starts, len(members)], dtype=np.int64),
        "keys": np.frombuffer(b"".join(keys), dtype=np.uint8),
        "key_ends": ends,
        "ignored": np.array(ignored, dtype=np.int64),
    }
