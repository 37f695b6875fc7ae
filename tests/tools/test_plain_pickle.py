"""Pickles of plain values are read in every protocol, and no other pickle is."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from stateful_gpu_loader.tools.torch_file import load_plain
from tests.tools.checkpoints import Calls

PLAIN = {
    "text": "å",
    "bytes": b"\x00\xff",
    "none": b"",
    "numbers": [1, -2, 2**80, 0.5, True, None],
    "nested": OrderedDict(pair=(1, (2,))),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_is_read(protocol: int) -> None:
    tensor = torch.arange(6).reshape(2, 3)[:, 1:]
    found = load_plain(pickle.dumps([PLAIN, tensor], protocol))
    assert found[0] == PLAIN
    assert type(found[0]["nested"]) is OrderedDict
    assert torch.equal(found[1], tensor)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_executed(tmp_path: Path, protocol: int) -> None:
    proof = tmp_path / "executed"
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        load_plain(pickle.dumps([PLAIN, Calls(os.mkdir, str(proof))], protocol))
    assert not proof.exists()


def test_a_storage_inside_executes_nothing(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    torch.save(Calls(os.mkdir, str(proof)), tmp_path / "code")
    load = torch.storage._load_from_bytes  # type: ignore[attr-defined]
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        load_plain(pickle.dumps(Calls(load, (tmp_path / "code").read_bytes())))
    assert not proof.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00hextR.", "'hex'"),
        (b"c_codecs\nencode\n(N}X\x01\x00\x00\x00a\x88st\x62.", "Function"),
    ],
)
def test_plain_values_are_admitted(content: bytes, reason: str) -> None:
    """Other encodings import modules, and attributes would change the admitted functions."""
    with pytest.raises(pickle.UnpicklingError, match=reason):
        load_plain(content)


@pytest.mark.parametrize("end", [0, 1, 10, -1])
def test_a_cut_pickle_is_refused(end: int) -> None:
    with pytest.raises((ValueError, EOFError, pickle.UnpicklingError)):
        load_plain(pickle.dumps(PLAIN)[:end])
