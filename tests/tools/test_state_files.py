"""States are found in files of every kind, no pickle is executed, and no damage is passed over."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader.state.typed_json import encode, write
from stateful_gpu_loader.tools.state_files import NoState, find_states, search, write_states
from tests.tools.checkpoints import Calls, State, after, write_all

SAVED_BEFORE = Path(__file__).parents[1] / "integrations/lightning/saved_before"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def states(folder: Path) -> dict[str, State]:
    return write_all(folder)


@pytest.mark.parametrize(
    ("file", "where", "container"),
    [
        ("bare.pt", "", "torch.save file"),
        ("script.pt", "train", "torch.save file"),
        ("state.json", "loader", "JSON file"),
        ("checkpoint.json", "loader", "Checkpoint file"),
        ("dcp", "loader", "distributed checkpoint (DCP)"),
        ("titan", "dataloader.dp_ranks.dp_rank_0", "distributed checkpoint (DCP)"),
    ],
)
def test_states_are_found(
    folder: Path, states: dict[str, State], file: str, where: str, container: str
) -> None:
    found, *others = find_states(folder / file)
    assert (found.where, found.container) == (where, container)
    assert found.state == states["train"]
    second = [("val", states["val"])] if file == "script.pt" else []
    assert [(each.where, each.state) for each in others] == second


def test_a_folder_is_searched(folder: Path, states: dict[str, State]) -> None:
    files = {each.path.name for each in find_states(folder)}
    assert files == {
        *("bare.pt", "script.pt", "torchdata.pt", "state.json", "checkpoint.json"),
        *("dcp", "titan", "lists"),
    }


def test_lightnings_checkpoint_says_which_state_counts() -> None:
    found = find_states(SAVED_BEFORE / "in_a_validation.ckpt")
    assert {each.container for each in found} == {"Lightning checkpoint"}
    notes = {each.where: bool(each.note) for each in found}
    assert notes == {
        "loops.fit_loop.state_dict.combined_loader.0": True,
        "callbacks.LoaderStateCallback.train.0.state": False,
        "callbacks.LoaderStateCallback.val.0.state": False,
        "callbacks.LoaderStateCallback.val.1.state": False,
    }


def test_lightnings_own_record_counts_where_the_callback_was_not_used(tmp_path: Path) -> None:
    saved = torch.load(SAVED_BEFORE / "in_a_validation.ckpt", weights_only=True)
    del saved["callbacks"]
    torch.save(saved, tmp_path / "alone.ckpt")
    (found,) = find_states(tmp_path)
    assert (found.key[0], found.note) == ("loops", "")


def test_the_states_of_ranks_are_found(tmp_path: Path) -> None:
    ranks = [after(1, num_replicas=2, rank=rank) for rank in (0, 1)]
    torch.save({"loader": ranks}, tmp_path / "ranks.pt")
    assert [found.where for found in find_states(tmp_path)] == ["loader.0", "loader.1"]


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_not_executed(tmp_path: Path, zipped: bool) -> None:
    proof, file = tmp_path / "executed", tmp_path / "code.pt"
    contents = {"loader": after(1), "code": Calls(os.mkdir, str(proof))}
    torch.save(contents, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(NoState, match="without executing code"):
        find_states(file)
    assert not proof.exists()


def test_a_zip_that_is_damaged_inside_is_refused(
    tmp_path: Path, folder: Path, states: dict[str, State]
) -> None:
    """Found by the fuzzer of inputs: zipfile raises other exceptions, too."""
    content = bytearray((folder / "script.pt").read_bytes())
    directory = content.rindex(b"PK\x01\x02", 0, content.index(b"PK\x01\x02") + 4)
    content[directory + 10] = 99  # A compression method that zipfile does not know.
    (tmp_path / "script.pt").write_bytes(content)
    with pytest.raises(NoState, match=r"script\.pt"):
        find_states(tmp_path / "script.pt")


def test_a_file_whose_format_is_an_array_is_no_state(tmp_path: Path) -> None:
    torch.save({"format": torch.tensor([1, 2]), "note": "stateful_gpu_loader"}, tmp_path / "a.pt")
    with pytest.raises(NoState, match=f"{tmp_path}"):
        find_states(tmp_path / "a.pt")


@pytest.mark.parametrize("file", ["bare.pt", "script.pt", "state.json", "checkpoint.json"])
def test_a_cut_file_is_refused(
    tmp_path: Path, folder: Path, states: dict[str, State], file: str
) -> None:
    content = (folder / file).read_bytes()
    (tmp_path / file).write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(NoState, match=f"{tmp_path}"):
        find_states(tmp_path / file)


@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b"[1, 2]", b"\x89PNG\r\n", b"PK", b"{" * 100_000]
)
def test_a_file_that_is_missing_or_without_a_state_is_refused(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "other").write_bytes(content)
    with pytest.raises(NoState, match=f"{tmp_path}"):
        find_states(tmp_path / "other")


def test_a_damaged_file_among_others_is_named(
    tmp_path: Path, folder: Path, states: dict[str, State]
) -> None:
    shutil.copy(folder / "script.pt", tmp_path / "whole.pt")
    (tmp_path / "cut.pt").write_bytes((folder / "script.pt").read_bytes()[:-200])
    found = search(tmp_path)
    assert len(found.states) == 2
    (unreadable,) = found.unreadable
    assert "cut.pt' cannot be read" in str(unreadable)


def test_files_without_a_state_are_passed_over(
    tmp_path: Path, folder: Path, states: dict[str, State]
) -> None:
    """For example random states and a trainer's arguments, which need code to be read."""
    shutil.copy(folder / "bare.pt", tmp_path)
    torch.save(
        {"arguments": Calls(os.mkdir, str(tmp_path / "executed"))}, tmp_path / "arguments.bin"
    )
    assert search(tmp_path).unreadable == ()
    assert not (tmp_path / "executed").exists()


