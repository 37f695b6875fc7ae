"""Indices of files, built once and kept beside the file or in a cache directory.

An index of folders is valid while their times are unchanged. A folder's times change when an entry
is added, removed or renamed, but not when a file's content changes. Programs such as tar can set
the modification time back, but not the change time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.storage.kept_files import (
    KeptFile,
    Owners,
    new_file,
    owners_for_data,
)
from stateful_gpu_loader.datasets.storage.numpy_headers import read_beside_threads
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.storage.remote import remote_identity

logger = logging.getLogger(__name__)

Index = dict[str, npt.NDArray[np.generic]]
"""Arrays by name; none of dtype object."""

_HEADER, _CONTENTS = "header", "contents"


def identity_of(path: str) -> tuple[int, str]:
    """Return the size in bytes, and a text that changes when the file is rewritten.

    Raises:
        OSError: the file does not exist, or its status cannot be read.
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
    check: Callable[[Index, int], None],
    cache_dir: str | None = None,
    fits: Callable[[Index], bool] = lambda index: True,
) -> Index:
    """Return the index of a file: a valid kept index, else a new one, which is kept.

    The index is kept beside the file as ``.<name>.<kind>.npz`` where that folder is writable, else
    in the cache folder. It is built again if the file's size, modification time, inode or file
    system has changed. A damaged or untrusted index (:class:`KeptFile`) is logged and built again.
    Several processes may build an index at the same time.

    Args:
        path: file or folder; a local path or a URL.
        kind: name and version of the index, such as ``"tar-1"``.
        build: builds the index; called at most once.
        check: raises ValueError if a kept index does not match the file's size in bytes.
        cache_dir: the only directory for the index; None keeps it beside a local file, else in
            ``$XDG_CACHE_HOME/stateful_gpu_loader`` (``~/.cache`` by default).
        fits: whether an index is valid beyond the file's size and change time; an index that does
            not fit is neither used nor kept.

    Raises:
        OSError: the file's status cannot be read.
    """
    size, identity = _identity(path)
    header = json.dumps({"kind": kind, "size": size, **identity})
    owners = owners_for_data(None if is_url(path) else path)
    places = _places(path, kind, cache_dir)
    refused = {}
    for place in places:
        try:
            found = read_beside_threads(partial(_load, place, header, owners))
            if found is not None:
                check(found, size)
                if fits(found):
                    return found
        except (FileNotFoundError, NotADirectoryError):
            continue
        except Exception as error:
            # NumPy and zipfile raise many types, including MemoryError.
            refused[place] = f"{type(error).__name__}: {error}"
    for place, reason in refused.items():
        logger.warning("the kept index %r is not used, and is built again: %s", str(place), reason)
    index = build()
    if fits(index):
        _keep(places, header, index, owners)
    return index


def remove_index(path: str, *, kind: str, cache_dir: str | None) -> list[str]:
    """Remove the kept indices of a file, and return the removed paths."""
    removed = []
    for place in map(str, _places(path, kind, cache_dir)):
        try:
            os.unlink(place)
        except OSError:
            continue  # missing, or not ours to remove
        removed.append(place)
    return removed


def array_in(
    index: Index, name: str, dtype: npt.DTypeLike, *, columns: int | None = None
) -> npt.NDArray[Any]:
    """Return an array of a kept index.

    Args:
        columns: expected second dimension; None for a 1-D array.

    Raises:
        ValueError: the array is missing, or has another dtype or shape.
    """
    array = index.get(name)
    if array is None:
        raise ValueError(f"it has no array {name!r}")
    shape = array.shape[:1] if columns is None else (*array.shape[:1], columns)
    if array.dtype != dtype or not array.ndim or array.shape != shape:
        raise ValueError(f"its array {name!r} is {array.dtype} of shape {array.shape}")
    return array


def check_ends(name: str, ends: npt.NDArray[np.int64], *, total: int, shortest: int) -> None:
    """Check the ends of consecutive parts that begin at 0.

    Args:
        ends: int64 [num_parts + 1].
        total: end of the last part.
        shortest: smallest allowed size of a part.

    Raises:
        ValueError: the parts do not begin at 0 or end at ``total``, or a part is too short.
    """
    # Compared, because a subtraction could overflow.
    is_ascending = bool((ends[1:] >= ends[:-1]).all())
    if not len(ends) or ends[0] != 0 or ends[-1] != total or not is_ascending:
        raise ValueError(f"its array {name!r} does not ascend from 0 to {total}")
    if len(ends) > 1 and int(np.diff(ends).min()) < shortest:
        raise ValueError(f"its array {name!r} has parts shorter than {shortest}")


def _identity(path: str) -> tuple[int, dict[str, object]]:
    """Return the size in bytes, and attributes that a replacement file changes.

    Inodes on FUSE may differ between mounts, so they are left out. Device numbers differ between
    machines, so the file system's own identifier is used.
    """
    if is_url(path):
        size, mark = remote_identity(path)
        return size, {"mark": mark}
    status = os.stat(path)
    known: dict[str, object] = {"mark": str(status.st_mtime_ns)}
    if status.st_dev not in devices_in_user_space():
        known |= {"inode": status.st_ino, "file_system": os.statvfs(path).f_fsid}
    return status.st_size, known


