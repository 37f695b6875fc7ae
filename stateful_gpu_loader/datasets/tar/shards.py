"""TarShards and TarRecords: WebDataset tars as streams, plain or compressed, local or remote."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import torch

from stateful_gpu_loader.datasets.sharded import (
    Counts,
    EncodedShards,
    FileShards,
    ShardedDataset,
    records_from,
    sample_or_error,
)
from stateful_gpu_loader.datasets.storage.failures import damaged
from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.paths import AnyPath
from stateful_gpu_loader.datasets.tar.members import Link, Member, Members, StreamReader
from stateful_gpu_loader.datasets.tar.samples import (
    IMAGES,
    KEY,
    MemberChoice,
    Missing,
    Names,
    SampleGrouping,
    link_note,
    member_value,
)
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.records import EncodedSample

_PACK = "pass the members' extensions as image= and target=, or missing='skip' to leave it out"


class TarShards(FileShards, EncodedShards):
    """Images in WebDataset tars, read as streams: plain, or with ``.tgz .gz .zst .bz2 .xz``.

    Members form samples as in :class:`TarSource`. A plain tar resumes at the byte where the next
    sample begins. A compressed tar is decompressed from its beginning.

    Args:
        paths: one or several, in order; ``{000..011}``, ``{a,b}`` and wildcards expand.
        image: extension of the image; of several (or ``"jpg;png"``) the first that a sample has.
        target: as in :class:`TarSource`; with None the target is the byte of the decompressed tar
            where the sample begins.
        missing: ``"error"`` refuses a sample without image or target, ``"skip"`` leaves it out.
        counts: number of samples of each shard, if known: by name, in order, or a JSON file such
            as webdataset's ``sizes.json``. Checked whenever a whole shard is read.
        num_lanes, shuffle_buffer: as in :class:`ShardedDataset`.

    Raises:
        FileNotFoundError: a wildcard matches nothing.
        ValueError: no path, a repeated path, a wrong argument, or a shard without a count.

    >>> import io, tarfile, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(f"{folder}/a.tar.gz", "w:gz") as tar:
    ...         for name, content in (("dog.jpg", b"..."), ("dog.cls", b"7")):
    ...             member = tarfile.TarInfo(name)
    ...             member.size = len(content)
    ...             tar.addfile(member, io.BytesIO(content))
    ...     list(TarShards(f"{folder}/*.tar.gz", image="jpg", target="cls"))
    [(tensor([46, 46, 46], dtype=torch.uint8), 7)]
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        image: Names = IMAGES,
        target: Target = "cls",
        missing: Missing = "error",
        counts: Counts = None,
        num_lanes: int | None = None,
        shuffle_buffer: int = ShardedDataset.shuffle_buffer,
    ) -> None:
        super().__init__(paths, counts, num_lanes, shuffle_buffer)
        self._choice = MemberChoice(image, target, missing)

    def fingerprint(self) -> str:
        """Return a text of the shards' names and the choice of members; opens no tar."""
        return f"{super().fingerprint()}, {self._choice}, missing={self._choice.missing}"

    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]:
        """Yield pairs as :meth:`EncodedShards.read_shard` does.

        A sample with a missing or malformed image or target yields a ValueError in its place.

        Raises:
            OSError: the tar cannot be opened or read.
            ValueError: the rest of the tar is damaged or truncated, or the number of samples
                differs from ``counts``.
        """
        samples = _tar_samples(self, shard, cursor, self._choice.wanted, self._accepts)
        with closing(samples):
            for sample, after in samples:
                yield sample_or_error(self._encoded, sample), after

    def _accepts(self, sample: TarSample) -> bool:
        return self._choice.missing == "error" or self._lacking(sample) is None

    def _lacking(self, sample: TarSample) -> int | None:
        """Return the first slot without a member in the sample, or None."""
        for slot, alternatives in enumerate(self._choice.slots):
            if not any(extension in sample.contents for extension in alternatives):
                return slot
        return None

    def _encoded(self, sample: TarSample) -> EncodedSample:
        lacking = self._lacking(sample)
        if lacking is not None:
            note = link_note(sample.links, sample.key, self._choice.wanted)
            what = f"lacks the {self._choice.names(lacking)}, has {', '.join(sample.contents)}"
            what += f".{note}".removesuffix(".")
            raise damaged(sample.path, what, record=sample.key, offset=sample.start, remedy=_PACK)
        image, *parts = (
            next(extension for extension in alternatives if extension in sample.contents)
            for alternatives in self._choice.slots
        )
        data = sample.contents[image]
        values = [_value(sample, extension) for extension in parts]
        target = self._choice.target(values, sample.key, sample.start)
        return EncodedSample(torch.from_numpy(data), target, f"{sample.path}/{sample.key}.{image}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} tars)"


class TarRecords(FileShards):
    """Samples of any kind in WebDataset tars, as dicts of all their members.

    A sample is ``{"__key__": key, extension: value, ...}``, with the values of :func:`value_of`;
    pickled files stay bytes. Everything else is as in :class:`TarShards`.

    Args:
        paths: as in :class:`TarShards`.
        counts: as in :class:`TarShards`.
        num_lanes, shuffle_buffer: as in :class:`ShardedDataset`.

    >>> import io, tarfile, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(f"{folder}/a.tar", "w") as tar:
    ...         for name, content in (("s.flac", b"..."), ("s.json", b'{"word": "yes"}')):
    ...             member = tarfile.TarInfo(name)
    ...             member.size = len(content)
    ...             tar.addfile(member, io.BytesIO(content))
    ...     list(TarRecords(f"{folder}/a.tar"))
    [{'__key__': 's', 'flac': b'...', 'json': {'word': 'yes'}}]
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        counts: Counts = None,
        num_lanes: int | None = None,
        shuffle_buffer: int = ShardedDataset.shuffle_buffer,
    ) -> None:
        super().__init__(paths, counts, num_lanes, shuffle_buffer)

    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[dict[str, Any] | ValueError, int]]:
        """Yield (sample, cursor of the next sample); raises as :meth:`TarShards.read_shard`."""
        samples = _tar_samples(self, shard, cursor, None, lambda sample: True)
        with closing(samples):
            for sample, after in samples:
                yield sample_or_error(_members, sample), after

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} tars)"


def _members(sample: TarSample) -> dict[str, Any]:
    values = {extension: _value(sample, extension) for extension in sample.contents}
    return {KEY: sample.key, **values}


def _value(sample: TarSample, extension: str) -> Any:
    content, offset = sample.contents[extension], sample.offsets[extension]
    return member_value(extension, content, sample.path, key=sample.key, offset=offset)


_OPEN = (
    "the file ends without the block of zeros that closes an archive, so this sample may lack "
    "members that were cut off"
)
_UNREAD: Bytes = np.empty(0, dtype=np.uint8)


@dataclass
class TarSample:
    """The members of one key."""

    path: str
    """Path of the tar."""
    key: str
    start: int
    """Offset of its first header in the decompressed tar."""
    contents: dict[str, Bytes] = field(default_factory=dict)
    """uint8 [num_bytes] by extension, in the order of the tar; empty for unwanted members."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Offset of each content in the decompressed tar, by extension."""
    links: list[Link] = field(default_factory=list)
    """All links in the tar before the next sample."""


def _tar_samples(
    shards: FileShards,
    shard: str,
    cursor: int,
    wanted: frozenset[str] | None,
    accepts: Callable[[TarSample], bool],
) -> Generator[tuple[TarSample, int]]:
    """Yield each sample of a shard from a cursor on, with the cursor of the next sample.

    Args:
        cursor: 0, or a cursor that was yielded with a sample.
        wanted: extensions whose contents are read; None for all.
        accepts: whether a sample counts and is yielded. It sees extensions, not necessarily
            contents.

    Raises:
        OSError: the tar cannot be opened or read.
        ValueError: the rest of the tar is damaged or truncated. A truncated sample is not yielded,
            nor, if all members are wanted, the last sample of an archive without an end mark. Or
            the tar ends before the cursor, or the number of samples differs from ``counts``.
    """
    path, number = shards.path_of(shard), 0

    def records(stream: IO[bytes], start: int, skipped: int) -> Iterator[tuple[TarSample, int]]:
        nonlocal number
        reader = StreamReader(stream, start)
        groups = _grouped(reader, path, wanted, reads=lambda: number >= skipped)
        for sample, after in groups:
            if accepts(sample):
                number += 1
                yield sample, after

    with closing(records_from(path, cursor, records)) as samples:
        yield from samples
    count = shards.num_samples(shard)
    if count is not None and cursor == 0 and number != count:
        raise ValueError(
            f"{path!r} has {number} samples, not {count} as counts= says. Remedy: correct it"
        )


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
