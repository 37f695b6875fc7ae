"""Describes the data at the paths given to a DALI reader, as far as possible without reading it."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stateful_gpu_loader.integrations.dali_identity import DATA
from stateful_gpu_loader.integrations.dali_pipeline.graph import Operator

SMALL = 1 << 20
"""Largest size in bytes of files that are compared by content: lists, indices, annotations."""

_PATHS = sorted(DATA - {"files", "labels"})

_KNOWN_FILES = tuple(
    f"*.{extension}"
    for extension in (
        *("jpg", "jpeg", "png", "bmp", "tif", "tiff", "pnm", "ppm", "pgm", "pbm", "jp2", "webp"),
        *("flac", "ogg", "wav"),
    )
)
"""DALI's default ``file_filters`` of the file reader."""

Matches = Callable[[str], object]


def contents_of(operator: Operator) -> dict[str, str]:
    """Return a description of the data at each path of a reader, by the argument's name.

    It replaces the path, as data may be moved. A file is described by its name, its size and, up to
    1 MiB, its content; a folder by the names of the files that the reader takes from it and from
    its subfolders; a folder of LMDB by the size of its data. Paths that do not exist are left out.

    >>> reader = Operator("reader", "readers.File", (), {"file_root": "/nowhere", "num_shards": 2})
    >>> contents_of(reader)
    {}
    """
    listed = any(name in operator.arguments for name in ("files", "file_list", "annotations_file"))
    found = {}
    for name in _PATHS:
        paths = operator.arguments.get(name, [])
        paths = [paths] if isinstance(paths, str) else paths
        if not operator.kind.startswith("readers.") or not all(map(_exists, paths)) or not paths:
            continue
        if name == "file_root" and listed:
            # Another argument tells which files are read; this is only the folder they are in.
            found[name] = "a folder"
        else:
            contents = [_content(path, operator) for path in paths]
            several = f"{len(paths)} paths, {_digest(contents)}"
            found[name] = contents[0] if len(contents) == 1 else several
    return found


def _exists(path: Any) -> bool:
    """Whether a file or folder is there; reading a named pipe would wait for its writer."""
    return isinstance(path, str) and (os.path.isfile(path) or os.path.isdir(path))


def _content(path: str, operator: Operator) -> str:
    if os.path.isdir(path):
        data = Path(path) / "data.mdb"
        if data.is_file():
            return f"{data.stat().st_size} bytes of LMDB"
        names = list(_read_names(path, operator))
        num_files = sum(not name.endswith(os.sep) for name in names)
        return f"{num_files} files, {_digest(names)}"
    size = os.path.getsize(path)
    described = f"{os.path.basename(path)}, {size} bytes"
    if size > SMALL:
        return described
    return f"{described}, {blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()}"


def _read_names(root: str, operator: Operator) -> Iterator[str]:
    """Yield the names that a reader takes from a folder; others must not count as changed data.

    Hidden files are taken like others.
    """
    arguments = operator.arguments
    if operator.kind == "readers.File":
        # Empty folders count, too, as they are labels.
        exact = bool(arguments.get("case_sensitive_filter"))
        is_file = _matches(arguments.get("file_filters", _KNOWN_FILES), exact=exact)
        is_folder = _matches(arguments.get("dir_filters", "*"), exact=exact)
        for folder in _sorted_entries(root):
            if folder.is_dir() and is_folder(folder.name):
                yield folder.name + os.sep
                yield from _file_names(folder.path, folder.name, is_file)
        return
    pattern = arguments.get("file_filter", "*.npy") if operator.kind == "readers.Numpy" else "*"
    is_file = _matches(pattern, exact=True)
    yield from _file_names(root, "", is_file)
    for folder in _sorted_entries(root):
        if folder.is_dir():
            yield from _file_names(folder.path, folder.name, is_file)


def _file_names(folder: str, below: str, is_file: Matches) -> Iterator[str]:
    """Yield the names of matching files in a folder; DALI does not look into subfolders of it."""
    for entry in _sorted_entries(folder):
        if is_file(entry.name) and not entry.is_dir():
            yield os.path.join(below, entry.name)


def _sorted_entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _matches(patterns: str | list[str] | tuple[str, ...], *, exact: bool) -> Matches:
    """Return a function that tells whether one of DALI's patterns matches a name.

    Args:
        exact: whether matching is case-sensitive.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if any(sign in pattern for pattern in patterns for sign in "\\^"):
        # These signs mean other things to DALI than to Python: rather match too many names than too
        # few.
        return bool
    expressions = "|".join(map(fnmatch.translate, patterns))
    return re.compile(expressions, 0 if exact else re.IGNORECASE).match


def _digest(parts: Iterable[str]) -> str:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(os.fsencode(part) + b"\0")
    return digest.hexdigest()
