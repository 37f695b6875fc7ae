"""What lies at the paths that a DALI reader is given, so far as it is known without reading it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stateful_gpu_loader.integrations.dali_pipeline.graph import Operator

SMALL = 1 << 20
"""Bytes of a file up to which it counts by its content: lists, indices, small annotations."""

_PATHS = (
    "annotations_file",
    "file_list",
    "file_root",
    "index_path",
    "index_paths",
    "path",
    "paths",
)


def contents_of(operator: Operator) -> dict[str, str]:
    """What lies at each path of a reader, by the argument that names it.

    In place of the paths themselves: data may move. A file counts by its name, its size and, up to
    1 MiB, its content; a folder by the names of the files in it and in its folders; LMDB's folder
    by the size of its data. What does not exist is left as it is named.

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
            contents = [_content(path) for path in paths]
            several = f"{len(paths)} paths, {_digest(contents)}"
            found[name] = contents[0] if len(contents) == 1 else several
    return found


def _exists(path: Any) -> bool:
    return isinstance(path, str) and os.path.exists(path)


def _content(path: str) -> str:
    if os.path.isdir(path):
        data = Path(path) / "data.mdb"
        if data.is_file():
            return f"{data.stat().st_size} bytes of LMDB"
        names = list(_names(path))
        return f"{len(names)} files, {_digest(names)}"
    size = os.path.getsize(path)
    described = f"{os.path.basename(path)}, {size} bytes"
    if size > SMALL:
        return described
    return f"{described}, {blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()}"


def _names(root: str, below: str = "") -> Iterator[str]:
    """Of the files in a folder and in the folders in it; DALI looks no deeper."""
    with os.scandir(os.path.join(root, below)) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = os.path.join(below, entry.name)
            if not entry.is_dir():
                yield name
            elif not below:
                yield from _names(root, name)


def _digest(parts: Iterable[str]) -> str:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(os.fsencode(part) + b"\0")
    return digest.hexdigest()
