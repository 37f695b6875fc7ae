"""Finds the loaders' states in a file or a folder, and writes a copy with others in their place.

No pickle is executed: files of ``torch.save`` are read as weights only.
"""

from __future__ import annotations

import copy
import json
import mmap
import os
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stateful_gpu_loader.checkpoint import document
from stateful_gpu_loader.errors import CheckpointError, LoaderError
from stateful_gpu_loader.state.schema import FORMAT, says_own_format
from stateful_gpu_loader.state.torchdata import is_torchdata_state
from stateful_gpu_loader.state.typed_json import decode, encode, parse, write
from stateful_gpu_loader.tools import distributed_checkpoint
from stateful_gpu_loader.tools.distributed_checkpoint import Key

TORCH, LIGHTNING = "torch.save file", "Lightning checkpoint"
CHECKPOINT, JSON = "Checkpoint file", "JSON file"
ACCELERATE, TRANSFORMERS = "Accelerate checkpoint", "transformers checkpoint"
DCP = "distributed checkpoint (DCP)"

_MAX_JSON_BYTES = 256 << 20
_MARKS = (FORMAT.encode(), b"_iterator_finished", b"_num_yielded", b"_steps_since_snapshot")
"""Texts of which each file with a state has one, so that other files need not be read."""


class NoState(LoaderError):
    """No loader's state was found, or the file that may hold one cannot be read or written."""


@dataclass(frozen=True)
class FoundState:
    """A loader's state and where it lies."""

    path: Path
    """The file; of a distributed checkpoint the folder."""
    key: Key
    """Keys that lead to the state in what the file holds; empty if it is the state itself."""
    container: str
    """Kind of the file, for a person."""
    state: dict[str, Any]
    """What ``state_dict()`` returned."""

    @property
    def where(self) -> str:
        """The place in the file, for a person: keys joined by dots."""
        return ".".join(map(str, self.key))

    @property
    def note(self) -> str:
        """What to know about this place; empty where there is nothing."""
        is_lightnings = self.container == LIGHTNING and self.key[:1] == ("loops",)
        own = "Lightning's own record; where LoaderStateCallback has saved a state, that one counts"
        return own if is_lightnings else ""

    @property
    def is_of_torchdata(self) -> bool:
        """Whether torchdata's StatefulDataLoader wrote it."""
        return not says_own_format(self.state)


@dataclass(frozen=True)
class Search:
    """What was found below a path."""

    states: tuple[FoundState, ...]
    unreadable: tuple[str, ...]
    """A sentence about each file that may hold a state and cannot be read."""


def find_states(path: str | os.PathLike[str]) -> list[FoundState]:
    """Return all loaders' states in a file, or in all files below a folder.

    Known are files of ``torch.save`` (so Lightning's and most training scripts'), this package's
    ``Checkpoint`` files (which Accelerate's and transformers' folders hold, too), JSON files, and
    folders of ``torch.distributed.checkpoint`` (so torchtitan's).

    Raises:
        NoState: there is none, there is no such file, or none of the files can be read without
            executing code.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     state = StatefulGPULoader([1, 2, 3], seed=1).state_dict()
    ...     torch.save({"model": {}, "loader": state}, f"{folder}/last.pt")
    ...     [found] = find_states(folder)
    >>> found.where, found.container, found.state == state
    ('loader', 'torch.save file', True)
    """
    return list(search(path).states)


def search(path: str | os.PathLike[str]) -> Search:
    """As :func:`find_states`, and which files could not be read.

    Raises:
        NoState: as :func:`find_states`.
    """
    top = Path(path)
    if not top.exists():
        raise NoState(f"there is no file or folder {str(top)!r}")
    found: list[FoundState] = []
    unreadable = []
    for file in _files(top):
        try:
            container, tree = _content(file)
            states = list(_states_in(tree, ()))
        except NoState as error:
            unreadable.append(str(error))
            continue
        except RecursionError:
            unreadable.append(f"{str(file)!r} cannot be read: it is nested too deeply")
            continue
        found += [FoundState(file, key, container, state) for key, state in states]
    if not found:
        raise NoState(". ".join([f"no state of a loader in {str(top)!r}", *unreadable]))
    return Search(tuple(found), tuple(unreadable))


def write_states(
    path: str | os.PathLike[str],
    changes: Sequence[tuple[FoundState, Mapping[str, Any]]],
    out: str | os.PathLike[str],
) -> None:
    """Write a copy of a file or folder with other states in it.

    The copy appears under its name when it is complete; nothing else is changed.

    Args:
        path: what :func:`find_states` was given.
        changes: states that were found there, each with the one that takes its place.
        out: the new file or folder.

    Raises:
        NoState: ``out`` exists already.
    """
    source, target = Path(path), Path(out)
    if target.exists():
        raise NoState(f"{str(target)!r} exists already. Remedy: choose another name")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        copied = Path(folder, target.name)
        if source.is_dir():
            shutil.copytree(source, copied)
        for file in dict.fromkeys(found.path for found, _ in changes):
            container, tree = _content(file)
            for found, state in changes:
                if found.path == file:
                    tree = _replaced(tree, found.key, dict(state))
            _write(file, container, tree, copied / file.relative_to(source))
        os.replace(copied, target)


