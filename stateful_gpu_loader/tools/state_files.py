"""Finds loaders' states in a file or folder, and writes a copy with other states.

No pickle is executed: files of ``torch.save`` are read as weights only, and pickles in them or in
distributed checkpoints as plain values.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from stateful_gpu_loader.checkpoint import document
from stateful_gpu_loader.checkpoint.files import (
    kind_of,
    open_regular,
    read_regular,
    size_of,
)
from stateful_gpu_loader.checkpoint.files import read as read_checkpoint
from stateful_gpu_loader.engine.resume.rank_states import comparable
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.state.json_text import check_text
from stateful_gpu_loader.state.schema import FORMAT, says_own_format
from stateful_gpu_loader.state.torchdata import is_torchdata_state
from stateful_gpu_loader.state.typed_json import decode, encode, parse, write
from stateful_gpu_loader.tools import distributed_checkpoint, torch_file
from stateful_gpu_loader.tools.distributed_checkpoint import Key, Unread, with_tensors
from stateful_gpu_loader.tools.pickle_machine import MAX_DEPTH, Expansion
from stateful_gpu_loader.tools.torch_file import load_plain

TORCH, LIGHTNING = "torch.save file", "Lightning checkpoint"
CHECKPOINT, JSON = "Checkpoint file", "JSON file"
ACCELERATE, TRANSFORMERS = "Accelerate checkpoint", "transformers checkpoint"
DCP = "distributed checkpoint (DCP)"

_RANK = re.compile(r"dp_rank_(\d+)")
"""Key of a data-parallel rank's state in torchtitan and RankedState."""
_MAX_JSON_BYTES = 64 << 20
_MAX_STATES = 10_000
"""Maximum number of states in one file."""
_BLOCK = 1 << 20
_LONGEST_REASON = 300
"""Maximum number of characters of a reason."""
_MARKS = (FORMAT.encode(), b"_iterator_finished", b"_num_yielded", b"_steps_since_snapshot")
"""Texts of which each state has one; other files need not be read."""


class NoState(LoaderError):
    """No loader's state was found, or a file cannot be read or written."""


@dataclass(frozen=True)
class FoundState:
    """A loader's state and its place."""

    path: Path
    """File, or folder of a distributed checkpoint."""
    key: Key
    """Keys that lead to the state inside the file, if any."""
    container: str
    """Kind of the file, in words."""
    state: dict[str, Any]
    num_ranks: int | None = None
    """Number of data-parallel ranks, if the file says it."""
    note: str = ""
    """Sentence about this place, or empty."""

    @property
    def where(self) -> str:
        """Place in the file: keys joined by dots."""
        return ".".join(map(str, self.key))

    @property
    def rank(self) -> int | None:
        """Data-parallel rank of the state, if the file says it."""
        found = _RANK.fullmatch(str(self.key[-1])) if self.key else None
        return None if found is None else int(found[1])

    @property
    def is_of_torchdata(self) -> bool:
        """Whether torchdata's StatefulDataLoader wrote it."""
        return not says_own_format(self.state)


@dataclass(frozen=True)
class Search:
    """States found below a path."""

    path: Path
    states: tuple[FoundState, ...]
    unreadable: tuple[Unreadable, ...]
    """Files and places that may hold a state but cannot be read."""

    def nothing(self) -> NoState:
        """Return the error that there is no state, with everything unreadable."""
        nothing = f"no state of a loader in {str(self.path)!r}"
        return NoState(". ".join([nothing, *map(str, self.unreadable)]))


@dataclass(frozen=True)
class Unreadable:
    """A file, or a place in a file, that may hold a state but cannot be read."""

    path: Path
    where: str
    """Place in the file, as in :attr:`FoundState.where`; empty for the whole file."""
    reason: str

    def __str__(self) -> str:
        place = f"{self.where!r} in " if self.where else ""
        return f"{place}{str(self.path)!r} {self.reason}"


def find_states(path: str | os.PathLike[str]) -> list[FoundState]:
    """Return all loaders' states in a file, or in all files below a folder.

    Files of ``torch.save`` (Lightning, most training scripts), JSON, this package's ``Checkpoint``
    (Accelerate, transformers), and folders of ``torch.distributed.checkpoint`` (torchtitan) are
    read.

    Raises:
        NoState: there is no state, the file does not exist, or no file can be read without
            executing code.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     state = StatefulGPULoader([1, 2, 3], seed=1).state_dict()
    ...     torch.save({"model": {}, "loader": state}, f"{folder}/last.pt")
    ...     [found] = find_states(folder)
    >>> found.where, found.container, found.state == state
    ('loader', 'torch.save file', True)
    """
    found = search(path)
    if not found.states:
        raise found.nothing()
    return list(found.states)


