"""Listing image files: from class folders, or from a text file of paths and labels.

Class folders come in the order of torchvision.datasets.ImageFolder; the text file is DALI's and
Caffe's file_list.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.name_table import KeyTable, NameTable
from stateful_gpu_loader.datasets.storage.folder_times import (
    are_unchanged,
    times_before_listing,
)
from stateful_gpu_loader.datasets.storage.index_files import (
    Index,
    array_in,
    cached_index,
    check_ends,
)
from stateful_gpu_loader.datasets.storage.paths import is_apple_double
from stateful_gpu_loader.datasets.storage.progress import progress_bar

KEPT_FROM = 10_000
"""Images from which a listing is kept: fewer are listed again in milliseconds."""

LABEL = re.compile(r"[+-]?[0-9]{1,18}")
"""Of at most 18 digits, which fit into 64 bits."""


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of class folders."""

    classes: list[str]
    """Sorted, those without images included."""
    counts: npt.NDArray[np.int64]
    """int64 [num_classes]: the images of each."""
    names: NameTable
    """Paths relative to the folder of the class folders, separated by ``/``: class by class,
    sorted by folder, then by name, by code point: the same on every machine and in every locale."""


def list_images(root: Path, extensions: tuple[str, ...], cache_dir: str | None = None) -> Listing:
    """The images of all class folders, at any depth: kept from an earlier time, or listed.

    Links to folders are followed, but a link to a folder above itself is an error. A listing of
    :data:`KEPT_FROM` images or more is kept, and taken as long as every folder says that it has
    not changed.

    Args:
        root: the folder of the class folders.
        extensions: in lower case; files that end otherwise are left out, and so are macOS's
            ``._`` files.
        cache_dir: where a listing is kept; None is beside ``root``, as of :func:`cached_index`.

    Raises:
        FileNotFoundError: ``root`` does not exist, or holds no folder.
        NotADirectoryError: ``root`` is a file.
        OSError: a folder cannot be listed.
        ValueError: links form a loop.
    """
    if not root.exists():
        raise FileNotFoundError(f"no such folder: {str(root)!r}. Remedy: check the path")
    if not root.is_dir():
        raise NotADirectoryError(
            f"not a folder: {str(root)!r}. Remedy: give the folder of the class folders; a list of "
            "files is read by FolderSource.from_file_list"
        )
    endings = hashlib.blake2b(json.dumps(extensions).encode(), digest_size=4).hexdigest()
    index: Any = cached_index(
        str(root),
        kind=f"folder-2-{endings}",
        build=lambda: _build(root, extensions),
        check=_check,
        cache_dir=cache_dir,
        fits=lambda index: _fits(root, index),
    )
    names = NameTable.of(KeyTable.joined(index["names"].tobytes(), index["name_ends"]))
    return Listing(_split(index["classes"]), index["counts"], names)


def read_file_list(path: Path) -> tuple[list[str], list[int]]:
    """Paths and labels, in the order of the file.

    A line is a path and, after white space, a label; a path may contain spaces. Blank lines and
    lines that start with ``#`` are skipped. The file is UTF-8, whatever the locale.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line has no label, or one that is no integer; or there is no line at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "list.txt"
    ...     _ = path.write_text("cats/tom the cat.jpg 0\\ndogs/rex.jpg 1\\n")
    ...     read_file_list(path)
    (['cats/tom the cat.jpg', 'dogs/rex.jpg'], [0, 1])
    """
    names, labels = [], []
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            words = line.rsplit(maxsplit=1)
            if not words or line.lstrip().startswith("#"):
                continue
            if len(words) == 1 or not LABEL.fullmatch(words[1]):
                raise ValueError(
                    f"{str(path)!r}, line {number}: {line.rstrip()[-80:]!r} does not end with an "
                    "integer label. Remedy: write 'relative/path label' on each line"
                )
            names.append(words[0].lstrip())
            labels.append(int(words[1]))
    if not names:
        raise ValueError(
            f"{str(path)!r} names no file. Remedy: write 'relative/path label' on each line"
        )
    return names, labels


