"""Folders of torch.distributed.checkpoint: pickled states, tensors, and what is written there."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata

from stateful_gpu_loader.engine.resume.rank_states import comparable
from stateful_gpu_loader.tools import distributed_checkpoint
from stateful_gpu_loader.tools.distributed_checkpoint import read_values, with_tensors
from stateful_gpu_loader.tools.state_files import NoState, find_states, search, write_states
from tests.tools.checkpoints import after, after_in_torchdata


def save(folder: Path, **state: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP says that there is one process.
        dcp.save(state, checkpoint_id=folder)
    return folder


def titans(*ranks: Any) -> dict[str, Any]:
    """What torchtitan's ParallelAwareDataloader saves, of all data-parallel ranks."""
    pickled = {f"dp_rank_{rank}": pickle.dumps(state) for rank, state in enumerate(ranks)}
    return {**pickled, "world_size": len(ranks)}


class Code:
    """Whoever unpickles it creates a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_torchtitans_pickled_states_are_found(tmp_path: Path) -> None:
    ranks = [after_in_torchdata(1), after_in_torchdata(3)]
    found = find_states(save(tmp_path / "7", dataloader=titans(*ranks), w=torch.zeros(4)))
    assert [(one.where, one.rank, one.num_ranks) for one in found] == [
        ("dataloader.dp_rank_0", 0, 2),
        ("dataloader.dp_rank_1", 1, 2),
    ]
    for one, state in zip(found, ranks, strict=True):
        assert comparable(one.state) == comparable(state)


def test_code_in_a_pickled_state_is_not_executed(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    bad = {"_num_yielded": 1, "dataset_state": Code(proof)}
    found = search(save(tmp_path / "7", dataloader=titans(bad, after_in_torchdata(1))))
    assert [one.rank for one in found.states] == [1]
    (unreadable,) = found.unreadable
    assert unreadable.where == "dataloader.dp_rank_0"
    assert "without executing code in it: it names posix.mkdir" in unreadable.reason
    assert not proof.exists()


def test_a_pickled_state_is_replaced(tmp_path: Path) -> None:
    ranks = [after(1, num_replicas=2, rank=rank) for rank in (0, 1)]
    one, other = find_states(save(tmp_path / "7", dataloader=titans(*ranks)))
    changed = one.state | {"epoch": 7}
    write_states(tmp_path / "7", [(one, changed)], tmp_path / "8")
    assert [found.state for found in find_states(tmp_path / "8")] == [changed, other.state]


def test_tensors_of_a_state_are_read(tmp_path: Path) -> None:
    state = after_in_torchdata(2)
    (found,) = find_states(save(tmp_path / "7", loader=state, w=torch.zeros(4)))
    inner = found.state["_sampler_iter_state"]["sampler_iter_state"]
    assert torch.equal(
        inner["generator"], state["_sampler_iter_state"]["sampler_iter_state"]["generator"]
    )


@pytest.fixture
def in_two_chunks(tmp_path: Path) -> Path:
    """A checkpoint whose tensor ``t`` is stored as sharded tensors are."""
    whole = torch.arange(8).reshape(4, 2)
    folder = save(tmp_path / "7", t=whole, first=whole[:1], second=whole[1:])
    index = pickle.loads((folder / ".metadata").read_bytes())
    stored = {place.fqn: where for place, where in index.storage_data.items()}
    index.storage_data = {
        metadata.MetadataIndex("t", torch.Size([0, 0])): stored["first"],
        metadata.MetadataIndex("t", torch.Size([1, 0])): stored["second"],
    }
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    return folder


def test_a_tensor_is_put_together_from_its_chunks(in_two_chunks: Path) -> None:
    found = with_tensors(read_values(in_two_chunks), "state")
    assert found["t"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_tensor_with_a_chunk_missing_is_named(in_two_chunks: Path) -> None:
    index = pickle.loads((in_two_chunks / ".metadata").read_bytes())
    index.storage_data.popitem()
    (in_two_chunks / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(ValueError, match=r"the tensor 'state\.t': 2 of its 8 numbers are stored"):
        with_tensors(read_values(in_two_chunks), "state")


def test_a_state_whose_tensor_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "7", loader=after_in_torchdata(2), other=after(1))
    index = pickle.loads((folder / ".metadata").read_bytes())
    (stored,) = (each for place, each in index.storage_data.items() if "generator" in place.fqn)
    stored.transform_descriptors = ["zstd"]
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    found = search(folder)
    assert [one.where for one in found.states] == ["other"]
    (unreadable,) = found.unreadable
    assert unreadable.where == "loader"
    assert "generator': DCP's extensions ['zstd'] are not known here" in unreadable.reason


def test_values_beside_the_states_may_need_code(tmp_path: Path) -> None:
    folder = save(tmp_path / "7", loader=after(1), config=Code(tmp_path / "executed"))
    (found,) = find_states(folder)
    write_states(folder, [(found, found.state | {"epoch": 7})], tmp_path / "8")
    assert [one.state["epoch"] for one in find_states(tmp_path / "8")] == [7]
    assert search(folder).unreadable == ()
    assert not (tmp_path / "executed").exists()


def test_the_index_may_not_name_what_executes_text(tmp_path: Path) -> None:
    """``dataclass`` executes the names of a class's annotations, which a pickle can choose."""
    (tmp_path / "7").mkdir()
    index = b"\x80\x04ctorch.distributed.checkpoint.metadata\ndataclass\n."
    (tmp_path / "7/.metadata").write_bytes(index)
    with pytest.raises(NoState, match=r"names torch\.\S+\.dataclass, which is not executed"):
        find_states(tmp_path / "7")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    values = {"list": [1, {"a": None}], "text": "å", "bytes": b"\x80", "nested": {"0": {0: 1.5}}}
    folder = save(tmp_path / "7", loader=values, w=torch.zeros(4))
    tree = read_values(folder)
    assert tree["loader"] == values | {"nested": {"0": {"0": 1.5}}}  # DCP's keys are text
    tree["loader"] = {"list": [2, {"a": 3}], "text": "", "bytes": b"1", "nested": {"0": {"0": ()}}}
    distributed_checkpoint.write_values(folder, tree)
    assert read_values(folder)["loader"] == tree["loader"]
    loaded = {"loader": {"text": "another"}, "w": torch.ones(4)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(loaded, checkpoint_id=folder)
    assert loaded["loader"] == {"text": ""}
    assert torch.equal(loaded["w"], torch.zeros(4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"a": 1}, r"the keys \['loader.b.c', 'loader.t'\] would be lost and \[\] added"),
        (
            {"a": 1, "b": {"c": 2, "d": 3}, "t": torch.zeros(2)},
            r"\[\] would be lost and \['loader.b.d'\] added",
        ),
        ({"a": 1, "b": {"c": 2}, "t": torch.ones(2)}, r"the tensor 'loader\.t' would be another"),
    ],
)
def test_other_keys_and_other_tensors_are_refused(
    tmp_path: Path, state: dict[str, Any], sentence: str
) -> None:
    folder = save(tmp_path / "7", loader={"a": 1, "b": {"c": 2}, "t": torch.zeros(2)})
    tree = {**read_values(folder), "loader": state}
    with pytest.raises(ValueError, match=sentence):
        distributed_checkpoint.write_values(folder, tree)


def test_a_state_that_lost_a_key_is_not_written(tmp_path: Path) -> None:
    (found,) = find_states(save(tmp_path / "7", loader=after(1)))
    changed = {name: value for name, value in found.state.items() if name != "seed"}
    with pytest.raises(NoState, match=r"the keys \['loader.seed'\] would be lost"):
        write_states(tmp_path / "7", [(found, changed)], tmp_path / "8")
    assert os.listdir(tmp_path) == ["7"]
