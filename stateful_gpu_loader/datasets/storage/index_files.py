"""Indices of files, built once and kept: beside the file, or in a cache directory.

An index of folders is good while their times are the same. A folder's times change when an entry is
added, removed or renamed, and not when the content of a file does. The time of modification can be
set back, as tar does when it unpacks more into a folder; the time of change cannot.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
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
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.storage.remote import remote_identity

logger = logging.getLogger(__name__)

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
    check: Callable[[Index, int], None],
    cache_dir: str | None = None,
    fits: Callable[[Index], bool] = lambda index: True,
) -> Index:
    """Return the index of a file: a kept one that still fits, else a new one, which is kept.

    It is kept beside the file as ``.<name>.<kind>.npz`` where that folder can be written, else in
    the cache folder. It is built again if the file's size, time of modification, inode or file
    system has changed. It is built again, with a line in the log, if it is damaged or not trusted
    (:class:`KeptFile`). It is written to a temporary file that is then renamed, so that several
    processes may build it at the same time.

    Args:
        path: local, or a URL; a file, or a folder.
        kind: name and version of the index, such as ``"tar-1"``.
        build: makes it; called once at most.
        check: raises ValueError if a kept index, given with the file's size in bytes, cannot be
            that of the file.
        cache_dir: where to keep it, and only there; None is beside a local file, else
            ``$XDG_CACHE_HOME/stateful_gpu_loader`` (``~/.cache`` by default).
        fits: whether an index is right for what the file's own size and time of change say nothing
            about; one that does not fit is neither taken nor kept.

    Raises:
        OSError: the file cannot be asked for its size.
    """
    size, identity = _identity(path)
    header = json.dumps({"kind": kind, "size": size, **identity})
    owners = owners_for_data(None if is_url(path) else path)
    places = _places(path, kind, cache_dir)
    refused = {}
    for place in places:
        try:
            found = _load(place, header, owners)
            if found is not None:
                check(found, size)
                if fits(found):
                    return found
        except (FileNotFoundError, NotADirectoryError):
            continue
        except Exception as error:
            # NumPy and zipfile raise many types for damaged bytes, MemoryError among them.
            refused[place] = f"{type(error).__name__}: {error}"
    for place, reason in refused.items():
        logger.warning("the kept index %r is not used, and is built again: %s", str(place), reason)
    index = build()
    if fits(index):
        _keep(places, header, index, owners)
    return index


def remove_index(path: str, *, kind: str, cache_dir: str | None) -> list[str]:
    """Remove what is kept as the index of a file, and return the paths that were removed."""
    removed = []
    for place in map(str, _places(path, kind, cache_dir)):
        try:
            os.unlink(place)
        except OSError:
            continue  # not there, or not ours to remove
        removed.append(place)
    return removed


def array_in(
    index: Index, name: str, dtype: npt.DTypeLike, *, columns: int | None = None
) -> npt.NDArray[Any]:
    """Return an array of a kept index.

    Args:
        index: the index.
        name: name of the array.
        dtype: type of its elements.
        columns: second dimension; None for an array of one dimension.

    Raises:
        ValueError: the array is missing, or has another type or shape.
    """
    array = index.get(name)
    if array is None:
        raise ValueError(f"it has no array {name!r}")
    shape = array.shape[:1] if columns is None else (*array.shape[:1], columns)
    if array.dtype != dtype or not array.ndim or array.shape != shape:
        raise ValueError(f"its array {name!r} is {array.dtype} of shape {array.shape}")
    return array


def check_ends(name: str, ends: npt.NDArray[np.int64], *, total: int, shortest: int) -> None:
    """Check where parts begin and end that follow each other from 0 on.

    Args:
        name: name of the array.
        ends: int64 [num_parts + 1].
        total: where the last part ends.
        shortest: smallest size of a part.

    Raises:
        ValueError: the parts do not begin at 0, do not end at ``total``, or one is too short.
    """
    # Compared, because a difference could overflow.
    is_ascending = bool((ends[1:] >= ends[:-1]).all())
    if not len(ends) or ends[0] != 0 or ends[-1] != total or not is_ascending:
        raise ValueError(f"its array {name!r} does not ascend from 0 to {total}")
    if len(ends) > 1 and int(np.diff(ends).min()) < shortest:
        raise ValueError(f"its array {name!r} has parts shorter than {shortest}")


def _identity(path: str) -> tuple[int, dict[str, object]]:
    """Size in bytes, and what else tells the file from one that replaces it.

    A file system in user space (FUSE) may number one file differently each time it is mounted. The
    device's number differs from machine to machine, so the file system's own is taken.
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
    # Hidden, so that the wildcard that found the file does not find its index the next time.
    folder, own = os.path.split(path)
    return [general] if is_url(path) else [Path(folder, f".{own}.{kind}.npz"), general]


def _load(place: Path, header: str, owners: Owners) -> Index | None:
    """Return a kept index; None if it is of another file or kind.

    Raises:
        FileNotFoundError: there is none.
        Exception: it is damaged, or not trusted.
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


def _keep(places: list[Path], header: str, index: Index, owners: Owners) -> None:
    """Write an index to the first place where that is possible."""
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
    """Raise PermissionError if another user keeps an index here: both would replace it for ever."""
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
"""int64 [num_folders, 2]: of each, when it was modified and when it was changed, in nanoseconds."""

YOUNG = 2_000_000_000
"""Nanoseconds within which a folder may change twice and show one time, on the coarsest clocks."""
UNKNOWN = (-1, -1)

_MOUNTS = Path("/proc/self/mountinfo")


def times_before_listing(folder: str) -> tuple[int, int]:
    """The times of a folder that is about to be listed; :data:`UNKNOWN` if they are too young.

    Raises:
        OSError: it cannot be asked.
    """
    now = time.time_ns()
    status = os.stat(folder)
    times = status.st_mtime_ns, status.st_ctime_ns
    return times if max(times) < now - YOUNG else UNKNOWN


def are_unchanged(folders: Iterable[str], times: Times) -> bool:
    """Whether no folder has changed since :func:`times_before_listing` gave its times.

    It is said to have where that cannot be known: on file systems in user space (FUSE), since
    those of object stores leave a folder's times as they are when objects come or go.
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
    """Return the devices of mounted FUSE file systems; none where the system lists no mounts."""
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
"""Seconds before a bar appears."""


@contextmanager
def progress_bar(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how much has been done of a work that may take long.

    A bar is drawn on stderr if that is a terminal, tqdm is installed, and the work takes more than
    :data:`DELAY`.

    Args:
        description: what is done, as ``"indexing train.tar"``.
        total: how much there is to do.
        unit: what it is counted in; ``"B"`` is bytes.

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
