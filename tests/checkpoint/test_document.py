"""A checkpoint file holds every value, readable by other programs and later versions."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections import OrderedDict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.checkpoint import document
from stateful_gpu_loader.checkpoint.document import SavedState, from_text, to_bytes, to_text
from stateful_gpu_loader.state import json_text, typed_json
from tests.state.typed_values import identical, values

VERSION_1, VERSION_2 = (Path(__file__).with_name(f"version_{n}.json") for n in (1, 2))
EXPECTED = {
    "rng": ["stateful_gpu_loader.rng.RNG", {"rng": "philox1_1adeceffff50d997_0000000000000003"}],
    "user": [
        None,
        {
            "t": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
            "a": np.array([1, 2], "<i2"),
            "n": np.float32(0.5),
            "pair": (1, b"\0\xff"),
            "best": float("inf"),
            3: {"$tuple": []},
            "set": {"b", "a"},
            "od": OrderedDict(x=None),
            "size": torch.Size([2]),
            "dtype": torch.float16,
            "name": "é\udc80",
        },
    ],
}

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
states = st.dictionaries(names, st.builds(SavedState.of, st.none() | names, values), max_size=3)


def as_dicts(saved: dict[str, SavedState]) -> Any:
    return {name: [one.type_name, one.state] for name, one in saved.items()}


def states_of(content: bytes) -> bytes:
    """Return everything but the head, the time and the versions of libraries."""
    return content[content.index(b'"states": ') :]


@settings(max_examples=40)
@given(states)
def test_states_come_back_to_the_last_bit_and_in_order(saved: dict[str, SavedState]) -> None:
    text = to_text(saved)
    assert identical(as_dicts(from_text(text)), as_dicts(saved))
    assert identical(as_dicts(from_text(text.encode())), as_dicts(saved))
    loaded = from_text(to_bytes(saved))
    assert identical(as_dicts(loaded), as_dicts(saved))
    assert states_of(to_bytes(loaded)) == states_of(to_bytes(saved))
    assert states_of(to_bytes(from_text(text))) == states_of(to_bytes(saved))
    assert states_of(to_text(loaded).encode()) == states_of(text.encode())


def test_any_json_program_reads_the_text_and_can_check_it() -> None:
    text = to_text({"a": SavedState.of("t", {"é": 1})})
    assert text.isascii()
    found = json.loads(text)
    assert list(found) == ["format", "version", "length", "sha256", "time", "libraries", "states"]
    assert found["states"] == {"a": {"type": "t", "state": {"é": 1}}}
    assert found["libraries"]["torch"] == torch.__version__
    assert datetime.fromisoformat(found["time"]).utcoffset().total_seconds() == 0
    head, _, rest = text.partition("\n")
    assert found["length"] == len(rest)
    covered = head[: head.index(', "sha256"')] + rest
    assert found["sha256"] == hashlib.sha256(covered.encode()).hexdigest()


def test_tensors_and_arrays_are_raw_bytes_after_the_text() -> None:
    """Base64 would take a third more room and thirty times as long."""
    tensor, array = torch.rand(3, 5), np.arange(4, dtype=">i2")
    state = {"t": tensor, "same": [tensor], "a": array, "s": np.float32(1)}
    content = to_bytes({"$tensor": SavedState.of(None, state)})
    text, _, raw = content.partition(b"\n}}\n")
    found = json.loads(text + b"\n}}")
    assert (found["version"], found["length"]) == (2, len(content) - content.index(b"\n") - 1)
    forms = found["states"]["$tensor"]["state"]
    assert forms["t"] == {"$tensor": {"dtype": "float32", "shape": [3, 5], "data": [0, 60]}}
    assert forms["same"][0]["$tensor"]["data"] == [60, 120]
    assert forms["a"] == {"$array": {"dtype": ">i2", "shape": [4], "data": [120, 128]}}
    assert forms["s"] == {"$scalar": {"dtype": "<f4", "shape": [], "data": "AACAPw=="}}
    assert raw == 2 * tensor.numpy().tobytes() + array.tobytes()
    assert identical(as_dicts(from_text(content)), {"$tensor": [None, state]})


def test_checkpoints_without_tensors_are_version_1() -> None:
    """Every JSON program and every version of the package can read it."""
    saved = {"a": SavedState.of(None, {"n": (1, np.float32(2), b"3")})}
    content = to_bytes(saved)
    assert json.loads(content)["version"] == 1
    assert states_of(content) == states_of(to_text(saved).encode())


def test_each_state_has_a_line() -> None:
    lines = to_text({name: SavedState.of(None, [1, 2]) for name in "ab"}).splitlines()
    assert lines[3:5] == [
        '"a": {"type": null, "state": [1, 2]},',
        '"b": {"type": null, "state": [1, 2]}',
    ]


@pytest.mark.parametrize("path", [VERSION_1, VERSION_2], ids=["1", "2"])
def test_every_earlier_version_loads(path: Path) -> None:
    """Version 0.1.0 wrote these files; they are never rewritten."""
    kept = path.read_bytes()
    saved = from_text(kept)
    assert identical(as_dicts(saved), EXPECTED)
    written = to_text(saved).encode() if path is VERSION_1 else to_bytes(saved)
    assert states_of(written) == states_of(kept)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"\ud800": SavedState.of(None, 1)}, r"'\\ud800' .*Remedy"),
        ({1: SavedState.of(None, 1)}, r"1 .*Remedy"),
    ],
    ids=["surrogate", "number"],
)
def test_values_without_a_form_are_refused_when_written(saved: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        to_text(saved)


def test_nothing_that_reads_can_execute() -> None:
    """Pickle is never used."""
    for module in (json_text, typed_json, document):
        tree = ast.parse(Path(inspect.getfile(module)).read_text())
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not imported & {"pickle", "marshal", "shelve", "dill"}
        assert not called & {"eval", "exec", "compile", "__import__"}
