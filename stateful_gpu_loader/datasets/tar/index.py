"""TarIndex: the positions of a tar's members, and which members form a sample.

:func:`select` finds the samples that have the requested image and target.

An index is built from the tar or from an index file of DALI's ``wds2idx``. That file is text: a
line ``v1.2 <samples>``, then a line for each sample with ``<extension> <byte> <size> <name>`` for
each component. ``v1.1`` has no names. See ``wds2idx.py`` in DALI's wheels.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.storage.failures import INDEX_REMEDY, damaged
from stateful_gpu_loader.datasets.storage.index_files import (
    Index,
    array_in,
    cached_index,
    check_ends,
    identity_of,
    progress_bar,
)
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.storage.streams import is_compressed, open_stream
from stateful_gpu_loader.datasets.tar.members import BLOCK, Link, Members, RangeReader
from stateful_gpu_loader.datasets.tar.samples import (
    MemberChoice,
    SampleGrouping,
    link_note,
    split_name,
)

KIND = "tar-2"
"""Name and version of a kept index."""
_TWICE = "pack the files again, each name once"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TarIndex:
    """The samples of one tar, or of several tars in a row."""

    members: Numbers
    """int64 [num_members, 3]: content offset and size in bytes, CRC-32 of the header block."""
    extensions: Numbers
    """int64 [num_members]: index of each member's extension in ``vocabulary``."""
    vocabulary: tuple[str, ...]
    """All extensions, lower-cased."""
    starts: Numbers
    """int64 [num_samples + 1]: first member of each sample, then the number of members."""
    keys: bytes
    """The keys of all samples, concatenated, encoded as file names."""
    key_ends: Numbers
    """int64 [num_samples + 1]: key i is ``keys[key_ends[i]:key_ends[i + 1]]``."""
    ignored: Numbers
    """int64 [n]: content offsets of files that belong to no sample, ascending."""
    links: tuple[Link, ...]
    """Links with the names of members; they have no content and belong to no sample."""

    def key(self, sample: int) -> str:
        return os.fsdecode(self.keys[self.key_ends[sample] : self.key_ends[sample + 1]])

    def extensions_of(self, sample: int) -> list[str]:
        codes = self.extensions[self.starts[sample] : self.starts[sample + 1]]
        return [self.vocabulary[code] for code in codes.tolist()]


def tar_index(files: OpenFiles, path: str, cache_dir: str | None) -> TarIndex:
    """Return the index of a tar: a kept index, or one built from the tar's headers.

    Raises:
        OSError: the tar cannot be opened or read.
        ValueError: the file is damaged, truncated, compressed or no tar; the message has the byte.
    """
    if is_compressed(path):
        raise ValueError(
            f"{path!r} is compressed: its samples cannot be read by their index. Remedy: "
            "decompress it, or stream it with TarShards"
        )
    build = partial(_build, files, path)
    check = partial(_check, path)
    arrays: Any = cached_index(path, kind=KIND, build=build, check=check, cache_dir=cache_dir)
    vocabulary = _text(arrays["vocabulary"])
    return TarIndex(
        members=arrays["members"],
        extensions=arrays["extensions"],
        vocabulary=tuple(vocabulary.split("/")[:-1]),
        starts=arrays["starts"],
        keys=arrays["keys"].tobytes(),
        key_ends=arrays["key_ends"],
        ignored=arrays["ignored"],
        links=_links(arrays["links"]),
    )


def _check(path: str, index: Index, size: int) -> None:
    """Raise ValueError unless the arrays index a tar of ``size`` bytes.

    For a local tar the first and last headers are compared, too.
    """
    members = array_in(index, "members", np.int64, columns=3)
    extensions = array_in(index, "extensions", np.int64)
    vocabulary = _text(array_in(index, "vocabulary", np.uint8))
    starts = array_in(index, "starts", np.int64)
    keys = array_in(index, "keys", np.uint8)
    key_ends = array_in(index, "key_ends", np.int64)
    array_in(index, "ignored", np.int64)
    links = _text(array_in(index, "links", np.uint8))
    check_ends("starts", starts, total=len(members), shortest=1)
    check_ends("key_ends", key_ends, total=len(keys), shortest=0)
    if len(extensions) != len(members) or len(key_ends) != len(starts) or links.count("\0") % 2:
        raise ValueError("its arrays do not match")
    if ((extensions < 0) | (extensions >= vocabulary.count("/"))).any():
        raise ValueError("a member in it has an unknown extension")
    offsets, sizes, marks = members.T
    is_inside = (offsets >= BLOCK) & (sizes >= 0) & (offsets <= size) & (sizes <= size)
    if not is_inside.all() or (offsets + sizes > size).any() or (marks >> 32).any():
        raise ValueError(f"a member in it is outside the tar's {size} bytes")
    if is_url(path) or not len(members):
        return
    files = OpenFiles(limit=1)  # private: a source opens files only to read samples
    for offset, _, mark in members[[0, -1]].tolist():
        if zlib.crc32(files.read(path, offset - BLOCK, BLOCK).data) != mark:
            raise ValueError(f"another header is before byte {offset}: the tar was replaced")