def search(path: str | os.PathLike[str]) -> Search:
    """Search like :func:`find_states`, but also list unreadable files, and allow no states.

    Raises:
        NoState: the file does not exist.
    """
    top = Path(path)
    if not top.exists():
        raise NoState(f"there is no file or folder {str(top)!r}")
    found: list[FoundState] = []
    unreadable: list[Unreadable] = []
    for listed in files_in(top, distributed_checkpoint.is_one):
        file = listed.path
        if listed.refusal:
            unreadable.append(Unreadable(file, "", listed.refusal))
            continue
        try:
            container, tree = _content(file)
            states = list(_Finder().states(tree, (), None))
        except RecursionError:
            unreadable.append(Unreadable(file, "", "cannot be read: it is nested too deeply"))
            continue
        except Exception as error:
            unreadable.append(Unreadable(file, "", _reason(error)))
            continue
        good = [
            FoundState(file, key, container, state, num_ranks)
            for key, state, num_ranks in states
            if not isinstance(state, Exception)
        ]
        found += _with_notes(good)
        unreadable += [
            Unreadable(file, ".".join(map(str, key)), _reason(error))
            for key, error, _ in states
            if isinstance(error, Exception)
        ]
    return Search(top, tuple(found), tuple(dict.fromkeys(unreadable)))


