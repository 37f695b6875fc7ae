"""Tar files as Python's tarfile writes them."""

from __future__ import annotations

import functools
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from tests.images import encode, photograph

Entries = Iterable[tuple[str, bytes]]

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def tar_bytes(entries: Entries, tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    """Return an archive of regular files, given by names and contents."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as tar:
        for name, content in entries:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def write_tar(path: Path, entries: Entries, tar_format: int = tarfile.GNU_FORMAT) -> Path:
    """Write an archive; return its path."""
    path.write_bytes(tar_bytes(entries, tar_format))
    return path


def sample_entries(first: int, last: int) -> list[tuple[str, bytes]]:
    """Return a few bytes for an image, and a class, for each number."""
    return [
        entry
        for number in range(first, last)
        for entry in (
            (f"{number:04d}.jpg", f"image {number}".encode() * (number % 5 + 1)),
            (f"{number:04d}.cls", str(number % 7).encode()),
        )
    ]


def photo_entries(first: int, last: int) -> list[tuple[str, bytes]]:
    """Return different real JPEG photographs, each with a class and a text."""
    entries = []
    for number in range(first, last):
        entries.append((f"photos/{number:04d}.jpg", _photo(number)))
        entries.append((f"photos/{number:04d}.cls", str(number % 3).encode()))
        entries.append((f"photos/{number:04d}.txt", f"cup {number}".encode()))
    return entries


@functools.cache
def _photo(number: int) -> bytes:
    left = 10 * number
    crop = photograph("coffee").crop((left, 5, left + 90, 5 + 60 + number))
    return encode(crop, quality=80).numpy().tobytes()


def write_photo_tars(folder: Path, lengths: tuple[int, ...] = (4, 3, 6)) -> list[Path]:
    """Write tars of the given numbers of photographs; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, first = [], 0
    for number, length in enumerate(lengths):
        path = folder / f"photos-{number:03d}.tar"
        paths.append(write_tar(path, photo_entries(first, first + length)))
        first += length
    return paths