def _text(array: npt.NDArray[Any]) -> str:
    return array.tobytes().decode("utf-8", "surrogateescape")


def _links(array: npt.NDArray[Any]) -> tuple[Link, ...]:
    parts = _text(array).split("\0")[:-1]
    return tuple(map(Link, parts[::2], parts[1::2]))


def joined(parts: list[TarIndex]) -> TarIndex:
    """Concatenate indices; extensions are numbered again."""
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
        links=(),
    )


@dataclass(frozen=True)
class Selection:
    """The selected samples of all tars."""

    samples: Numbers
    """int64 [n]: sample numbers, counted over all tars."""
    members: Numbers
    """int64 [n, slots]: the chosen members of each sample, counted over all tars."""
    ends: list[int]
    """Number of selected samples up to the end of each tar."""


def select(indices: list[TarIndex], choice: MemberChoice, paths: list[str]) -> Selection:
    """Return the samples that have a member for each slot.

    Args:
        choice: the slots, and whether samples without one are an error or are skipped.

    Raises:
        ValueError: samples lack a member and are not to be skipped, or no sample is left. The
            message counts the samples and names the first.
    """
    found = [_members(index, choice) for index in indices]
    lacking = [np.asarray((members < 0).any(axis=1)) for members in found]
    num_lacking = sum(int(lack.sum()) for lack in lacking)
    total = sum(map(len, lacking))
    if num_lacking and (choice.missing == "error" or num_lacking == total):
        raise ValueError(_complaint(indices, choice, paths, found))
    if not total:
        raise ValueError(
            f"{paths[0]!r}{' and the other tars hold' if paths[1:] else ' holds'} no sample: no "
            "file with a name like 'key.jpg'. Remedy: correct the path"
        )
    kept = [np.flatnonzero(~lack) for lack in lacking]
    before_samples = np.cumsum([0, *(len(lack) for lack in lacking)])
    before_members = np.cumsum([0, *(len(index.members) for index in indices)])
    return Selection(
        np.concatenate([rows + start for rows, start in zip(kept, before_samples, strict=False)]),
        np.concatenate(
            [
                members[rows] + start
                for members, rows, start in zip(found, kept, before_members, strict=False)
            ]
        ),
        np.cumsum([len(rows) for rows in kept]).tolist(),
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
    with progress_bar(f"indexing {path}", size, "B") as note:
        found = Members(RangeReader(files, path, size), path, INDEX_REMEDY)
        for member in found:
            note(member.start)
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
    # An extension contains no "/".
    vocabulary = "".join(f"{name}/" for name in numbers).encode("utf-8", "surrogateescape")
    ends = np.cumsum([0, *map(len, keys)], dtype=np.int64)
    links = "".join(
        f"{name}\0{what}\0" for name, what in found.links if split_name(name) is not None
    )
    return {
        "members": np.array(members, dtype=np.int64).reshape(-1, 3),
        "extensions": np.array(extensions, dtype=np.int64),
        "vocabulary": np.frombuffer(vocabulary, dtype=np.uint8),
        "starts": np.array([*starts, len(members)], dtype=np.int64),
        "keys": np.frombuffer(b"".join(keys), dtype=np.uint8),
        "key_ends": ends,
        "ignored": np.array(ignored, dtype=np.int64),
        "links": np.frombuffer(links.encode("utf-8", "surrogateescape"), dtype=np.uint8),
    }


def _members(index: TarIndex, choice: MemberChoice) -> Numbers:
    """Return int64 [samples, slots]: the member of a sample for each slot, or -1."""
    num_samples, num_members = len(index.starts) - 1, len(index.members)
    found = np.full((num_samples, len(choice.slots)), -1, dtype=np.int64)
    if not num_samples:
        return found
    for slot, alternatives in enumerate(choice.slots):
        ranks = np.full(len(index.vocabulary), len(alternatives), dtype=np.int64)
        for rank, name in reversed(list(enumerate(alternatives))):
            if name in index.vocabulary:
                ranks[index.vocabulary.index(name)] = rank
        # The best rank in a sample and its member, combined in one number.
        both = ranks[index.extensions] * num_members + np.arange(num_members)
        best = np.minimum.reduceat(both, index.starts[:-1])
        there = best < len(alternatives) * num_members
        found[there, slot] = best[there] % num_members
    return found


def _complaint(
    indices: list[TarIndex],
    choice: MemberChoice,
    paths: list[str],
    found: list[Numbers],
) -> str:
    total = sum(map(len, found))
    counts = [
        f"{number} lack the {choice.names(slot)}"
        for slot in range(len(choice.slots))
        if (number := sum(int((members[:, slot] < 0).sum()) for members in found))
    ]
    tar = next(number for number, members in enumerate(found) if (members < 0).any())
    sample = int((found[tar] < 0).any(axis=1).argmax())
    note = link_note(indices[tar].links, indices[tar].key(sample), choice.wanted)
    return (
        f"of {total} samples in {len(paths)} tars {' and '.join(counts)}. The first: key "
        f"{indices[tar].key(sample)!r} in {paths[tar]!r} has "
        f"{', '.join(map(repr, indices[tar].extensions_of(sample)))}.{note} Remedy: pass the "
        "members' extensions as image= and target=, or missing='skip' to leave such samples out; "
        "if the members of a key are not consecutive, pack the tar again in the order of the "
        "names"
    )


# A name may contain blanks and ends with its extension.
_COMPONENT = {
    "v1.1": re.compile(r"(\S*) ([0-9]{1,19}) ([0-9]{1,19})(?: |$)"),
    "v1.2": re.compile(r"(\S*) ([0-9]{1,19}) ([0-9]{1,19}) .*?\1(?: (?=\S* [0-9]+ [0-9]+ )|$)"),
}
_HEADING = re.compile(r"(v1\.[12])\s+([0-9]{1,19})\s*")
_REMEDY = "make the index of this tar again with wds2idx, or leave index_paths= out"


def samples_of(index: TarIndex, path: str, tar: str) -> TarIndex:
    """Return the samples listed in an index file, in its order, from the tar's own index.

    Each entry must match a member of the tar in offset, size and extension. Files outside
    webdataset's samples are left out.

    Raises:
        OSError: the index file cannot be read.
        ValueError: the index file is malformed, or belongs to another tar.
    """
    with open_stream(path) as stream:
        text = stream.read().decode("utf-8", "surrogateescape")
    head, _, body = text.partition("\n")
    heading = _HEADING.fullmatch(head)
    if heading is None:
        raise damaged(path, f"{head[:80]!r} is not a heading of wds2idx", record=0, remedy=_REMEDY)
    lines = body.splitlines()
    version, announced = heading[1], int(heading[2])
    if len(lines) != announced:
        what = f"it announces {announced} samples and has {len(lines)}"
        raise damaged(path, what, record=0, remedy=_REMEDY)
    numbers = {offset: number for number, offset in enumerate(index.members[:, 0].tolist())}
    ignored = set(index.ignored.tolist())
    members: list[int] = []
    starts: list[int] = []
    for record, line in enumerate(lines, start=1):
        begin = len(members)
        for extension, offset, size in _components(line, version, path, record):
            if offset in ignored:
                continue
            number = numbers.get(offset)
            if number is None:
                what = f"{tar!r} has no member at byte {offset}"
                raise damaged(path, what, record=record, remedy=_REMEDY)
            known = index.vocabulary[index.extensions[number]], int(index.members[number, 1])
            if known != (extension.lower(), size):
                what = (
                    f"it names {size} bytes of {extension[:80]!r} at byte {offset} of {tar!r}, "
                    f"where {known[1]} of {known[0]!r} are"
                )
                raise damaged(path, what, record=record, remedy=_REMEDY)
            members.append(number)
        if len(members) > begin:
            starts.append(begin)
    return _taken(index, np.array(members, dtype=np.int64), [*starts, len(members)])


def _components(line: str, version: str, path: str, record: int) -> list[tuple[str, int, int]]:
    """Return (extension, byte, size) of each component."""
    found, at = [], 0
    while at < len(line):
        match = _COMPONENT[version].match(line, at)
        if match is None:
            what = f"{line[at : at + 80]!r} is not a component"
            raise damaged(path, what, record=record, remedy=_REMEDY)
        found.append((match[1], int(match[2]), int(match[3])))
        at = match.end()
    return found


def _taken(index: TarIndex, members: Numbers, starts: list[int]) -> TarIndex:
    first = members[starts[:-1]]
    samples = np.searchsorted(index.starts, first, side="right") - 1
    keys = [
        index.keys[begin:end]
        for begin, end in zip(
            index.key_ends[samples].tolist(), index.key_ends[samples + 1].tolist(), strict=True
        )
    ]
    return TarIndex(
        members=index.members[members],
        extensions=index.extensions[members],
        vocabulary=index.vocabulary,
        starts=np.array(starts, dtype=np.int64),
        keys=b"".join(keys),
        key_ends=np.cumsum([0, *map(len, keys)], dtype=np.int64),
        ignored=np.empty(0, dtype=np.int64),
        links=index.links,
    )
