"""The samples of a tar along its stream, from a cursor on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from stateful_gpu_loader.datasets.damage import damaged
from stateful_gpu_loader.datasets.storage.index_files import identity_of
from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.streams import damage_errors, is_compressed, open_stream
from stateful_gpu_loader.datasets.tar.members import Link, Member, Members, StreamReader
from stateful_gpu_loader.datasets.tar.samples import SampleGrouping

_CHANGED = "resume with the tar that the state was saved with, or begin the epoch anew"
_OPEN = (
    "the file ends without the block of zeros that closes an archive, so this sample may lack "
    "members that were cut off"
)
_UNREAD: Bytes = np.empty(0, dtype=np.uint8)


@dataclass
class TarSample:
    """The members of one key."""

    path: str
    """Of the tar."""
    key: str
    start: int
    """Byte of its first header in the tar, decompressed."""
    contents: dict[str, Bytes] = field(default_factory=dict)
    """uint8 [num_bytes] by extension, in the order of the tar; empty where it was not wanted."""
    offsets: dict[str, int] = field(default_factory=dict)
    """By extension, the byte of its content in the tar, decompressed."""
    links: list[Link] = field(default_factory=list)
    """The links in the tar up to the next sample, of this sample or not."""


def tar_samples(
    path: str,
    cursor: int,
    *,
    wanted: frozenset[str] | None,
    accepts: Callable[[TarSample], bool],
) -> Generator[tuple[TarSample, int]]:
    """Each sample from ``cursor`` on, and the cursor of the next sample.

    The cursor is the byte where a sample's first header begins; in a compressed tar, which must be
    read from its beginning, the number of samples before it.

    Args:
        path: local or a URL; plain or compressed, as its name says.
        cursor: 0, or one that came with a sample.
        wanted: the extensions whose contents are read; None for all.
        accepts: whether a sample counts and is given. It sees the extensions; the contents may
            not have been read.

    Raises:
        OSError: the tar cannot be opened or read.
        ValueError: it is damaged or cut off from here on: the sample that it breaks off in does not
            come, for it may lack members; nor, where all members are wanted, does the last one of
            an archive that is not closed. Or it ends before the cursor.
    """
    counting = is_compressed(path)
    start, skipped = (0, cursor) if counting else (cursor, 0)
    if start and start > (size := identity_of(path)[0]):
        raise damaged(path, f"it ends at byte {size}", offset=cursor, remedy=_CHANGED)
    number = 0
    with closing(open_stream(path, start)) as stream:
        reader = StreamReader(stream, start)
        groups = _grouped(reader, path, wanted, lambda: number >= skipped)
        try:
            for sample, after in groups:
                if accepts(sample):
                    number += 1
                    if number > skipped:
                        yield sample, number if counting else after
            # A checksum of all that was compressed comes last, after the block that closes the tar.
            while counting and stream.read(1 << 20):
                pass
        except damage_errors() as error:
            what = f"its compressed bytes are damaged: {type(error).__name__}: {error}"
            raise damaged(path, what, offset=reader.position) from error
    if number < skipped:
        raise damaged(path, f"it ends after {number} samples", record=cursor, remedy=_CHANGED)


def _grouped(
    reader: StreamReader, path: str, wanted: frozenset[str] | None, reads: Callable[[], bool]
) -> Iterator[tuple[TarSample, int]]:
    members, grouping = Members(reader, path), SampleGrouping()
    sample: TarSample | None = None
    for member in members:
        try:
            place = grouping.place(member.name)
        except ValueError as error:
            raise damaged(path, str(error), offset=member.start) from None
        if place is None:
            continue
        begins, extension = place
        if begins or sample is None:
            if sample is not None:
                yield sample, member.start
            sample = TarSample(path, grouping.key or "", member.start, links=members.links)
        content = _UNREAD
        if reads() and (wanted is None or extension in wanted):
            content = _content(reader, path, member)
        sample.contents[extension] = content
        sample.offsets[extension] = member.offset
    if sample is not None:
        if wanted is None and not members.is_closed:
            raise damaged(path, _OPEN, record=sample.key, offset=members.end)
        yield sample, members.end


def _content(reader: StreamReader, path: str, member: Member) -> Bytes:
    content = reader.read_array(member.size)
    if content is None:
        what = f"the file ends in the middle of the member {member.name!r} of {member.size} bytes"
        raise damaged(path, what, offset=member.start)
    return content
