"""Listing image files: from class folders, or from a text file of paths and labels.

Class folders come in the order of torchvision.datasets.ImageFolder; the text file is DALI's and
Caffe's file_list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

LABEL = re.compile(r"[+-]?[0-9]{1,18}")
"""Of at most 18 digits, which fit into 64 bits."""


def list_classes(root: Path) -> list[str]:
    """The names of the folders in ``root``, sorted.

    Raises:
        FileNotFoundError: ``root`` does not exist, or holds no folder.
        NotADirectoryError: ``root`` is a file.
    """
    if not root.exists():
        raise FileNotFoundError(f"no such folder: {str(root)!r}. Remedy: check the path")
    if not root.is_dir():
        raise NotADirectoryError(
            f"not a folder: {str(root)!r}. Remedy: give the folder of the class folders; a list of "
            "files is read by FolderSource.from_file_list"
        )
    with os.scandir(root) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir())
    if not classes:
        raise FileNotFoundError(
            f"no class folder in {str(root)!r}: each class is a folder of its own there. Remedy: "
            "give the folder above, or FolderSource.from_paths(paths) for images without classes"
        )
    return classes


def list_images(root: Path, class_name: str, extensions: tuple[str, ...]) -> list[str]:
    """The images of one class, at any depth: paths relative to ``root``, separated by ``/``.

    Sorted by folder, then by name, by code point: the same on every machine and in every
    locale. Links to folders are followed, but a link to a folder above itself is an error.

    Args:
        root: the folder of the class folders.
        class_name: one of them.
        extensions: in lower case; files that end otherwise are left out.

    Raises:
        OSError: a folder cannot be listed.
        ValueError: links form a loop.
    """
    files = sorted(_walk(root, class_name, ()))
    return [f"{folder}/{name}" for folder, name in files if name.lower().endswith(extensions)]


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


def _walk(root: Path, folder: str, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(folder, name) of each file under a folder."""
    path = os.path.realpath(root / folder)
    if path in above:
        raise ValueError(
            f"the folder {str(root / folder)!r} is a link to {path!r}, which holds it. Remedy: "
            "remove that link"
        )
    folders = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                folders.append(entry.name)
            else:
                yield folder, entry.name
    for name in folders:
        yield from _walk(root, f"{folder}/{name}", (*above, path))
