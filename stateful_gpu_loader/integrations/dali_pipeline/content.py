"""What lies at the paths that a DALI reader is given, so far as it is known without reading it."""

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
"""Bytes of a file up to which it counts by its content: lists, indices, small annotations."""

_PATHS = sorted(DATA - {"files", "labels"})

_KNOWN_FILES = tuple(
    f"*.{extension}"
    for extension in (
        *("jpg", "jpeg", "png", "bmp", "tif", "tiff", "pnm", "ppm", "pgm", "pbm", "jp2", "webp"),
        *("flac", "ogg", "wav"),
    )
)
"""DALI's own ``file_filters`` of the file reader."""

Matches = Callable[[str], object]


def contents_of(operator: Operator) -> dict[str, str]:
    """What lies at each path of a reader, by the argument that names it.

    In place of the paths themselves: data may move. A file counts by its name, its size and, up to
    1 MiB, its content; a folder by the names of the files that the reader takes from it and from
    its folders; LMDB's folder by the size of its data. What does not exist is left as it is named.

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
            # Which files are read stands elsewhere; this is only where they lie.
            found[name] = "a folder"
        else:
            contents = [_content(path, operator) for path in paths]
            several = f"{len(paths)} paths, {_digest(contents)}"
            found[name] = contents[0] if len(contents) == 1 else several
    return found


def _exists(path: Any) -> bool:
    return isinstance(path, str) and os.path.exists(path)


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
    """Of what a reader takes from a folder: what it passes over must not make it other data.

    It takes hidden files like others.
    """
    arguments = operator.arguments
    if operator.kind == "readers.File":
        # Empty folders, too: they count in the labels.
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
    """DALI looks no deeper."""
    for entry in _sorted_entries(folder):
        if is_file(entry.name) and not entry.is_dir():
            yield os.path.join(below, entry.name)


def _sorted_entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _matches(patterns: str | list[str] | tuple[str, ...], *, exact: bool) -> Matches:
    """Whether one of DALI's patterns fits a name.

    Args:
        exact: whether case counts.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if any(sign in pattern for pattern in patterns for sign in "\\^"):
        # Which mean other things to DALI than to Python: better a name too many than one too few.
        return bool
    expressions = "|".join(map(fnmatch.translate, patterns))
    return re.compile(expressions, 0 if exact else re.IGNORECASE).match


def _digest(parts: Iterable[str]) -> str:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(os.fsencode(part) + b"\0")
    return digest.hexdigest()
