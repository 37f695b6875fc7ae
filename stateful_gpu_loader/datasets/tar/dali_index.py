"""Index files of DALI's ``wds2idx``: which members of a tar are its samples.

A text of ``v1.2 <samples>`` and a line a sample of ``<extension> <byte> <size> <name>`` for each
component; ``v1.1`` is without the names. See ``wds2idx.py`` in the wheels of DALI.
"""

from __future__ import annotations

import re

import numpy as np

from stateful_gpu_loader.datasets.damage import damaged
from stateful_gpu_loader.datasets.storage.streams import open_stream
from stateful_gpu_loader.datasets.tar.index import Numbers, TarIndex

# A name ends with its extension; there may be blanks in it.
_COMPONENT = {
    "v1.1": re.compile(r"(\S*) ([0-9]{1,19}) ([0-9]{1,19})(?: |$)"),
    "v1.2": re.compile(r"(\S*) ([0-9]{1,19}) ([0-9]{1,19}) .*?\1(?: (?=\S* [0-9]+ [0-9]+ )|$)"),
}
_HEADING = re.compile(r"(v1\.[12])\s+([0-9]{1,19})\s*")
_REMEDY = "make the index of this tar anew with wds2idx, or leave index_paths= out"


def samples_of(index: TarIndex, path: str, tar: str) -> TarIndex:
    """The samples that an index file names, in its order, from the tar's own index.

    Each entry is checked: it must be a member of the tar, of that size and extension.
    Files that belong to no sample by webdataset's rule are left out.

    Args:
        index: of the tar.
        path: of the index file.
        tar: its path, for errors.

    Raises:
        OSError: the index file cannot be read.
        ValueError: it is malformed, or of another tar.
    """
    with open_stream(path) as stream:
        text = stream.read().decode("utf-8", "surrogateescape")
    head, _, body = text.partition("\n")
    heading = _HEADING.fullmatch(head)
    if heading is None:
        raise damaged(path, f"{head[:80]!r} is no heading of wds2idx", record=0, remedy=_REMEDY)
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
    """(extension, byte, size) of each component."""
    found, at = [], 0
    while at < len(line):
        match = _COMPONENT[version].match(line, at)
        if match is None:
            what = f"{line[at : at + 80]!r} is no component"
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
