"""Folders of torch.distributed.checkpoint: values, tensors, and false indices."""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.resume.rank_states import comparable
from stateful_gpu_loader.tools.distributed_checkpoint import read_values, with_tensors
from stateful_gpu_loader.tools.state_files import NoState, find_states, search
from tests.tools.checkpoints import Calls, Counting, after, after_in_torchdata


def save(folder: Path, **state: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP warns that there is one process
        dcp.save(state, checkpoint_id=folder)
    return folder


def reindexed(folder: Path, change: Callable[[Any], Any]) -> Path:
    """Change DCP's own index of a folder, in place or by the function's result."""
    index = pickle.loads((folder / ".metadata").read_bytes())
    (folder / ".metadata").write_bytes(pickle.dumps(change(index) or index))
    return folder


def titans(*ranks: Any) -> dict[str, Any]:
    """Return torchtitan's ParallelAwareDataloader state of all data-parallel ranks."""
    pickled = {f"dp_rank_{rank}": pickle.dumps(state) for rank, state in enumerate(ranks)}
    return {**pickled, "world_size": len(ranks)}


# Sound folders


def test_values_are_nested_as_they_were(tmp_path: Path) -> None:
    values = {"list": [1, {"a": None}], "text": "å", "bytes": b"\x80", "nested": {"0": {0: 1.5}}}
    found = read_values(save(tmp_path / "7", loader=values, w=torch.zeros(4)))
    assert found["loader"] == values | {"nested": {"0": {"0": 1.5}}}  # DCP's keys are text


def test_lists_in_a_state_are_lists(tmp_path: Path) -> None:
    loader: StatefulGPULoader[Any] = StatefulGPULoader(Counting(), batch_size=2, seed=1)
    next(iter(loader))
    (found,) = find_states(save(tmp_path / "7", loader=loader))
    assert found.state == loader.state_dict()


def test_torchtitans_pickled_states_are_found(tmp_path: Path) -> None:
    ranks = [after_in_torchdata(1), after_in_torchdata(3)]
    found = find_states(save(tmp_path / "7", dataloader=titans(*ranks), w=torch.zeros(4)))
    assert [(one.where, one.rank, one.num_ranks) for one in found] == [
        ("dataloader.dp_rank_0", 0, 2),
        ("dataloader.dp_rank_1", 1, 2),
    ]
    for one, state in zip(found, ranks, strict=True):
        assert comparable(one.state) == comparable(state)


def test_tensors_of_a_state_are_read(tmp_path: Path) -> None:
    state = after_in_torchdata(2)
    (found,) = find_states(save(tmp_path / "7", loader=state, w=torch.zeros(4)))
    inner = found.state["_sampler_iter_state"]["sampler_iter_state"]
    assert torch.equal(
        inner["generator"], state["_sampler_iter_state"]["sampler_iter_state"]["generator"]
    )


@pytest.fixture
def in_two_chunks(tmp_path: Path) -> Path:
    """Write a checkpoint whose tensor ``t`` is stored in shards."""
    whole = torch.arange(8).reshape(4, 2)

    def in_chunks(index: Any) -> None:
        stored = {place.fqn: where for place, where in index.storage_data.items()}
        index.storage_data = {
            metadata.MetadataIndex("t", torch.Size([0, 0])): stored["first"],
            metadata.MetadataIndex("t", torch.Size([1, 0])): stored["second"],
        }

    return reindexed(save(tmp_path / "7", t=whole, first=whole[:1], second=whole[1:]), in_chunks)


def test_a_tensor_is_put_together_from_its_chunks(in_two_chunks: Path) -> None:
    found = with_tensors(read_values(in_two_chunks), "state")
    assert found["t"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("module", [b"pathlib", b"pathlib._local"])
def test_a_folder_of_another_python_is_read(tmp_path: Path, module: bytes) -> None:
    """Python 3.13 uses another module name than all others for the paths in the index."""
    folder = save(tmp_path / "7", loader=after(1))
    index = pickle.loads((folder / ".metadata").read_bytes())
    written = re.sub(rb"cpathlib(\._local)?\n", b"c%s\n" % module, pickle.dumps(index, protocol=2))
    assert b"c%s\nPosixPath\n" % module in written
    (folder / ".metadata").write_bytes(written)
    (found,) = find_states(folder)
    assert found.state == after(1)


# Damage, and code


def test_a_tensor_with_a_chunk_missing_is_named(in_two_chunks: Path) -> None:
    reindexed(in_two_chunks, lambda index: index.storage_data.popitem() and None)
    with pytest.raises(ValueError, match=r"'state\.t': only 2.*8"):
        with_tensors(read_values(in_two_chunks), "state")


def test_a_state_whose_tensor_cannot_be_read_is_named(tmp_path: Path) -> None:
    def compressed(index: Any) -> None:
        stored = {place.fqn: each for place, each in index.storage_data.items()}
        (tensor,) = (each for name, each in stored.items() if "generator" in name)
        tensor.transform_descriptors = ["zstd"]

    folder = save(tmp_path / "7", loader=after_in_torchdata(2), other=after(1))
    found = search(reindexed(folder, compressed))
    assert [one.where for one in found.states] == ["other"]
    (unreadable,) = found.unreadable
    assert unreadable.where == "loader"
    assert "generator': DCP's extensions ['zstd'] are not supported" in unreadable.reason


def test_code_in_a_pickled_state_is_not_executed(tmp_path: Path) -> None:
    bad = {"_num_yielded": 1, "dataset_state": Calls(os.mkdir, str(tmp_path / "executed"))}
    found = search(save(tmp_path / "7", dataloader=titans(bad, after_in_torchdata(1))))
    assert [one.rank for one in found.states] == [1]
    (unreadable,) = found.unreadable
    assert unreadable.where == "dataloader.dp_rank_0"
    assert "without executing code in it: it names posix.mkdir" in unreadable.reason
    assert not (tmp_path / "executed").exists()


def test_values_beside_the_states_may_need_code(tmp_path: Path) -> None:
    found = search(
        save(tmp_path / "7", loader=after(1), config=Calls(os.mkdir, str(tmp_path / "executed")))
    )
    assert [one.where for one in found.states] == ["loader"]
    assert found.unreadable == ()
    assert not (tmp_path / "executed").exists()


def test_code_in_a_value_of_a_state_is_not_executed(tmp_path: Path) -> None:
    folder = save(tmp_path / "7", loader=after(1))
    (data,) = folder.glob("*.distcp")
    torch.save(Calls(os.mkdir, str(tmp_path / "executed")), tmp_path / "code")
    code = (tmp_path / "code").read_bytes()
    data.write_bytes(code + data.read_bytes()[len(code) :])
    with pytest.raises(NoState):
        find_states(folder)
    assert not (tmp_path / "executed").exists()


def test_an_index_names_nothing_that_executes(tmp_path: Path) -> None:
    """``dataclass`` executes the names of a class's annotations, which a pickle can choose."""
    (tmp_path / "7").mkdir()
    annotations = b"\x80\x04ctorch.distributed.checkpoint.metadata\ndataclass\n."
    for content in (annotations, pickle.dumps(Calls(os.mkdir, str(tmp_path / "executed")))):
        (tmp_path / "7/.metadata").write_bytes(content)
        with pytest.raises(NoState, match=r"\.(dataclass|mkdir)\b"):
            find_states(tmp_path / "7")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("relative_path", "/dev/zero"),
        ("relative_path", "absent.distcp"),
        ("relative_path", "x" * 100_000),
        ("offset", -1),
        ("offset", 1 << 62),
        ("length", 1 << 62),
        ("length", None),
    ],
)
def test_an_index_that_claims_other_bytes_is_refused(
    tmp_path: Path, field: str, value: Any
) -> None:
    """Found by the fuzzer of inputs: as many bytes would be read as the index claims."""

    def claim(index: Any) -> None:
        for place, stored in index.storage_data.items():
            index.storage_data[place] = replace(stored, **{field: value})

    folder = reindexed(save(tmp_path / "7", loader=after(1)), claim)
    with pytest.raises(NoState, match="cannot be read") as caught:
        find_states(folder)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("way", ["..", "a link"])
def test_an_index_that_names_sound_files_of_another_folder_is_refused(
    tmp_path: Path, way: str
) -> None:
    folder, other = (save(tmp_path / name, loader=after(1)) for name in ("7", "other"))
    (folder / "link").symlink_to(other)
    before = "../other" if way == ".." else "link"

    def use_another_folder(index: Any) -> None:
        for place, stored in index.storage_data.items():
            path = f"{before}/{stored.relative_path}"
            index.storage_data[place] = replace(stored, relative_path=path)

    with pytest.raises(NoState, match="which is not a file in the folder"):
        find_states(reindexed(folder, use_another_folder))


@pytest.mark.parametrize("place", [-1, 1 << 40])
def test_an_index_with_a_list_without_end_is_refused(tmp_path: Path, place: int) -> None:
    def far(index: Any) -> None:
        before = dict(index.planner_data)
        for name, key in before.items():
            index.planner_data[name] = tuple(place if part == 0 else part for part in key)
        assert index.planner_data != before

    folder = reindexed(save(tmp_path / "7", loader=after(1, Counting(), shuffle=None)), far)
    with pytest.raises(NoState, match=r"places .* in a list"):
        find_states(folder)