def _build(root: Path, extensions: tuple[str, ...]) -> Index:
    times = {"": times_before_listing(str(root))}
    classes = _list_classes(root)
    counts: list[int] = []

    def images() -> Iterator[str]:
        for class_name in classes:
            found = sorted(_walk(root, class_name, extensions, (), times))
            counts.append(sum(len(names) for _, names in found))
            for folder, names in found:
                names.sort()
                yield from map(f"{folder}/".__add__, names)
            note(len(counts))

    with progress_bar(f"listing {root}", len(classes), " classes") as note:
        keys = NameTable(images()).keys
    return {
        "classes": _joined(classes),
        "counts": np.array(counts, dtype=np.int64),
        "names": np.frombuffer(keys.text, dtype=np.uint8),
        "name_ends": keys.ends(),
        "folders": _joined(times),
        "times": np.array(list(times.values()), dtype=np.int64),
    }


def _check(index: Index, size: int) -> None:
    """Raise ValueError unless the arrays are a listing, and its names stay inside the folder."""
    classes = _split(array_in(index, "classes", np.uint8))
    folders = _split(array_in(index, "folders", np.uint8))
    counts = array_in(index, "counts", np.int64)
    text = array_in(index, "names", np.uint8).tobytes()
    ends = array_in(index, "name_ends", np.int64)
    times = array_in(index, "times", np.int64, columns=2)
    check_ends("name_ends", ends, total=len(text), shortest=1)
    num_names = len(ends) - 1
    if len(times) != len(folders) or len(counts) != len(classes):
        raise ValueError("its arrays do not belong together")
    # Each is at most as large as the sum has to be, so that the sum cannot overflow.
    if ((counts < 0) | (counts > num_names)).any() or counts.sum() != num_names:
        raise ValueError(f"its counts are not those of {num_names} names")
    if any("/" in name or name in ("", ".", "..") for name in classes):
        raise ValueError("a class in it is no folder of the listed one")
    _check_inside(folder.encode(errors="surrogateescape") for folder in folders if folder)
    firsts = np.frombuffer(text, dtype=np.uint8)[ends[:-1]]
    if (firsts == ord("/")).any() or b"\0" in text:
        raise ValueError("a name in it is absolute, or holds a zero byte")
    dots = np.array([match.start() for match in re.finditer(rb"\.\.", text)], dtype=np.int64)
    suspects = np.unique(np.searchsorted(ends, dots, side="right") - 1)
    _check_inside(text[ends[number] : ends[number + 1]] for number in suspects.tolist())


def _check_inside(names: Iterable[bytes]) -> None:
    for name in names:
        if name.startswith(b"/") or b".." in name.split(b"/"):
            raise ValueError(f"the name {name!r} in it leads out of the listed folder")


def _fits(root: Path, index: Any) -> bool:
    if int(index["counts"].sum()) < KEPT_FROM:
        return False
    return are_unchanged(
        (f"{root}/{folder}" for folder in _split(index["folders"])), index["times"]
    )


def _list_classes(root: Path) -> list[str]:
    """The names of the folders in ``root``, sorted."""
    with os.scandir(root) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir())
    if not classes:
        raise FileNotFoundError(
            f"no class folder in {str(root)!r}: each class is a folder of its own there. Remedy: "
            "give the folder above, or FolderSource.from_paths(paths) for images without classes"
        )
    return classes


def _walk(
    root: Path,
    folder: str,
    extensions: tuple[str, ...],
    above: tuple[str, ...],
    times: dict[str, tuple[int, int]],
) -> Iterator[tuple[str, list[str]]]:
    """Each folder under one, itself included, with the names of its images; notes their times."""
    path = os.path.realpath(root / folder)
    if path in above:
        raise ValueError(
            f"the folder {str(root / folder)!r} is a link to {path!r}, which holds it. Remedy: "
            "remove that link"
        )
    times[folder] = times_before_listing(path)
    folders, names = [], []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.name.lower().endswith(extensions) and not is_apple_double(entry.name):
                names.append(entry.name)
    yield folder, names
    for name in folders:
        yield from _walk(root, f"{folder}/{name}", extensions, (*above, path), times)


def _joined(names: Iterable[str]) -> npt.NDArray[np.uint8]:
    """Names of files in one array: none holds a zero byte."""
    return np.frombuffer(b"".join(os.fsencode(name) + b"\0" for name in names), dtype=np.uint8)


def _split(names: npt.NDArray[np.uint8]) -> list[str]:
    return [os.fsdecode(name) for name in names.tobytes().split(b"\0")[:-1]]
