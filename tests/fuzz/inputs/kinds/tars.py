"""Tars by index and as streams, plain and compressed, wds2idx's indices, and members' values."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import zstandard

from stateful_gpu_loader import TarShards, TarSource
from stateful_gpu_loader.datasets import TarRecords
from stateful_gpu_loader.datasets.tar.samples import value_of
from tests.datasets.tar.tar_files import sample_entries, tar_bytes
from tests.fuzz.inputs import changed_values
from tests.fuzz.inputs.kind import Broken, Kind


def _tars() -> list[bytes]:
    import tarfile

    long = [("a/" * 80 + "x.jpg", b"long"), ("a/" * 80 + "x.cls", b"7")]
    short = sample_entries(0, 3)
    return [
        tar_bytes(short),
        tar_bytes([*short, *long]),
        tar_bytes([*long, *short], tarfile.PAX_FORMAT),
        tar_bytes(short, tarfile.USTAR_FORMAT),
    ]


class Tars(Kind):
    """Read by their headers, through :class:`TarSource`, and as streams."""

    name = "tar"
    share = 1
    refusals = (ValueError, OSError)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "a.tar"
        self.examples = _tars()

    def read(self, content: bytes, example: int) -> None:
        self._path.write_bytes(content)
        found, refused = [], None
        shards: Any = TarShards(self._path, image="jpg", target="cls", missing="skip")
        try:
            for sample, _ in shards.read_shard("a.tar", 0):
                found.append(sample)
        except ValueError as error:
            refused = error
        cache = self.folder / "cache"
        source = TarSource(self._path, image="jpg", target="cls", missing="skip", cache_dir=cache)
        for path in cache.iterdir():
            path.unlink()
        for index in range(len(source)):
            source.read(index), source.record(index)
        if refused is not None:
            raise refused


class CompressedTars(Kind):
    """Streams in formats with a checksum of their whole content."""

    name = "tar, compressed"
    share = 3

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        plain = _tars()[0]
        zstd = zstandard.ZstdCompressor(write_checksum=True)
        self._endings = (".gz", ".zst", ".bz2", ".xz")
        self.examples = [
            gzip.compress(plain, mtime=0),
            zstd.compress(plain),
            bz2.compress(plain),
            lzma.compress(plain),
        ]
        self._sound = self._samples(self.examples[0], 0)

    def _samples(self, content: bytes, example: int) -> list[Any]:
        path = self.folder / f"a.tar{self._endings[example]}"
        path.write_bytes(content)
        records: Any = TarRecords(path)
        found = [sample for sample, _ in records.read_shard(path.name, 0)]
        for sample in found:
            if isinstance(sample, ValueError):
                raise sample
        return found

    def read(self, content: bytes, example: int) -> None:
        if repr(self._samples(content, example)) not in (repr(self._sound), "[]"):
            raise Broken("other samples were read in silence")


class TarIndices(Kind):
    """Texts of DALI's wds2idx."""

    name = "tar index, wds2idx"
    share = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._tar, self._path = folder / "a.tar", folder / "a.idx"
        self._tar.write_bytes(_tars()[0])
        source = TarSource(self._tar, image="jpg", target="cls")
        members = source._members
        lines, bare = [], []
        for number in range(len(source)):
            begin, end = members.starts[number : number + 2]
            parts = [
                (members.vocabulary[members.extensions[i]], *members.members[i, :2].tolist())
                for i in range(begin, end)
            ]
            key = source.key(number)
            lines.append(" ".join(f"{e} {at} {size} {key}.{e}" for e, at, size in parts))
            bare.append(" ".join(f"{e} {at} {size}" for e, at, size in parts))
        self.examples = [
            "\n".join([f"v1.2 {len(lines)}", *lines, ""]).encode(),
            "\n".join([f"v1.1 {len(bare)}", *bare, ""]).encode(),
        ]
        self._sound = {repr(source[i]) for i in range(len(source))}

    def read(self, content: bytes, example: int) -> None:
        self._path.write_bytes(content)
        source = TarSource(
            self._tar, image="jpg", target="cls", missing="skip", index_paths=self._path
        )
        for index in range(len(source)):
            source.read(index)


class MemberValues(Kind):
    """Values of a member, decoded by its extension."""

    name = "tar member"
    share = 8
    names_remedy = False  # The tar's error, made of this one, has one.
    _extensions = ("cls", "json", "txt", "npy", "npy", "npy")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        arrays = (
            np.arange(6.0).reshape(2, 3),
            np.array(["ab", "c"]),
            np.zeros((0, 3), dtype="<i2"),
        )
        self.examples = [b"17", b'{"a": [1, 2.5, "x"]}', "a cat é".encode(), *map(_npy, arrays)]

    def change(self, random: Random, content: bytes) -> bytes:
        if content[:1] == b"{" and random.random() < 0.5:
            try:
                value = json.loads(content)
            except (ValueError, RecursionError):
                return super().change(random, content)
            return changed_values.to_json(changed_values.changed(random, value, plain=True))
        return super().change(random, content)

    def read(self, content: bytes, example: int) -> None:
        try:
            value_of(self._extensions[example], content)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            # Kinds of ValueError, which the tar's error repeats.
            raise ValueError("no text") from error


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


KINDS = (Tars, CompressedTars, TarIndices, MemberValues)
