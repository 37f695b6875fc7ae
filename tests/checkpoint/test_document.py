"""The text of a checkpoint: every value, readable by any JSON program, and for ever."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
from collections import OrderedDict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.checkpoint import document
from stateful_gpu_loader.checkpoint.document import SavedState, from_text, to_text
from stateful_gpu_loader.state import typed_json
from tests.state.typed_values import identical, values

VERSION_1 = Path(__file__).with_name("version_1.json")

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
states = st.dictionaries(names, st.builds(SavedState.of, st.none() | names, values), max_size=3)


def as_dicts(saved: dict[str, SavedState]) -> Any:
    return {name: [one.type_name, one.state] for name, one in saved.items()}


@given(states)
def test_states_come_back_to_the_last_bit_and_in_order(saved: dict[str, SavedState]) -> None:
    """E1"""
    text = to_text(saved)
    assert identical(as_dicts(from_text(text)), as_dicts(saved))
    assert identical(as_dicts(from_text(text.encode())), as_dicts(saved))


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


def test_each_state_has_a_line() -> None:
    lines = to_text({name: SavedState.of(None, [1, 2]) for name in "ab"}).splitlines()
    assert lines[3:5] == [
        '"a": {"type": null, "state": [1, 2]},',
        '"b": {"type": null, "state": [1, 2]}',
    ]


def test_version_1_loads_for_ever() -> None:
    """B8: this file was written by version 0.1.0 and is never written again."""
    expected = {
        "rng": [
            "stateful_gpu_loader.rng.RNG",
            {"rng": "philox1_1adeceffff50d997_0000000000000003"},
        ],
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
    saved = from_text(VERSION_1.read_bytes())
    assert identical(as_dicts(saved), expected)
    states_of = re.compile(r'"states": .*', re.DOTALL)
    written = states_of.search(to_text(saved))
    kept = states_of.search(VERSION_1.read_text())
    assert written
    assert kept
    assert written[0] == kept[0]


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"\ud800": SavedState.of(None, 1)}, r"'\\ud800' is no name of a state.*Remedy"),
        ({1: SavedState.of(None, 1)}, r"1 is no name of a state.*Remedy"),
    ],
    ids=["surrogate", "number"],
)
def test_what_has_no_form_is_refused_when_it_is_written(saved: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        to_text(saved)


def test_nothing_that_reads_can_execute() -> None:
    """E1: never pickle."""
    folder = Path(inspect.getfile(typed_json)).parent
    for path in (*folder.glob("*.py"), Path(inspect.getfile(document))):
        tree = ast.parse(path.read_text())
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not imported & {"pickle", "marshal", "shelve", "dill"}
        assert not called & {"eval", "exec", "compile", "__import__"}
