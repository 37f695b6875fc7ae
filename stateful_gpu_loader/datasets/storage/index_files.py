"""Indices of files, built once and kept: beside the file, or in a cache directory."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.storage.remote import remote_identity

Index = dict[str, npt.NDArray[np.generic]]
"""Arrays by name; none of objects."""

_HEADER, _CONTENTS = "header", "contents"


def identity_of(path: str) -> tuple[int, str]:
    """Size in bytes, and a text that changes when the file is written anew.

    Raises:
        OSError: there is no such file, or it cannot be asked.
    """
    if is_url(path):
        return remote_identity(path)
    status = os.stat(path)
    return status.st_size, str(status.st_mtime_ns)


def cached_index(
    path: str,
    *,
    kind: str,
    build: Callable[[], Index],
    cache_dir: str | None = None,
    fits: Callable[[Index], bool] = lambda index: True,
) -> Index:
    """The index of a file: read if one was kept and still fits, else built and kept.

    It is kept beside the file as ``.<name>.<kind>.npz`` where that folder can be written, else in
    the cache folder. It is built anew if the file's size or time of change is another one since, or
    if it is damaged or of another kind. It is written to a temporary file that is then renamed, so
    that several processes may build it at the same time.

    Args:
        path: local, or a URL; a file, or a folder.
        kind: name and version of the index, such as ``"tar-1"``.
        build: makes it; called once at most.
        cache_dir: where to keep it, and only there; None is beside a local file, else
            ``$XDG_CACHE_HOME/stateful_gpu_loader`` (``~/.cache`` by default).
        fits: whether an index is right for what the file's own size and time of change say nothing
            about; one that does not fit is neither taken nor kept.

    Raises:
        OSError: the file cannot be asked for its size.
    """
    size, mark = identity_of(path)
    header = json.dumps({"kind": kind, "size": size, "mark": mark})
    places = _places(path, kind, cache_dir)
    for place in places:
        found = _load(place, header)
        if found is not None and fits(found):
            return found
    index = build()
    for place in places if fits(index) else ():
        try:
            _save(place, header, index)
        except OSError:
            continue  # this folder cannot be written: try the next one
        break
    return index


def _places(path: str, kind: str, cache_dir: str | None) -> list[Path]:
    digest = hashlib.blake2b(path.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    name = f"{digest}.{kind}.npz"
    if cache_dir is not None:
        return [Path(cache_dir).expanduser() / name]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    general = Path(home) / "stateful_gpu_loader" / name
    # Hidden, so that the wildcard that found the file does not find its index the next time.
    folder, own = os.path.split(path)
    return [general] if is_url(path) else [Path(folder, f".{own}.{kind}.npz"), general]


def _load(place: Path, header: str) -> Index | None:
    try:
        # Opened here, because np.load leaves a damaged file open.
        with open(place, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            if str(file[_HEADER]) != header:
                return None
            index = {name: file[name] for name in file.files if name not in (_HEADER, _CONTENTS)}
            return index if str(file[_CONTENTS]) == _contents(index) else None
    except Exception:
        # NumPy and zipfile raise many types for damaged bytes, and the index is only built anew.
        return None


def _contents(index: Index) -> str:
    """The type, shape and digest of each array, by name, so that no other array passes for it."""
    return json.dumps(
        {
            name: [array.dtype.str, array.shape, _digest(array)]
            for name, array in sorted(index.items())
        }
    )


def _digest(array: npt.NDArray[np.generic]) -> str:
    # Of the bytes where they lie: a listing of a million names has forty megabytes of them.
    return hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _save(place: Path, header: str, index: Index) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(
        dir=place.parent, prefix=f".{place.name}", suffix=".part"
    )
    try:
        with open(descriptor, "wb") as file:
            about = {_HEADER: np.array(header), _CONTENTS: np.array(_contents(index))}
            np.savez(file, **about, **index)  # type: ignore[arg-type]
        os.chmod(temporary, 0o644)  # mkstemp's files are for their owner alone
        os.replace(temporary, place)
    except BaseException:
        os.unlink(temporary)
        raise
