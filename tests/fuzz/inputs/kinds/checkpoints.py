"""Files of ``Checkpoint``, and the typed JSON in them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader import RNG, Checkpoint, StatefulGPULoader
from stateful_gpu_loader.errors import CheckpointError
from stateful_gpu_loader.state import typed_json
from tests.fuzz.inputs import changed_values
from tests.fuzz.inputs.kind import Broken, Kind
from tests.fuzz.inputs.kinds.json_texts import JsonTexts

_HEAD_END = b'",\n'


def _values() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    loader: Any = StatefulGPULoader(range(10), batch_size=2, shuffle=True, seed=1)
    next(iter(loader))
    model = torch.nn.Linear(3, 2)
    return [
        {"loader": loader.state_dict(), "rng": RNG(1).state_dict()},
        {
            "values": {
                "a": (1, 2.5, None),
                "b": {3, 4},
                7: b"\xff",
                "s": "é\ud800",
                "n": np.int64(3),
            },
            "nan": {"x": float("nan"), "y": torch.Size([1, 2]), "d": torch.float16},
        },
        {"tensors": {"w": torch.rand(3, 2, generator=generator), "i": torch.arange(5)}},
        {"arrays": [np.arange(4.0), np.array(["ab", "c"])], "model": model.state_dict()},
    ]


def _checkpoint_of(values: dict[str, Any]) -> Checkpoint:
    checkpoint = Checkpoint()
    for name, value in values.items():
        checkpoint.set_state(name, value)
    return checkpoint


class CheckpointFiles(Kind):
    """The bytes of a file, whose checksum finds any damage."""

    name = "checkpoint"
    share = 6
    refusals = (CheckpointError,)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        torch.manual_seed(0)
        self._values = _values()
        self.examples = []
        for number, values in enumerate(self._values):
            checkpoint = _checkpoint_of(values)
            path = folder / f"{number}.json"
            checkpoint.save(path)
            self.examples += [path.read_bytes(), checkpoint.serialize().encode()]

    def read(self, content: bytes, example: int) -> None:
        checkpoint = Checkpoint()
        checkpoint.set_state("held", 1)
        try:
            checkpoint.deserialize(content)
        except Exception:
            if checkpoint.get_state("held") != 1:
                raise Broken("a refusal changed the states held") from None
            raise
        values = self._values[example // 2]
        _check_same({name: checkpoint.get_state(name) for name in values}, values)


class ForgedCheckpoints(CheckpointFiles):
    """The same with a valid checksum, as another program may write it."""

    name = "checkpoint, forged"
    share = 2
    # Warns that the state is of another decoder's version.
    warns = (UserWarning,)

    def change(self, random: Random, content: bytes) -> bytes:
        head, _, rest = content.partition(_HEAD_END)
        if random.random() < 0.5:
            return forged(head, super().change(random, rest))
        text, end, raw = rest.partition(b"\n}}\n")
        try:
            value = json.loads(b"{" + text + end)
        except (ValueError, RecursionError):
            return forged(head, super().change(random, rest))
        changed = changed_values.to_json(changed_values.changed(random, value, plain=True))
        return forged(head, changed[1:].removesuffix(b"}}") + end + raw)

    def read(self, content: bytes, example: int) -> None:
        checkpoint, rng = Checkpoint(), RNG(0)
        loader: Any = StatefulGPULoader(range(10), batch_size=2, shuffle=True, seed=1)
        before = loader.state_dict()
        checkpoint.deserialize(content)
        checkpoint.serialize()
        if example > 1:
            return
        checkpoint.register(rng, "rng")
        try:
            checkpoint.register(loader, "loader")
        except CheckpointError:
            if loader.state_dict() != before:
                raise Broken("a refusal changed the loader") from None
            raise


class CheckpointFolders(CheckpointFiles):
    """The newest file of a pattern, of which another file is whole."""

    name = "checkpoint, folder"
    share = 1
    # Warns of the files that are passed over.
    warns = (UserWarning,)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "run_1.json").write_bytes(self.examples[0])

    def read(self, content: bytes, example: int) -> None:
        (self.folder / "run_2.json").write_bytes(content)
        checkpoint = Checkpoint()
        found = checkpoint.load(self.folder / "run_{seq}.json")
        values = self._values[example // 2 if found.endswith("2.json") else 0]
        _check_same({name: checkpoint.get_state(name) for name in values}, values)


class TypedJson(JsonTexts):
    """Text of unknown origin through ``parse`` and ``decode``."""

    name = "typed JSON"
    share = 4
    refusals = (ValueError,)
    names_remedy = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        torch.manual_seed(0)
        values = [value for each in _values() for value in each.values()]
        self.examples = [typed_json.write(typed_json.encode(value)).encode() for value in values]

    def read(self, content: bytes, example: int) -> None:
        try:
            value = typed_json.decode(typed_json.parse(content))
        except UnicodeDecodeError as error:
            # A ValueError, raised by decode() of bytes.
            raise ValueError("no UTF-8") from error
        except json.JSONDecodeError as error:
            raise ValueError("no JSON") from error
        _check_same(typed_json.decode(typed_json.parse(_text(value).encode())), value)


def _check_same(found: Any, saved: Any) -> None:
    if _text(found) != _text(saved):
        raise Broken("another value was read than was saved")


def _text(value: Any) -> str:
    """Return a text that is equal for values equal to the last bit."""
    return typed_json.write(typed_json.encode(value))


def forged(head: bytes, rest: bytes) -> bytes:
    """Return a checkpoint of a head and a body, with the body's length and checksum."""
    before, _, after = head.partition(b'"length": ')
    start = before + f'"length": {len(rest)}'.encode()
    digest = hashlib.sha256(start + rest).hexdigest().encode()
    return start + b', "sha256": "' + digest + _HEAD_END + rest if after else head + rest


KINDS = (CheckpointFiles, ForgedCheckpoints, CheckpointFolders, TypedJson)