def _places(path: str, kind: str, cache_dir: str | None) -> list[Path]:
    digest = hashlib.blake2b(path.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    name = f"{digest}.{kind}.npz"
    if cache_dir is not None:
        return [Path(cache_dir).expanduser() / name]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    general = Path(home) / "stateful_gpu_loader" / name
    # Hidden, so that a wildcard that matched the file does not match its index.
    folder, own = os.path.split(path)
    return [general] if is_url(path) else [Path(folder, f".{own}.{kind}.npz"), general]


def _load(place: Path, header: str, owners: Owners) -> Index | None:
    """Return a kept index; None if it belongs to another file or kind.

    Raises:
        FileNotFoundError: no index is kept there.
        Exception: the index is damaged or not trusted.
    """
    kept = KeptFile(str(place), os.O_RDONLY, owners)
    # Opened here, because np.load leaves a damaged file open.
    with (
        open(kept.number, "rb", closefd=False) as opened,
        np.load(opened, allow_pickle=False) as file,
    ):
        unpacked = sum(part.file_size for part in file.zip.infolist())
        if unpacked > os.fstat(kept.number).st_size:
            raise ValueError(f"its arrays claim {unpacked} bytes, more than the file has")
        if str(file[_HEADER]) != header:
            return None
        index = {name: file[name] for name in file.files if name not in (_HEADER, _CONTENTS)}
        if str(file[_CONTENTS]) != _contents(index):
            raise ValueError("the checksum of its arrays differs")
        return index


def _contents(index: Index) -> str:
    """Return the dtype, shape and digest of each array as JSON."""
    return json.dumps(
        {
            name: [array.dtype.str, array.shape, _digest(array)]
            for name, array in sorted(index.items())
        }
    )


def _digest(array: npt.NDArray[np.generic]) -> str:
    # Hashed without a copy: the listing of a million names takes 40 MB.
    return hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _keep(places: list[Path], header: str, index: Index, owners: Owners) -> None:
    """Write an index to the first place that accepts it."""
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _check_replaceable(place, owners)
            with new_file(place, owners) as (file, temporary):
                about = {_HEADER: np.array(header), _CONTENTS: np.array(_contents(index))}
                np.savez(file, **about, **index)  # type: ignore[arg-type]
                file.close()
                os.replace(temporary, place)
        except OSError as error:
            failure = error
            continue
        return
    _say_unkept(str(places[-1].parent), str(failure))


def _check_replaceable(place: Path, owners: Owners) -> None:
    """Raise PermissionError if another user keeps an index here."""
    try:
        owner = place.lstat().st_uid
    except FileNotFoundError:
        return
    if owner not in owners:
        raise PermissionError(f"{str(place)!r} belongs to user {owner}")


@lru_cache(maxsize=64)
def _say_unkept(folder: str, reason: str) -> None:
    """Log that indices are not kept, once for each folder and reason."""
    logger.warning(
        "an index could not be kept in %r, and will be built again next time: %s. Remedy: make "
        "room there, or pass cache_dir=",
        folder,
        reason,
    )


Times = npt.NDArray[np.int64]
"""int64 [num_folders, 2]: modification and change time of each folder, in nanoseconds."""

YOUNG = 2_000_000_000
"""Nanoseconds within which a coarse clock may miss a folder's second change."""
UNKNOWN = (-1, -1)

_MOUNTS = Path("/proc/self/mountinfo")


def times_before_listing(folder: str) -> tuple[int, int]:
    """Return the times of a folder before it is listed; :data:`UNKNOWN` if they are too recent.

    Raises:
        OSError: the folder's status cannot be read.
    """
    now = time.time_ns()
    status = os.stat(folder)
    times = status.st_mtime_ns, status.st_ctime_ns
    return times if max(times) < now - YOUNG else UNKNOWN


def are_unchanged(folders: Iterable[str], times: Times) -> bool:
    """Return whether no folder has changed since :func:`times_before_listing` returned its times.

    Folders on FUSE always count as changed, because object stores may leave their times unchanged.
    """
    devices: set[int] = set()
    try:
        for folder, before in zip(folders, times.tolist(), strict=True):
            status = os.stat(folder)
            if [status.st_mtime_ns, status.st_ctime_ns] != before:
                return False
            devices.add(status.st_dev)
    except OSError:
        return False
    return devices.isdisjoint(devices_in_user_space())


def devices_in_user_space() -> set[int]:
    """Return the devices of mounted FUSE file systems; empty if the mounts cannot be listed."""
    devices = set()
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if kind.startswith("fuse"):
            major, minor = mount.split()[2].split(":")
            devices.add(os.makedev(int(major), int(minor)))
    return devices


DELAY = 1.0
"""Seconds before a progress bar appears."""


@contextmanager
def progress_bar(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the amount of work done so far.

    A bar appears on a terminal's stderr after :data:`DELAY`, if tqdm is installed.

    Args:
        description: label of the bar, such as ``"indexing train.tar"``.
        total: total amount of work.
        unit: unit of the amounts; ``"B"`` for bytes.

    >>> with progress_bar("indexing train.tar", 1 << 20, "B") as note:
    ...     note(1 << 19)
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield lambda done: None
        return
    with tqdm(
        desc=description,
        total=total,
        unit=unit,
        unit_scale=True,
        delay=DELAY,
        leave=False,
        disable=None,
    ) as bar:
        yield lambda done: None if bar.disable else bar.update(done - bar.n)
