"""Files in which ``inspect``, ``diff``, ``seek`` and ``which`` look for states."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import torch

from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.errors import NoSuchPlace, StateMismatch
from stateful_gpu_loader.tools.compare_states import compare
from stateful_gpu_loader.tools.distributed_checkpoint import _CLASSES, _PATHS
from stateful_gpu_loader.tools.inspect_state import describe
from stateful_gpu_loader.tools.state_files import NoState, search
from stateful_gpu_loader.tools.which import epoch_of, state_in
from tests.fuzz.inputs import changed_values
from tests.fuzz.inputs.kind import Kind
from tests.fuzz.inputs.kinds.json_texts import JsonTexts
from tests.tools.checkpoints import after, write_all

_LONGEST_WORD = 20_000
"""Longest run of bytes without a blank. torch refuses longer names, but takes quadratic time to
search its own message: half a minute at 100,000 bytes.
"""


class _Inspected(Kind):
    refusals = (NoState, StateMismatch)
    names_remedy = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        torch.manual_seed(0)
        self._sound = after(2)

    def _look_at_pickle(self, path: Path, content: bytes) -> None:
        if max(map(len, content.split()), default=0) <= _LONGEST_WORD:
            self._look(path)

    def _look(self, path: Path) -> None:
        """Run the commands on a file."""
        for found in search(path).states:
            description = describe(found.state)
            json.dumps(description.to_dict())
            compare(self._sound, found.state)
            if not found.is_of_torchdata:
                with suppress(NoSuchPlace):
                    epoch_of(found.state).at_position(0)
        state_in(path)


class TorchFiles(_Inspected):
    """Files of ``torch.save``, of scripts and of Lightning, as zips and as bare pickles."""

    name = "torch.save"
    share = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        record = {"state": self._sound, "batches": 2, "ended": False, "replay": False}
        saved = {"format": "stateful_gpu_loader.lightning", "version": 1, "train": {"": record}}
        lightning = {
            "pytorch-lightning_version": "2.5",
            "state_dict": {"w": torch.zeros(2)},
            "callbacks": {"LoaderStateCallback": saved},
            "loops": {"fit_loop": {"state_dict": {"combined_loader": [self._sound]}}},
        }
        trees = [self._sound, {"model": {"w": torch.zeros(4)}, "train": self._sound}, lightning]
        self._trees = trees
        self.examples = [
            _torch_bytes(tree, is_zip=is_zip) for tree in trees for is_zip in (True, False)
        ]

    def read(self, content: bytes, example: int) -> None:
        path = self.folder / "last.pt"
        path.write_bytes(content)
        self._look_at_pickle(path, content)


class TorchValues(TorchFiles):
    """The same with other values in sound files."""

    name = "torch.save, values"
    share = 0.5

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.examples = self._trees

    def change(self, random: Random, content: Any) -> Any:
        return changed_values.changed(random, content)

    def read(self, content: Any, example: int) -> None:
        try:
            data = _torch_bytes(content, is_zip=True)
        except Exception:
            return  # torch cannot save it
        super().read(data, example)


class JsonFiles(JsonTexts, _Inspected):
    """JSON files, and files of ``Checkpoint``."""

    name = "state file, JSON"
    share = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        checkpoint = Checkpoint()
        checkpoint.set_state("loaders", {"loader_0": self._sound})
        text = json.dumps({"loader": self._sound}).encode()
        ranks = json.dumps({"dp_rank_0": self._sound})
        self.examples = [
            text,
            json.dumps(self._sound).encode(),
            checkpoint.serialize().encode(),
            json.dumps({"loader": {"world_size": 1, "dp_ranks": ranks}}).encode(),
        ]

    def read(self, content: bytes, example: int) -> None:
        path = self.folder / "state.json"
        path.write_bytes(content)
        self._look(path)


class DistributedFiles(_Inspected):
    """Folders of ``torch.distributed.checkpoint``: their index, and the bytes that it names."""

    name = "DCP"
    writes = True  # CPython's unpickler writes a lost SystemError for a truncated bytearray
    share = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        sources = folder / "sources"
        sources.mkdir()
        write_all(sources)
        self._folders = [sources / name for name in ("dcp", "titan", "lists")]
        self.examples = [
            {".metadata": (each / ".metadata").read_bytes(), "part": _part(each).read_bytes()}
            for each in self._folders
        ]

    def change(self, random: Random, content: dict[str, bytes]) -> dict[str, bytes]:
        way = random.randrange(3)
        if way == 0:
            return {**content, "part": super().change(random, content["part"])}
        if way == 2:
            changed = _changed_index(random, content[".metadata"])
            if changed is not None:
                return {**content, ".metadata": changed}
        return {**content, ".metadata": super().change(random, content[".metadata"])}

    def read(self, content: dict[str, bytes], example: int) -> None:
        source, path = self._folders[example], self.folder / "checkpoint"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        (path / ".metadata").write_bytes(content[".metadata"])
        (path / _part(source).name).write_bytes(content["part"])
        self._look_at_pickle(path, content["part"])


def _part(folder: Path) -> Path:
    return next(path for path in sorted(folder.iterdir()) if path.suffix == ".distcp")


class _Unpickler(pickle.Unpickler):
    """Reads an index, which may be damaged already, into DCP's own objects."""

    def find_class(self, module: str, name: str) -> Any:
        is_torchs = (module, name) in (("torch", "Size"), ("torch.serialization", "_get_layout"))
        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        is_known = (module, name) in _CLASSES or (module, name) in _PATHS
        if not (is_torchs or is_type or is_known):
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def _changed_index(random: Random, content: bytes) -> bytes | None:
    """Return the index with one value changed; None if it is unreadable."""
    try:
        index = _Unpickler(io.BytesIO(content)).load()
        changes: list[Callable[[], Any]] = [
            lambda: dataclasses.replace(index, planner_data=_any(random, index.planner_data)),
            lambda: dataclasses.replace(index, storage_data=_any(random, index.storage_data)),
            lambda: dataclasses.replace(
                index, state_dict_metadata=_any(random, index.state_dict_metadata)
            ),
            lambda: _any(random, index),
            lambda: dataclasses.replace(index, storage_data=_places(random, index.storage_data)),
        ]
        return pickle.dumps(random.choice(changes)())
    except Exception:
        return None


def _any(random: Random, value: Any) -> Any:
    return changed_values.changed(random, value)


def _places(random: Random, places: dict[Any, Any]) -> dict[Any, Any]:
    """Yield indices with another offset, length or file name in one of the places."""
    place = random.choice(list(places))
    field = random.choice(("relative_path", "offset", "length"))
    other = _any(random, getattr(places[place], field))
    if field == "relative_path" and random.random() < 0.3:
        other = random.choice(("/dev/zero", "/etc/passwd", "../sources", "", "."))
    return {**places, place: dataclasses.replace(places[place], **{field: other})}


def _torch_bytes(value: Any, *, is_zip: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=is_zip)
    return buffer.getvalue()


KINDS = (TorchFiles, TorchValues, JsonFiles, DistributedFiles)
