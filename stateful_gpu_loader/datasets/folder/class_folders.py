"""Listing a folder of class folders, in the order of torchvision.datasets.ImageFolder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


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