def _files(top: Path) -> Iterator[Path]:
    """The files to look into; the folder of a distributed checkpoint counts as one."""
    if top.is_dir() and not distributed_checkpoint.is_one(top):
        for inner in sorted(top.iterdir()):
            if not inner.name.startswith("."):
                yield from _files(inner)
    else:
        yield top


def _content(file: Path) -> tuple[str, Any]:
    """The kind of a file and what it holds; None in a file of no known kind."""
    if file.is_dir():
        try:
            return DCP, distributed_checkpoint.read_values(file)
        except Exception as error:
            raise _unreadable(file, error) from error
    with open(file, "rb") as opened:
        beginning = opened.read(64)
    if document.FORMAT.encode() in beginning:
        try:
            saved = document.from_text(file.read_bytes())
        except CheckpointError as error:
            raise _unreadable(file, error) from error
        return _kind_of_checkpoint(file), {name: one.state for name, one in saved.items()}
    if beginning[:1] == b"{" and file.stat().st_size <= _MAX_JSON_BYTES:
        try:
            return JSON, json.loads(file.read_bytes())
        except (ValueError, RecursionError) as error:
            raise _unreadable(file, error) from error
    is_zip = beginning[:2] == b"PK"
    if (is_zip or beginning[:1] == b"\x80") and _may_hold_a_state(file, is_zip=is_zip):
        try:
            tree = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
        except Exception as error:
            raise _unreadable(file, error) from error
        is_lightning = isinstance(tree, Mapping) and "pytorch-lightning_version" in tree
        return LIGHTNING if is_lightning else TORCH, tree
    return "", None


def _may_hold_a_state(file: Path, *, is_zip: bool) -> bool:
    """Whether a file of ``torch.save`` or a pickle names what every state names.

    Of a zip only its pickle is read, where all but the tensors' numbers is.
    """
    try:
        if is_zip:
            with zipfile.ZipFile(file) as archive:
                pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
                return any(mark in archive.read(name) for name in pickles for mark in _MARKS)
        with open(file, "rb") as opened:
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            with content:
                return any(content.find(mark) >= 0 for mark in _MARKS)
    except Exception as error:  # The zip and what is compressed in it fail in many ways.
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> NoState:
    reason = str(error).strip().partition("\n")[0]
    needs_code = isinstance(error, pickle.UnpicklingError)
    how = "cannot be read without executing code in it" if needs_code else "cannot be read"
    return NoState(f"{str(file)!r} {how}: {reason or type(error).__name__}")


def _kind_of_checkpoint(file: Path) -> str:
    if file.name != "loader_state.json":
        return CHECKPOINT
    return TRANSFORMERS if (file.parent / "trainer_state.json").exists() else ACCELERATE


def _states_in(tree: Any, key: Key) -> Iterator[tuple[Key, dict[str, Any]]]:
    if isinstance(tree, Mapping):
        if says_own_format(tree) or is_torchdata_state(tree):
            yield key, dict(tree)
            return
        for name, inner in tree.items():
            yield from _states_in(inner, (*key, name))
    elif isinstance(tree, list | tuple):
        for i, inner in enumerate(tree):
            yield from _states_in(inner, (*key, i))
    elif isinstance(tree, str) and (ranks := _ranks(tree)) is not None:
        yield from _states_in(ranks, key)


def _ranks(text: str) -> Any:
    """The states of all ranks, which RankedState keeps as one text; None of another text."""
    if not (text.startswith("{") and FORMAT in text):
        return None
    try:
        return decode(parse(text.encode()))
    except (ValueError, TypeError):
        return None


def _replaced(tree: Any, key: Key, state: dict[str, Any]) -> Any:
    """A copy of nested values with another one at a key; what does not lead there is shared."""
    if not key:
        return state
    if isinstance(tree, str):
        return write(encode(_replaced(_ranks(tree), key, state)))
    if isinstance(tree, tuple):
        return tuple(_replaced(list(tree), key, state))
    changed = copy.copy(tree)
    changed[key[0]] = _replaced(tree[key[0]], key[1:], state)
    return changed


def _write(file: Path, container: str, tree: Any, copied: Path) -> None:
    if container == DCP:
        distributed_checkpoint.write_values(copied, tree)
    elif container == JSON:
        copied.write_text(json.dumps(tree))
    elif container in (TORCH, LIGHTNING):
        torch.save(tree, copied)
    else:
        saved = document.from_text(file.read_bytes())
        states = {name: document.SavedState.of(saved[name].type_name, tree[name]) for name in saved}
        copied.write_bytes(document.to_bytes(states))
