"""TarSource: images in WebDataset tars, by index."""

from __future__ import annotations

import bisect
import errno
import logging
import os
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.failures import failed
from stateful_gpu_loader.datasets.storage.index_files import remove_index
from stateful_gpu_loader.datasets.storage.memory import Bytes, Memory, new_memory
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths, is_url
from stateful_gpu_loader.datasets.tar.index import (
    KIND,
    Numbers,
    TarIndex,
    joined,
    samples_of,
    select,
    tar_index,
)
from stateful_gpu_loader.datasets.tar.members import BLOCK
from stateful_gpu_loader.datasets.tar.samples import (
    IMAGES,
    KEY,
    MemberChoice,
    Missing,
    Names,
    member_value,
)
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.contents import ContentDigest

logger = logging.getLogger(__name__)

_GAP = 64 << 10
"""Largest total gap in bytes between members that are read together."""
_INDEXED_AT_ONCE = 8

Content = Bytes | memoryview
"""The bytes of a member."""


class TarSource(Source):
    """WebDataset tars, local or by URL, with random access by an index.

    Each tar's headers are read once, and its index is kept beside the tar or in a cache directory.
    By URL this reads most of the tar. Members form samples as in the package ``webdataset``:
    consecutive members with the same path up to the first dot of its last part are a sample, and
    the rest of the name is the extension. A key that returns later in the tar begins another
    sample.

    Args:
        paths: one or several, in order; ``{000..011}``, ``{a,b}`` and wildcards expand.
        image: extension of the image; of several (or ``"jpg;png"``) the first that a sample has, in
            this order, as in webdataset. DALI takes the first in the tar.
        target: an extension, whose value is the target (``"cls;txt"`` is the first that exists); a
            tuple or list of extensions for a tuple, a dict ``{name: extension}`` for a dict, None
            for the index. ``"__key__"`` is the sample's key. Values are those of :func:`value_of`.
        missing: ``"error"`` refuses tars where a sample lacks the image or the target; ``"skip"``
            leaves such samples out, as DALI's ``missing_component_behavior="skip"`` does.
        cache_dir: directory for the indices; None keeps them beside the tars, or in
            ``$XDG_CACHE_HOME/stateful_gpu_loader`` if those folders cannot be written.
        index_paths: files written by DALI's ``wds2idx``, one for each tar, which select the
            samples. They are checked against the tars.

    Raises:
        OSError: a tar cannot be read.
        ValueError: a tar is damaged or compressed; no sample, or a sample without image or target;
            or an index file of another tar.

    >>> import io, tarfile, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(f"{folder}/a.tar", "w") as tar:
    ...         for name, content in (("dog.jpg", b"..."), ("dog.cls", b"7")):
    ...             member = tarfile.TarInfo(name)
    ...             member.size = len(content)
    ...             tar.addfile(member, io.BytesIO(content))
    ...     source = TarSource(f"{folder}/a.tar", image="jpg", target="cls")
    ...     source[0], source.record(0)
    ((tensor([46, 46, 46], dtype=torch.uint8), 7), {'__key__': 'dog', 'jpg': b'...', 'cls': 7})
    """

    suits_processes = True

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        image: Names = IMAGES,
        target: Target = "cls",
        missing: Missing = "error",
        cache_dir: str | os.PathLike[str] | None = None,
        index_paths: AnyPath | Sequence[AnyPath] | None = None,
    ) -> None:
        self._choice = MemberChoice(image, target, missing)
        self.paths = as_paths(paths)
        self._files = OpenFiles()
        self._cache_dir = None if cache_dir is None else os.fspath(cache_dir)
        indices = self._index()
        if index_paths is not None:
            texts = as_paths(index_paths)
            if len(texts) != len(self.paths):
                raise ValueError(
                    f"{len(texts)} index_paths for {len(self.paths)} tars. Remedy: give one a tar"
                )
            indices = [
                samples_of(index, text, tar)
                for index, text, tar in zip(indices, texts, self.paths, strict=True)
            ]
        chosen = select(indices, self._choice, self.paths)
        self._warn_of_links(indices)
        self._samples, self._chosen, self._ends = chosen.samples, chosen.members, chosen.ends
        self._members: TarIndex = joined(indices)
        self._fingerprint: str | None = None

    def _index(self) -> list[TarIndex]:
        with ThreadPoolExecutor(min(_INDEXED_AT_ONCE, len(self.paths))) as pool:
            return list(
                pool.map(lambda path: tar_index(self._files, path, self._cache_dir), self.paths)
            )

    def _warn_of_links(self, indices: list[TarIndex]) -> None:
        links = [
            (path, link)
            for path, index in zip(self.paths, indices, strict=True)
            for link in index.links
            if link.name.lower().endswith(tuple(f".{name}" for name in self._choice.wanted))
        ]
        if links:
            path, link = links[0]
            logger.warning(
                "%d links in tars are left out, because they have no content: the first, %r in %r, "
                "is %s. Remedy: pack the tar with tar --hard-dereference --dereference",
                len(links),
                link.name,
                path,
                link.what,
            )

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        """Return the image's bytes, the target, and the name of tar and member.

        Raises:
            OSError: the tar cannot be read, or was replaced since it was indexed.
            ValueError: a member of the target is malformed, or the tar was truncated.
        """
        members, key = self._chosen[index], self.key(index)
        image, *extensions = self._extensions(members)
        places = self._members.members[members].tolist()
        data, *contents = self._contents(index, places, into or new_memory)
        values = self._values(index, key, extensions, places[1:], contents)
        target = self._choice.target(values, key, index)
        name = f"{self.paths[self._tar(index)]}/{key}.{image}"
        return EncodedSample(torch.from_numpy(np.asarray(data)), target, name)

    @cached_property
    def is_remote(self) -> bool:
        return any(map(is_url, self.paths))

    def expect(self, indices: npt.NDArray[np.int64], *, anew: bool = False) -> None:
        members = self._members.members
        sizes = members[self._chosen[indices].reshape(-1), 1] + BLOCK
        ranges = (
            (path, begin, end)
            for index in indices.tolist()
            if is_url(path := self.paths[self._tar(index)])
            for begin, end in _spans(members[self._chosen[index]].tolist())
        )
        self._files.expect(ranges, int(sizes.sum()), anew=anew)

    def key(self, index: int) -> str:
        """Return the key of the sample at ``0 <= index < len(self)``: its names up to the dot."""
        return self._members.key(self._samples[index])

    def record(self, index: int) -> dict[str, Any]:
        """Return all members of a sample: its key as ``"__key__"``, and values by extension.

        Values are those of :func:`value_of`; pickled files stay bytes.

        Raises:
            OSError, ValueError: as :meth:`read`.
        """
        begin, end = self._members.starts[self._samples[index] :][:2]
        extensions = self._extensions(slice(begin, end))
        places, key = self._members.members[begin:end].tolist(), self.key(index)
        contents = self._contents(index, places, new_memory)
        values = self._values(index, key, extensions, places, contents)
        return {KEY: key, **dict(zip(extensions, values, strict=True))}

    def block_lengths(self) -> npt.NDArray[np.int64]:
        """Return int64 [num_tars]: the number of samples of each tar, in the order of indices."""
        ends = np.array([0, *self._ends], dtype=np.int64)
        return ends[1:] - ends[:-1]

    def fingerprint(self) -> str:
        """Return a blake2b of the choice, and of all members' keys, extensions and sizes in order.

        It does not depend on the tars' names or on the program that packed them.
        """
        if self._fingerprint is None:
            self._fingerprint = f"{len(self)} samples in tars, {self._digest()}"
        return self._fingerprint

    def _digest(self) -> str:
        index = self._members
        blocks = (
            str(self._choice).encode(errors="surrogateescape"),
            "/".join(index.vocabulary).encode(errors="surrogateescape"),
            index.extensions.astype("<i8").tobytes(),
            index.members[:, 1].astype("<i8").tobytes(),
            index.starts.astype("<i8").tobytes(),
            index.keys,
            index.key_ends.astype("<i8").tobytes(),
        )
        return ContentDigest("tars 1").add_blocks(blocks).text()

    def _tar(self, index: int) -> int:
        return bisect.bisect_right(self._ends, index)

    def _extensions(self, members: Numbers | slice) -> list[str]:
        vocabulary = self._members.vocabulary
        return [vocabulary[code] for code in self._members.extensions[members].tolist()]

    def _contents(self, index: int, places: list[list[int]], memory: Memory) -> list[Content]:
        """Return the contents of some members of a sample, the first one in ``memory``.

        Members that lie close together are read at once.
        """
        spans = _spans(places)
        if len(spans) > 1:
            apart: list[Content] = []
            for place in places:
                apart += self._contents(index, [place], new_memory if apart else memory)
            return apart
        ((begin, end),) = spans
        start, size, _ = places[0]
        middle = start + size
        first = memory(size)
        before, after = memoryview(bytearray(start - begin)), memoryview(bytearray(end - middle))
        self._fill(index, begin, [before, first.data, after])
        contents: list[Content] = []
        for offset, size, mark in places:
            around, at = (before, offset - begin) if offset <= start else (after, offset - middle)
            if zlib.crc32(around[at - BLOCK : at]) != mark:
                raise self._replaced(index, offset)
            contents.append(first if offset == start else around[at : at + size])
        return contents

    def _fill(self, index: int, begin: int, parts: list[memoryview]) -> None:
        path = self.paths[self._tar(index)]
        try:
            self._files.fill(path, begin, parts)
        except ValueError as error:
            raise ValueError(f"sample {index = }, key {self.key(index)!r}: {error}") from error
        except OSError as error:
            raise failed(error, path, f"sample {index = }") from error

    def _replaced(self, index: int, offset: int) -> OSError:
        path = self.paths[self._tar(index)]
        # The tar's size and time may be unchanged, so its index must go.
        removed = remove_index(path, kind=KIND, cache_dir=self._cache_dir)
        indices = f" Its kept index {', '.join(map(repr, removed))} was removed." * bool(removed)
        # The whole file was replaced: leaving out one record does not help.
        return OSError(
            errno.ESTALE,
            f"replaced since it was indexed: another header before byte {offset}, sample "
            f"{index = }, key {self.key(index)!r}.{indices} Remedy: make the TarSource again",
            path,
        )

    def _values(
        self,
        index: int,
        key: str,
        extensions: list[str],
        places: list[list[int]],
        contents: list[Content],
    ) -> list[Any]:
        path, sample = self.paths[self._tar(index)], f", sample {index = }"
        return [
            member_value(extension, content, path, key=key, offset=place[0], sample=sample)
            for extension, place, content in zip(extensions, places, contents, strict=True)
        ]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} tars, {len(self)} samples)"


def _spans(places: list[list[int]]) -> list[tuple[int, int]]:
    """Return the byte ranges to read for members of a sample, headers included.

    >>> _spans([[512, 100, 0], [1536, 1, 0]]), _spans([[512, 100, 0], [1_000_000, 1, 0]])
    ([(0, 1537)], [(0, 612), (999488, 1000001)])
    """
    begin, end, needed = places[0][0] - BLOCK, 0, 0
    for offset, size, _ in places:
        begin, end, needed = min(begin, offset - BLOCK), max(end, offset + size), needed + size
    if end - begin > needed + _GAP and len(places) > 1:
        return [(offset - BLOCK, offset + size) for offset, size, _ in places]
    return [(begin, end)]
