"""States are found in files of every kind, copied with others in their place, and run no code."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import Checkpoint, StatefulGPULoader
from stateful_gpu_loader.integrations.dcp import RankedState
from stateful_gpu_loader.integrations.shared.loader_file import write_states as write_loader_file
from stateful_gpu_loader.tools.state_files import NoState, find_states, write_states


def loader(epoch: int = 0) -> StatefulGPULoader[Any]:
    made: StatefulGPULoader[Any] = StatefulGPULoader(range(20), batch_size=4, seed=1, shuffle=True)
    made.set_epoch(epoch)
    return made


def _torch_file(path: Path) -> None:
    torch.save({"model": torch.zeros(3), "data": [loader().state_dict()]}, path)


def _old_torch_file(path: Path) -> None:
    content = {"data": [loader().state_dict()]}
    torch.save(content, path, _use_new_zipfile_serialization=False)


def _json(path: Path) -> None:
    path.write_text(json.dumps(loader().state_dict()))


def _checkpoint(path: Path) -> None:
    with Checkpoint() as checkpoint:
        trained, weights = loader(), torch.nn.Linear(2, 2)
        checkpoint.register(trained, "train")
        checkpoint.register(weights, "weights")
        checkpoint.collect()
    checkpoint.save(path)


def _accelerate(path: Path) -> None:
    path.mkdir()
    torch.save({"weight": torch.zeros(3)}, path / "model.bin")
    write_loader_file(path, [loader().state_dict()])


def _transformers(path: Path) -> None:
    _accelerate(path)
    (path / "trainer_state.json").write_text('{"global_step": 3}')


def _dcp(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = {"model": {"weight": torch.zeros(3)}, "data": loader().state_dict()}
        dcp.save(content, checkpoint_id=path, no_dist=True)


def _dcp_of_ranks(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"data": RankedState(loader())}, checkpoint_id=path, no_dist=True)


FILES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a.pt": (_torch_file, "torch.save file", "data.0"),
    "old.pt": (_old_torch_file, "torch.save file", "data.0"),
    "a.json": (_json, "JSON file", ""),
    "a.ckpt": (_checkpoint, "Checkpoint file", "train"),
    "accelerate": (_accelerate, "Accelerate checkpoint", "loaders.loader_0"),
    "trainer": (_transformers, "transformers checkpoint", "loaders.loader_0"),
    "dcp": (_dcp, "distributed checkpoint (DCP)", "data"),
    "ranks": (_dcp_of_ranks, "distributed checkpoint (DCP)", "data.dp_ranks.dp_rank_0"),
}


@pytest.fixture(params=FILES)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, str]:
    write, container, where = FILES[request.param]
    write(tmp_path / request.param)
    return tmp_path / request.param, container, where


def test_the_state_is_found(saved: tuple[Path, str, str]) -> None:
    path, container, where = saved
    [found] = find_states(path)
    assert (found.container, found.where) == (container, where)
    assert found.state == loader().state_dict()
    assert not found.is_of_torchdata


def test_a_copy_holds_another_state_and_the_rest(
    saved: tuple[Path, str, str], tmp_path: Path
) -> None:
    path, _, _ = saved
    before = _bytes(path)
    [found] = find_states(path)
    other = loader(epoch=3).state_dict()
    write_states(path, [(found, other)], tmp_path / "changed")
    [changed] = find_states(tmp_path / "changed")
    assert (changed.key, changed.state) == (found.key, other)
    assert _bytes(path) == before
    assert set(before) <= set(_bytes(tmp_path / "changed"))
    resumed = loader()
    resumed.load_state_dict(changed.state)
    assert resumed.epoch == 3


def test_what_is_beside_the_state_stays(tmp_path: Path) -> None:
    _torch_file(tmp_path / "a.pt")
    _dcp(tmp_path / "dcp")
    for name in ("a.pt", "dcp"):
        [found] = find_states(tmp_path / name)
        other = loader(epoch=3).state_dict()
        write_states(tmp_path / name, [(found, other)], tmp_path / f"new-{name}")
    assert torch.equal(torch.load(tmp_path / "new-a.pt")["model"], torch.zeros(3))
    content = {"model": {"weight": torch.ones(3)}, "data": loader().state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(content, checkpoint_id=tmp_path / "new-dcp", no_dist=True)
    assert torch.equal(content["model"]["weight"], torch.zeros(3))
    assert content["data"] == loader(epoch=3).state_dict()


def test_all_files_below_a_folder_are_searched(tmp_path: Path) -> None:
    for name, (write, _, _) in FILES.items():
        (tmp_path / "runs").mkdir(exist_ok=True)
        write(tmp_path / "runs" / name)
    (tmp_path / "runs" / "events.log").write_bytes(b"\0" * 100)
    assert len(find_states(tmp_path)) == len(FILES)


def test_a_state_of_torchdata_is_told_apart(tmp_path: Path) -> None:
    theirs = StatefulDataLoader(range(8), batch_size=2)
    next(iter(theirs))
    torch.save({"loader": theirs.state_dict()}, tmp_path / "a.pt")
    [found] = find_states(tmp_path / "a.pt")
    assert found.is_of_torchdata


class _Attack:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("name", ["attack.pt", "attack.pkl", "dcp"])
def test_no_code_is_executed(name: str, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    content = {"loader": loader().state_dict(), "attack": _Attack(harm)}
    if name == "dcp":
        (tmp_path / name).mkdir()
        (tmp_path / name / ".metadata").write_bytes(pickle.dumps(content))
    elif name == "attack.pkl":
        (tmp_path / name).write_bytes(pickle.dumps(content))
    else:
        torch.save(content, tmp_path / name)
    with pytest.raises(NoState, match="cannot be read"):
        find_states(tmp_path / name)
    assert not harm.exists()


@pytest.mark.parametrize("name", ["a.pt", "a.json", "a.ckpt"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_file_that_was_cut_off_is_no_crash(name: str, part: float, tmp_path: Path) -> None:
    FILES[name][0](tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(part * len(content))])
    with pytest.raises(NoState, match="no state of a loader"):
        find_states(tmp_path / name)


def test_a_dcp_folder_that_lacks_a_file_is_no_crash(tmp_path: Path) -> None:
    _dcp(tmp_path / "dcp")
    for file in (tmp_path / "dcp").glob("*.distcp"):
        file.unlink()
    with pytest.raises(NoState, match="cannot be read"):
        find_states(tmp_path / "dcp")


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    _json(tmp_path / "a.json")
    [found] = find_states(tmp_path / "a.json")
    with pytest.raises(NoState, match="exists already"):
        write_states(tmp_path / "a.json", [(found, found.state)], tmp_path / "a.json")


def test_no_such_path(tmp_path: Path) -> None:
    with pytest.raises(NoState, match="there is no file or folder"):
        find_states(tmp_path / "nowhere.pt")


def _bytes(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return {str(one.relative_to(path)) if path.is_dir() else "": one.read_bytes() for one in files}
