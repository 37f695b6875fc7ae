"""Answers of workers arrive unchanged, in separate memory."""

from __future__ import annotations

import os
import pickle
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.engine.workers.packing import Packed, pack, remove_leftovers_of, unpack
from stateful_gpu_loader.engine.workers.segments import MAX_COPY
from stateful_gpu_loader.engine.workers.worker_main import replacement_for
from stateful_gpu_loader.state.bad_samples import FoundBad
from tests.conformance import same
from tests.engine.workers import fakes
from tests.engine.workers.fakes import Gate, requests

Pair = namedtuple("Pair", ["image", "label"])
IMAGE = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
TENSORS = {
    "float": IMAGE,
    "channels_last": IMAGE.to(memory_format=torch.channels_last),
    "transposed": IMAGE.permute(3, 0, 2, 1),
    "part": IMAGE[1:, ::2, 1],
    "expanded": torch.ones(1).expand(7),
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 4),
    "bool": IMAGE > 7,
    "bfloat16": IMAGE.bfloat16(),
    "complex": torch.complex(IMAGE, -IMAGE),
    "conjugate": torch.complex(IMAGE, -IMAGE).conj(),
    "negative view": torch.complex(IMAGE, -IMAGE).conj().imag,
    "needs a gradient": torch.ones(3, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "sparse": torch.eye(3).to_sparse(),
    "large": torch.arange(MAX_COPY // 4, dtype=torch.int64),
    "part of something large": torch.arange(MAX_COPY // 4, dtype=torch.int64)[5:7],
}

LEFT = {"conjugate", "negative view", "needs a gradient", "parameter", "sparse"}


def through_a_pipe(packed: Packed) -> Packed:
    """Pickle and unpickle a message, as a pipe between processes would."""
    return Packed(packed.content, list(packed.large))


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_arrives_as_it_was(name: str) -> None:
    """Only small plain tensors are copied."""
    tensor = TENSORS[name]
    packed = pack(tensor)
    assert len(packed.large) == (name in LEFT or "large" in name)
    found = unpack(through_a_pipe(packed))
    assert type(found) is type(tensor)
    assert found.layout == tensor.layout
    assert found.requires_grad == tensor.requires_grad
    if tensor.layout is torch.strided:
        assert found.stride() == tensor.stride()
        assert found.is_conj() == tensor.is_conj()
        assert found.is_neg() == tensor.is_neg()
        assert same(found.detach().resolve_conj(), tensor.detach().resolve_conj())
    else:
        assert torch.equal(found.to_dense(), tensor.to_dense())


def test_tensors_that_share_memory_share_it_again() -> None:
    base = torch.zeros(4)
    one, other, same_object = unpack(pack([base, base[2:], base]))
    one[3] = 7
    assert other.tolist() == [0, 7]
    assert same_object is one
    assert base.tolist() == [0] * 4, "and not with the sender"


def test_memory_is_aligned_as_torch_aligns_it() -> None:
    """Sums in user code must not depend on the address of a batch."""
    batch = [torch.ones(number) for number in range(1, 40)]
    assert {tensor.data_ptr() % 64 for tensor in unpack(pack(batch))} == {0}


def test_containers_arrays_and_answers() -> None:
    array = np.arange(6).reshape(2, 3)
    objects = np.array([{"a": 1}, None], dtype=object)
    large = np.zeros(MAX_COPY + 1, dtype=np.uint8)
    batch = {"pair": Pair(torch.ones(2), 3), "array": array, "objects": objects, "large": large}
    packed = pack(Answer(batch, worker=1, snapshot=b"state"))
    assert not packed.large
    answer = unpack(packed)
    assert type(answer.payload["pair"]) is Pair
    assert same(answer.payload["array"], array)
    answer.payload["array"][0, 0] = 9
    assert answer.payload["objects"].tolist() == objects.tolist()
    assert same(answer.payload["large"], large)
    answer.payload["large"][0] = 9
    assert (answer.worker, answer.snapshot, answer.bad) == (1, b"state", ())


def test_what_cannot_be_pickled_raises_here() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        pack([torch.ones(1), lambda: None])


def test_an_answer_that_cannot_be_sent_keeps_its_other_fields() -> None:
    """Otherwise the worker's previous state would be used."""
    bad = (FoundBad(index=1, position=2, epoch=3, reason="torn"),)
    packed = pack(Answer(torch.ones(2), worker=1, snapshot=b"state", bad=bad))
    answer = unpack(replacement_for(packed, OSError("too many open files")))
    assert (answer.worker, answer.snapshot, answer.bad) == (1, b"state", bad)
    error = answer.payload.rebuild()
    assert isinstance(error, OSError)
    assert "when a batch of type Tensor was sent" in str(error)


def mixed() -> Any:
    large = torch.arange(MAX_COPY, dtype=torch.int64)
    return {"large": large, "small": torch.ones(3), "array": np.full(MAX_COPY, 3.0)}


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_through_worker_processes(make: Any, method: str) -> None:
    """Tensors are writable; small ones are in this process's memory, large ones in segments."""
    pipeline = make(multiprocessing_context=method)
    pipeline.start(requests(*[mixed] * 3))
    for batch in fakes.answers(pipeline):
        assert same(batch, mixed())
        assert fakes.NAME_OF_SEGMENTS in fakes.mapping_of(batch["large"])
        assert fakes.NAME_OF_SEGMENTS not in fakes.mapping_of(batch["small"])
        for part in batch.values():
            part[0] = 5


# Remains of a killed process.


def left_by(pid: int | None) -> Path:
    """Make the file that torch leaves if it is killed between ``shm_open`` and ``shm_unlink``."""
    file = Path("/dev/shm") / f"torch_{pid}_12_0"
    file.write_bytes(b"left")
    return file


def test_leftovers_of_a_killed_worker_are_removed(make: Any, gate: Gate) -> None:
    pipeline = make(max_losses=0)
    pipeline.start(requests(gate.action, gate.action))
    gate.reached()
    file, ours = left_by(pipeline.workers[0].pid), left_by(os.getpid())
    try:
        fakes.kill(pipeline, 0)
        fakes.until_death(pipeline)
        pipeline.close()
        assert not file.exists()
        assert ours.exists()
    finally:
        ours.unlink()


def test_names_that_processes_share_by_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    file = left_by(os.getpid())
    try:
        monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", lambda: "file_system")
        remove_leftovers_of(os.getpid())
        assert file.exists()
        monkeypatch.undo()
        remove_leftovers_of(os.getpid())
        assert not file.exists()
    finally:
        file.unlink(missing_ok=True)