def write_states(
    path: str | os.PathLike[str],
    changes: Sequence[tuple[FoundState, Mapping[str, Any]]],
    out: str | os.PathLike[str],
) -> None:
    """Write a copy of a file or folder with other states in it.

    The copy appears under its name when it is complete.

    Args:
        path: path that was passed to :func:`find_states`.
        changes: states that were found there, each with its replacement.
        out: the new file or folder; missing parent folders are created.

    Raises:
        NoState: ``out`` exists already, or a file of this kind cannot hold the state, such as a
            distributed checkpoint. Nothing is written.
    """
    source, target = Path(path), Path(out)
    if os.path.lexists(target):
        raise NoState(f"{str(target)!r} already exists. Remedy: choose another name")
    for found, _ in changes:
        if found.container == DCP:
            raise NoState(
                f"states in a distributed checkpoint, {str(found.path)!r}, cannot be replaced. "
                "Remedy: load it in your program, call loader.seek(epoch=..., position=...) before "
                "the first batch, and save it again"
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        copied = Path(folder, target.name)
        if source.is_dir():
            shutil.copytree(source, copied, symlinks=True, copy_function=_copy_regular)
        for file in dict.fromkeys(found.path for found, _ in changes):
            container, tree = _content(file)
            for found, state in changes:
                if found.path == file:
                    tree = _replaced(tree, found.key, dict(state))
            inner = copied / file.relative_to(source)
            try:
                _write(file, container, tree, _own(inner, copied))
            except (TypeError, ValueError, RecursionError) as error:
                raise NoState(f"the state cannot be written into a {container}: {error}") from error
            os.chmod(inner, stat.S_IMODE(file.stat().st_mode) & 0o777)
            _check_written(
                inner, [(found, state) for found, state in changes if found.path == file]
            )
        os.replace(copied, target)


def _copy_regular(source: str, copied: str) -> None:
    """Copy one file of a folder.

    Raises:
        NoState: the file is not regular, so copying might never end.
    """
    mode = os.stat(source).st_mode
    if not stat.S_ISREG(mode):
        raise NoState(f"{source!r} is {kind_of(mode)}, which is not copied. Remedy: move it away")
    shutil.copy2(source, copied)


def _own(inner: Path, copied: Path) -> Path:
    """Return the path of a file in the copy, after removing a link there.

    Raises:
        NoState: a parent folder is a link out of the copy.
    """
    if not inner.parent.resolve().is_relative_to(copied.parent.resolve()):
        raise NoState(f"{inner.name!r} is in a folder that is a link. Remedy: pass its real path")
    if inner.is_symlink():
        inner.unlink()
    return inner


def _check_written(file: Path, changes: Sequence[tuple[FoundState, Mapping[str, Any]]]) -> None:
    """Read the states back, and compare them.

    Raises:
        NoState: a state is missing or different.
    """
    written = {found.key: found.state for found in search(file).states}
    for found, state in changes:
        if comparable(written.get(found.key)) != comparable(dict(state)):
            raise NoState(f"a {found.container} cannot hold the state at {found.where!r}")


def _content(file: Path) -> tuple[str, Any]:
    """Return the kind and the content of a file; ("", None) for an unknown kind.

    Raises:
        Exception: of many types, if the file is damaged, too large or not regular, or reading would
            execute code.
    """
    if file.is_dir():
        return DCP, distributed_checkpoint.read_values(file)
    with open_regular(file) as opened:
        beginning = opened.read(64)
        opened.seek(0)
        if document.FORMAT.encode() in beginning:
            saved = document.from_text(read_checkpoint(str(file)))
            return _kind_of_checkpoint(file), {name: one.state for name, one in saved.items()}
        if beginning[:1] == b"{" and _names_a_state(opened):
            text = read_regular(file, _MAX_JSON_BYTES)
            check_text(text)
            return JSON, json.loads(text)
        is_zip = beginning[:2] == b"PK"
        if is_zip and not _has_mark(torch_file.Zip.of(opened, size_of(opened)).read_pickle(opened)):
            return "", None
        if is_zip or (beginning[:1] == b"\x80" and _names_a_state(opened)):
            opened.seek(0)
            torch_file.check(opened, size_of(opened))
            path = _path_of(opened, file)
            tree = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
            is_lightning = isinstance(tree, Mapping) and "pytorch-lightning_version" in tree
            return LIGHTNING if is_lightning else TORCH, tree
    return "", None


def _path_of(opened: BinaryIO, file: Path) -> Path:
    """Return a path to an open file that no one can replace.

    torch maps a file only by a path that is valid text.
    """
    own = Path(f"/proc/self/fd/{opened.fileno()}")
    return own if own.exists() else file


def _names_a_state(file: BinaryIO) -> bool:
    """Return whether a file contains one of :data:`_MARKS`."""
    longest, last = max(map(len, _MARKS)), b""
    while block := file.read(_BLOCK):
        if _has_mark(last + block):
            return True
        last = block[-longest:]
    return False


def _has_mark(content: bytes) -> bool:
    return any(content.find(mark) >= 0 for mark in _MARKS)


def _reason(error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0]
    if len(reason) > _LONGEST_REASON:
        reason = f"{reason[:_LONGEST_REASON]}... ({len(reason)} characters)"
    needs_code = isinstance(error, pickle.UnpicklingError)
    how = "cannot be read without executing code in it" if needs_code else "cannot be read"
    return f"{how}: {reason or type(error).__name__}"


def _kind_of_checkpoint(file: Path) -> str:
    if file.name != "loader_state.json":
        return CHECKPOINT
    return TRANSFORMERS if (file.parent / "trainer_state.json").exists() else ACCELERATE


def _with_notes(states: list[FoundState]) -> list[FoundState]:
    """Return the states of one file, with notes about their places."""
    has_callback = any(
        found.key[0] == "callbacks" and str(found.key[1]).startswith("LoaderStateCallback")
        for found in states
        if found.container == LIGHTNING and len(found.key) > 1
    )
    own = "Lightning's own record; the state of LoaderStateCallback counts, which is here as well"
    return [
        replace(found, note=own) if has_callback and found.key[0] == "loops" else found
        for found in states
    ]


_Place = tuple[Key, dict[str, Any] | Exception, int | None]
"""Keys, the state or its error, and the number of ranks, if known."""


class _Finder:
    """Searches the nested values of one file for states.

    A shared value is searched once, unless it holds states.
    """

    def __init__(self) -> None:
        self._barren: dict[int, Any] = {}
        """Containers without a state, by id, kept so that ids stay unique."""
        self._num_states = 0
        self._expansion = Expansion()

    def states(self, tree: Any, key: Key, num_ranks: int | None) -> Iterator[_Place]:
        """Yield the states below a key.

        Raises:
            ValueError: there are too many states, or values are nested too deeply.
        """
        if id(tree) in self._barren:
            return
        if len(key) > MAX_DEPTH:
            raise ValueError(f"it is nested too deeply (more than {MAX_DEPTH}), or holds itself")
        before = self._num_states
        for place in self._places(tree, key, num_ranks):
            self._num_states += 1
            if self._num_states > _MAX_STATES:
                raise ValueError(f"it has more than {_MAX_STATES} states")
            yield place
        if self._num_states == before and isinstance(tree, Mapping | list | tuple | bytes | str):
            self._barren[id(tree)] = tree

    def _places(self, tree: Any, key: Key, num_ranks: int | None) -> Iterator[_Place]:
        if isinstance(tree, Mapping):
            is_damaged = isinstance(tree.get("format"), Unread) and "fingerprint" in tree
            if says_own_format(tree) or is_damaged or is_torchdata_state(tree):
                yield key, self._whole(tree), num_ranks
                return
            for name in ("world_size", "dp_world_size"):  # RankedState's and torchtitan's
                num_ranks = tree[name] if type(tree.get(name)) is int else num_ranks
            for name, inner in tree.items():
                yield from self.states(inner, (*key, name), num_ranks)
        elif isinstance(tree, list | tuple):
            for i, inner in enumerate(tree):
                yield from self.states(inner, (*key, i), num_ranks)
        elif isinstance(tree, str) and (ranks := _ranks(tree)) is not None:
            yield from self.states(ranks, key, num_ranks)
        elif isinstance(tree, bytes) and tree[:1] == b"\x80" and _has_mark(tree):
            try:
                yield from self.states(load_plain(tree), key, num_ranks)
            except Exception as error:
                yield key, error, num_ranks
        elif isinstance(tree, Unread) and not tree.is_tensor:
            try:
                if _has_mark(tree.content()):
                    tree.read()
            except Exception as error:
                # Many values may need the same missing file.
                yield () if isinstance(error, OSError) else key, error, num_ranks

    def _whole(self, state: Mapping[str, Any]) -> dict[str, Any] | Exception:
        """Return the state with its separately stored tensors."""
        try:
            self._expansion.add(state)
            return {name: with_tensors(value, str(name)) for name, value in state.items()}
        except (ValueError, pickle.UnpicklingError) as error:
            return error


def _ranks(text: str) -> Any:
    """Return the states of all ranks from RankedState's text; None for another text."""
    if not (text.startswith("{") and FORMAT in text):
        return None
    try:
        return decode(parse(text.encode()))
    except (ValueError, TypeError):
        return None


def _replaced(tree: Any, key: Key, state: dict[str, Any]) -> Any:
    """Return a copy of nested values with another value at a key; other parts are shared."""
    if not key:
        return state
    if isinstance(tree, str):
        return write(encode(_replaced(_ranks(tree), key, state)))
    if isinstance(tree, bytes):
        return pickle.dumps(_replaced(load_plain(tree), key, state))
    if isinstance(tree, tuple):
        return tuple(_replaced(list(tree), key, state))
    changed = copy.copy(tree)
    changed[key[0]] = _replaced(tree[key[0]], key[1:], state)
    return changed


def _write(file: Path, container: str, tree: Any, copied: Path) -> None:
    if container == JSON:
        copied.write_text(json.dumps(tree))
    elif container in (TORCH, LIGHTNING):
        torch.save(tree, copied)
    else:
        saved = document.from_text(read_checkpoint(str(file)))
        states = {name: document.SavedState.of(saved[name].type_name, tree[name]) for name in saved}
        copied.write_bytes(document.to_bytes(states))


@dataclass(frozen=True)
class Listed:
    """A file, or a folder that counts as one file."""

    path: Path
    refusal: str = ""
    """Why the file is not read; empty if it may be read."""


def files_in(top: Path, is_one: Callable[[Path], bool]) -> Iterator[Listed]:
    """Yield the regular files below a folder, or the file itself.

    Hidden entries, named pipes, sockets and devices are left out. Links come last, and only if
    their target was not listed yet. Links to folders are not followed.

    Args:
        top: a folder or file.
        is_one: returns whether a folder counts as one file.
    """
    if not top.is_dir() or is_one(top):
        yield Listed(top)
        return
    seen: set[str] = set()
    links: list[Path] = []
    failed: list[OSError] = []
    for folder, names, files in os.walk(top, onerror=failed.append):
        seen.add(os.path.realpath(folder))
        if is_one(Path(folder)):
            names.clear()
            yield Listed(Path(folder))
            continue
        names[:] = sorted(name for name in names if not name.startswith("."))
        paths = [Path(folder, name) for name in sorted(files) if not name.startswith(".")]
        links += [
            path for path in (*paths, *(Path(folder, name) for name in names)) if path.is_symlink()
        ]
        for path in paths:
            if not path.is_symlink():
                yield from _listed(path, seen)
    for path in links:
        yield from _listed(path, seen)
    for error in failed:
        yield Listed(Path(error.filename), _os_reason(error))


def _listed(path: Path, seen: set[str]) -> Iterator[Listed]:
    """Yield a file that was not seen yet, or a link to a folder with the refusal."""
    real = os.path.realpath(path)
    if real in seen:
        return
    seen.add(real)
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        yield Listed(path, _os_reason(error))
        return
    if stat.S_ISREG(mode):
        yield Listed(path)
    elif stat.S_ISDIR(mode):
        yield Listed(path, f"is a link to the folder {real!r}, and is not followed")


def _os_reason(error: OSError) -> str:
    return f"cannot be read: {error.strerror}"
