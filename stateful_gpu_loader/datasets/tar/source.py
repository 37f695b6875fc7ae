"""TarSource: images in WebDataset tars, by index."""

from __future__ import annotations

import bisect
import errno
import os
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.failures import failed
from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths
from stateful_gpu_loader.datasets.tar.choice import (
    IMAGES,
    MemberChoice,
    Missing,
    Names,
)
from stateful_gpu_loader.datasets.tar.dali_index import samples_of
from stateful_gpu_loader.datasets.tar.header import BLOCK
from stateful_gpu_loader.datasets.tar.index import Numbers, TarIndex, joined, select, tar_index
from stateful_gpu_loader.datasets.tar.samples import KEY, member_value
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.content_id import ContentDigest

_GAP = 64 << 10
"""Bytes between members that are read along, where that saves a second read."""
_INDEXED_AT_ONCE = 8


class TarSource(Source):
    """WebDataset tars, local or by URL, each sample read by its place.

    Each tar's headers are read once, and its index is kept beside it or in a cache directory. By
    URL headers are read together with what lies between them, which is most of a tar.
    Members belong together as in the package ``webdataset``: consecutive ones with the same path up
    to the first dot of its last part are a sample, and the rest of the name is the extension. A key
    that comes back later in a tar begins another sample, as in that package.

    Args:
        paths: one or several, in order; ``{000..011}``, ``{a,b}`` and wildcards stand for several.
        image: the extension of the image; of several (or ``"jpg;png"``) the first there is, in
            this order, as in webdataset; DALI takes what comes first in the tar.
        target: an extension, whose value is the target (``"cls;txt"`` is the first there is); a
            tuple or list of them for a tuple, a dict ``{name: extension}`` for a dict, None for the
            index. ``"__key__"`` is the sample's key. Values as :func:`value_of` gives them.
        missing: ``"error"`` refuses tars where a sample lacks the image or the target; ``"skip"``
            leaves such samples out, as DALI's ``missing_component_behavior="skip"`` does.
        cache_dir: where indices are kept; None is beside the tars, or where these cannot be
            written ``$XDG_CACHE_HOME/stateful_gpu_loader``.
        index_paths: files that DALI's ``wds2idx`` wrote, one a tar: the samples are those that they
            name. They are checked against the tars.

    Raises:
        OSError: a tar cannot be read.
        ValueError: a tar is damaged or compressed; no sample, or one without image or target; or an
            index file of another tar.

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
        indices = self._index(None if cache_dir is None else os.fspath(cache_dir))
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
        self._samples, self._chosen, self._ends = chosen.samples, chosen.members, chosen.ends
        self._members: TarIndex = joined(indices)
        self._fingerprint: str | None = None

    def _index(self, cache_dir: str | None) -> list[TarIndex]:
        with ThreadPoolExecutor(min(_INDEXED_AT_ONCE, len(self.paths))) as pool:
            return list(pool.map(lambda path: tar_index(self._files, path, cache_dir), self.paths))

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, index: int) -> EncodedSample:
        """The image's bytes, the target, and the name of tar and member.

        Raises:
            OSError: the tar cannot be read, or was replaced since it was indexed.
            ValueError: a member of the target is malformed, or the tar was cut off.
        """
        numbers = self._chosen[index]
        image, *parts = self._contents(index, numbers)
        values = [
            self._value(index, number, content)
            for number, content in zip(numbers[1:], parts, strict=True)
        ]
        key = self.key(index)
        target = self._choice.target(values, key, index)
        name = f"{self.paths[self._tar(index)]}/{key}.{self._extension(numbers[0])}"
        return EncodedSample(torch.from_numpy(image), target, name)

    def key(self, index: int) -> str:
        """The names, up to the dot, of the members of the sample at ``0 <= index < len(self)``."""
        return self._members.key(self._samples[index])

    def record(self, index: int) -> dict[str, Any]:
        """All members of a sample: its key as ``"__key__"``, and values by their extensions.

        Values are as :func:`value_of` gives them; pickled files stay bytes.

        Raises:
            OSError, ValueError: as :meth:`read`.
        """
        begin, end = self._members.starts[self._samples[index] :][:2]
        numbers = np.arange(begin, end)
        values = {
            self._extension(number): self._value(index, number, content)
            for number, content in zip(numbers, self._contents(index, numbers), strict=True)
        }
        return {KEY: self.key(index), **values}

    def block_lengths(self) -> npt.NDArray[np.int64]:
        """int64 [num_tars]: the samples of each tar, in the order of their indices."""
        ends = np.array([0, *self._ends], dtype=np.int64)
        return ends[1:] - ends[:-1]

    def fingerprint(self) -> str:
        """blake2b of what is chosen, and of all members' keys, extensions and sizes in order.

        It does not depend on the tars' paths and names, nor on the program that packed them.
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

    def _extension(self, member: np.int64) -> str:
        return self._members.vocabulary[int(self._members.extensions[member])]

    def _contents(self, index: int, members: Numbers) -> list[Bytes]:
        """The bytes of some members of a sample, read at once where they lie together."""
        places = self._members.members[members].tolist()
        begin, end = _span(places)
        are_near = end - begin <= sum(size for _, size, _ in places) + _GAP
        contents: list[Bytes] = []
        for together in [places] if are_near else [[place] for place in places]:
            begin, end = _span(together)
            data = self._read(index, begin, end)
            contents += [self._checked(index, data, begin, *place) for place in together]
        return contents

    def _read(self, index: int, begin: int, end: int) -> Bytes:
        path = self.paths[self._tar(index)]
        try:
            return self._files.read(path, begin, end - begin)
        except ValueError as error:
            raise ValueError(f"sample {index = }, key {self.key(index)!r}: {error}") from error
        except OSError as error:
            raise failed(error, path, f"sample {index = }") from error

    def _checked(
        self, index: int, data: Bytes, begin: int, offset: int, size: int, mark: int
    ) -> Bytes:
        start = offset - begin
        if zlib.crc32(data[start - BLOCK : start].data) != mark:
            # Of the whole file, and not of one record: no reason to leave that one out.
            raise OSError(
                errno.ESTALE,
                f"replaced since it was indexed: another header before byte {offset}, sample "
                f"{index = }, key {self.key(index)!r}. Remedy: make the TarSource anew",
                self.paths[self._tar(index)],
            )
        return data[start : start + size]

    def _value(self, index: int, member: np.int64, content: Bytes) -> Any:
        return member_value(
            self._extension(member),
            content,
            self.paths[self._tar(index)],
            key=self.key(index),
            offset=int(self._members.members[member, 0]),
            sample=f", sample {index = }",
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} tars, {len(self)} samples)"


def _span(places: list[list[int]]) -> tuple[int, int]:
    """Where the first header begins, and where the last content ends."""
    begin = min(offset for offset, _, _ in places) - BLOCK
    return begin, max(offset + size for offset, size, _ in places)