def test_a_cyclic_object_is_refused(tmp_path: Path) -> None:
    circle: dict[str, Any] = {"format": "stateful_gpu_loader of each rank"}
    circle["circle"] = circle
    torch.save(circle, tmp_path / "circle.pt")
    with pytest.raises(NoState):
        find_states(tmp_path)


@pytest.mark.parametrize("file", ["script.pt", "state.json", "checkpoint.json"])
def test_a_copy_has_the_changed_state_and_all_other_values(
    tmp_path: Path, folder: Path, states: dict[str, State], file: str
) -> None:
    before = find_states(folder / file)
    changed = before[0].state | {"epoch": 7}
    write_states(folder / file, [(before[0], changed)], tmp_path / file)
    written = find_states(tmp_path / file)
    assert [each.state for each in written] == [changed, *(each.state for each in before[1:])]
    assert [each.state for each in find_states(folder / file)] == [each.state for each in before]
    assert os.listdir(tmp_path) == [file]
    if file == "script.pt":
        whole = torch.load(tmp_path / file, weights_only=True)
        assert torch.equal(whole["model"]["w"], torch.zeros(4))


def test_states_inside_pickles_and_texts_are_replaced(tmp_path: Path) -> None:
    """torchtitan and RankedState keep them so."""
    ranks = write(encode({"dp_rank_0": after(1)}))
    torch.save({"pickled": pickle.dumps(after(2)), "text": ranks}, tmp_path / "a.pt")
    found = find_states(tmp_path / "a.pt")
    changes = [(each, each.state | {"epoch": 7}) for each in found]
    write_states(tmp_path / "a.pt", changes, tmp_path / "b.pt")
    written = find_states(tmp_path / "b.pt")
    assert [each.where for each in written] == ["pickled", "text.dp_rank_0"]
    assert [each.state for each in written] == [changed for _, changed in changes]


def test_an_existing_file_is_not_overwritten(folder: Path, states: dict[str, State]) -> None:
    (found,) = find_states(folder / "state.json")
    with pytest.raises(NoState, match=r"state\.json"):
        write_states(folder / "state.json", [(found, found.state)], folder / "state.json")
