"""Files that were made to harm their readers: the tools refuse them, and continue."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.tensor import Shard

from stateful_gpu_loader.tools.pickle_machine import read_pickle
from stateful_gpu_loader.tools.state_files import NoState, find_states, write_states
from tests.tools.checkpoints import Calls, State, after, write_all
from tests.tools.guarded import Guard, Outcome
from tests.tools.test_distributed_checkpoint import reindexed, save

MARK = "stateful_gpu_loader"
"""Without this mark a file is passed over unread."""


_guards: list[Guard] = []


@pytest.fixture(scope="module", autouse=True)
def _end_of_guards() -> Iterator[None]:
    yield
    for guard in _guards:
        guard.close()


def guarded_search(path: Path) -> Outcome:
    """Search in a process with little memory; start a new one if a test has ended the last."""
    if not _guards or not _guards[-1].is_alive:
        _guards.append(Guard())
    return _guards[-1].search(path)


def shared(depth: int, kind: type = list) -> Any:
    """Return containers, each of which holds the next one twice."""
    value: Any = kind()
    for _ in range(depth):
        value = kind((value, value))
    return value


def with_index(folder: Path, content: bytes) -> Path:
    (folder / "dcp").mkdir()
    (folder / "dcp/.metadata").write_bytes(content)
    return folder / "dcp"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


# Pickles ----------------------------------------------------------------------------------------

_METADATA = b"ctorch.distributed.checkpoint.metadata\n"
TARGETS = {
    "PosixPath": b"cpathlib\nPosixPath\n",
    "Metadata": _METADATA + b"Metadata\n",
    "MetadataIndex": _METADATA + b"MetadataIndex\n",
    "_StorageInfo": b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n",
    "member": _METADATA + b"_MEM_FORMAT_ENCODING\nK\x00\x85R",
    "Size": b"ctorch\nSize\n",
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_an_index_changes_no_class(tmp_path: Path, target: bytes) -> None:
    """Python's unpickler sets attributes of any object on its stack, classes included."""
    attributes = b"}" + text("is_relative_to") + b"ctorch\nSize\ns"
    index = b"\x80\x02" + target + b"N" + attributes + b"\x86b."
    found = guarded_search(with_index(tmp_path, index))
    assert found.changed == []
    assert found.states == []
    assert len(found.reasons) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "does not hold a Metadata of DCP"),
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".", "remain"),
        (b"\x80\x02}" + pickle.dumps(shared(60, tuple), 2)[2:-1] + b"Ns.", "a key of more than"),
        (b"\x80\x02}\x8b\x00\x08\x00\x00" + b"\x7f" * 2048 + b"Ns.", "an int of 16383 bits"),
        (pickle.dumps(Calls(bytearray, 1 << 40)), "names builtins.bytearray"),
    ],
    ids=["memo", "bytearray", "key", "int", "call"],
)
def test_an_index_takes_neither_time_nor_memory(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    found = guarded_search(with_index(tmp_path, content))
    assert reason in found.reasons[0]


@pytest.mark.parametrize(
    "content",
    [b"\x82\x01.", b"(S'a'\nibuiltins\nobject\n.", b"\x80\x04)}\x92.", b"P1\n.", b"NQ.", b"\x97."],
    ids=["EXT1", "INST", "NEWOBJ_EX", "PERSID", "BINPERSID", "NEXT_BUFFER"],
)
def test_other_instructions_are_refused(content: bytes) -> None:
    def admitted(module: str, name: str) -> Any:
        raise AssertionError((module, name))

    with pytest.raises(pickle.UnpicklingError, match=r"which (is|are) not read"):
        read_pickle(content, admitted)


@pytest.fixture
def dcp(tmp_path: Path) -> Path:
    """DCP's own folder of a checkpoint with a state, whose index a test changes."""
    return save(tmp_path / "dcp", loader=after(1), other=after(2), w=torch.zeros(4))


def test_an_index_that_names_the_same_bytes_often_is_refused(dcp: Path) -> None:
    def name_often(index: Any) -> None:
        place, stored = next(iter(index.storage_data.items()))
        for i in range(3):
            index.storage_data[metadata.MetadataIndex(f"copy{i}")] = stored
            index.state_dict_metadata[f"copy{i}"] = index.state_dict_metadata[place.fqn]

    assert "twice" in guarded_search(reindexed(dcp, name_often)).reasons[0]


def test_a_tensor_that_claims_more_than_is_stored_is_refused(tmp_path: Path) -> None:
    def claim(index: Any) -> None:
        (about,) = (each for each in index.state_dict_metadata.values() if hasattr(each, "size"))
        about.size = torch.Size([1 << 36])

    folder = save(tmp_path / "dcp", loader=after(1) | {"user": {"sampler": torch.zeros(4)}})
    found = guarded_search(reindexed(folder, claim))
    assert "claims 274877906944 bytes" in found.reasons[0]


def test_lists_without_items_are_bounded(dcp: Path) -> None:
    """n lists of n values each take quadratic memory."""
    number = 2000

    def name_lists(index: Any) -> None:
        for i in range(number):
            name = f"many.{i}"
            index.planner_data[name] = ("many", f"list{i}", number - 1)
            index.state_dict_metadata[name] = metadata.BytesStorageMetadata()
            stored = filesystem._StorageInfo("none.distcp", i, 1)
            index.storage_data[metadata.MetadataIndex(name)] = stored

    assert "in a list" in guarded_search(reindexed(dcp, name_lists)).reasons[0]


# Files of torch.save ----------------------------------------------------------------------------


def reduce_of(module: str, name: str, number: int) -> bytes:
    """Return a pickle that calls a function with a number, beside a mark."""
    call = f"c{module}\n{name}\n".encode() + b"\x8a\x08" + struct.pack("<q", number) + b"\x85R"
    return b"\x80\x02}(" + text(MARK) + b"K\x01" + text("x") + call + b"u."


def in_zip(path: Path, content: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    torch.save({}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, part in parts.items():
            archive.writestr(name, content if name.endswith("data.pkl") else part)
    return path


CALLED = [
    ("builtins", "bytearray"),
    ("torch.storage", "UntypedStorage"),
    ("torch", "Tensor"),
    ("torch", "FloatTensor"),
]


@pytest.mark.parametrize(("module", "name"), CALLED)
def test_a_file_reserves_no_memory(tmp_path: Path, module: str, name: str) -> None:
    in_zip(tmp_path / "a.pt", reduce_of(module, name, 1 << 38))
    (tmp_path / "sound").mkdir()
    torch.save(after(1), tmp_path / "sound/b.pt")
    found = guarded_search(tmp_path)
    assert found.states == ["sound/b.pt:"]
    assert len(found.reasons) == 1
    assert "llocate" not in found.reasons[0]
    assert "Memory" not in found.reasons[0]


def test_a_compressed_file_is_not_unpacked(tmp_path: Path) -> None:
    content = b"\x80\x02" + text(MARK) + b"0" + text(" " * (64 << 20)) + b"."
    path = in_zip(tmp_path / "a.pt", content, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    assert "is compressed" in guarded_search(path).reasons[0]


@pytest.mark.parametrize(("claimed", "reason"), [(6000, "claim"), (60_000, "outside the file")])
def test_a_file_whose_entries_claim_more_than_it_holds_is_refused(
    tmp_path: Path, claimed: int, reason: str
) -> None:
    """A zip's writer chooses the sizes in its directory."""
    path = tmp_path / "a.pt"
    torch.save({MARK: [torch.zeros(100) for _ in range(40)]}, path)
    content = path.read_bytes()
    first, sizes = content.index(b"PK\x01\x02"), struct.pack("<II", 400, 400)
    assert content.count(sizes, first) == 40
    directory = content[first:].replace(sizes, struct.pack("<II", claimed, claimed), 20)
    path.write_bytes(content[:first] + directory)
    assert reason in guarded_search(path).reasons[0]


def test_a_file_of_old_torch_claims_no_more_than_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({MARK: torch.zeros(1000)}, path, _use_new_zipfile_serialization=False)
    number = b"M" + struct.pack("<H", 1000)
    larger = b"\x8a\x08" + struct.pack("<q", 1 << 36)
    path.write_bytes(path.read_bytes().replace(number, larger))
    assert "claims 274877906944 bytes" in guarded_search(path).reasons[0]


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_tensor_larger_than_its_storage_is_refused(tmp_path: Path, is_zip: bool) -> None:
    """torch enlarges a storage that is too small."""
    path = tmp_path / "a.pt"
    torch.save({MARK: torch.zeros(1000)[:500]}, path, _use_new_zipfile_serialization=is_zip)
    content, number = path.read_bytes(), b"M" + struct.pack("<H", 500)
    assert number in content
    path.write_bytes(content.replace(number, b"M" + struct.pack("<H", 60_000)))
    assert "of a storage of 4000 bytes" in guarded_search(path).reasons[0]


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_key_of_shared_tuples_is_refused(tmp_path: Path, is_zip: bool) -> None:
    """A hash visits the innermost one 2**60 times."""
    content = b"\x80\x02}(" + text(MARK) + b"K\x01"
    content += pickle.dumps(shared(60, tuple), 2)[2:-1] + b"Nu."
    if is_zip:
        path = in_zip(tmp_path / "a.pt", content)
    else:
        path = tmp_path / "a.pt"
        torch.save({}, path, _use_new_zipfile_serialization=False)
        empty = pickle.dumps({}, 2)
        path.write_bytes(path.read_bytes().replace(empty, content, 1))
    assert "a key of more than" in guarded_search(path).reasons[0]


def test_shared_lists_are_searched_once(tmp_path: Path) -> None:
    torch.save({"shared": shared(60), "train": after(1)}, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size < 8000
    assert guarded_search(tmp_path).states == ["a.pt:train"]


@pytest.mark.parametrize(
    "value", [shared(60), torch.zeros(1).expand(1 << 34)], ids=["lists", "tensor"]
)
def test_a_state_of_shared_lists_or_of_an_expanded_tensor_is_refused(
    tmp_path: Path, value: Any
) -> None:
    """Comparing or printing it would take as long as for 2**60 lists."""
    torch.save({"train": after(1) | {"user": {"sampler": value}}}, tmp_path / "a.pt")
    (reason,) = guarded_search(tmp_path).reasons
    assert "hold the same values so often" in reason


def test_states_without_number_are_refused(tmp_path: Path) -> None:
    value: Any = after(1)
    for _ in range(60):
        value = [value, value]
    torch.save(value, tmp_path / "a.pt")
    (reason,) = guarded_search(tmp_path).reasons
    assert "more than 10000 states" in reason


def test_a_state_at_two_places_is_found_at_both(tmp_path: Path) -> None:
    state = after(1)
    torch.save({"train": {"last": state}, "best": state}, tmp_path / "a.pt")
    found = find_states(tmp_path / "a.pt")
    assert [each.where for each in found] == ["train.last", "best"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("1" * 100_000, "a number of more than 400 digits"),
        ("[" * 100_000 + "]" * 100_000, "nesting of depth"),
    ],
)
def test_hostile_json_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    state = json.dumps(after(1))
    (tmp_path / "a.json").write_text(f'{{"loader": {state}, "x": {content}}}')
    assert reason in guarded_search(tmp_path / "a.json").reasons[0]


def test_json_beyond_the_limit_is_named_if_it_may_hold_a_state(tmp_path: Path) -> None:
    for name, mark in (("a.json", MARK), ("b.json", "annotations")):
        with open(tmp_path / name, "w") as file:
            file.write(f'{{"{mark}": 1}}')
            file.truncate(65 << 20)
    (reason,) = guarded_search(tmp_path).reasons
    assert "at most 67108864 are read" in reason


# Folders ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run/steps").mkdir(parents=True)
    torch.save(after(1), tmp_path / "run/steps/a.pt")
    return tmp_path / "run"


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.fspath(path))


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parent.parent / "pipe")
    path.symlink_to(path.parent.parent / "pipe")


SPECIAL = [make_pipe, make_socket, link_to_device, link_to_pipe]


@pytest.mark.parametrize("make", SPECIAL)
def test_non_regular_files_are_skipped(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder / "special.pt")
    found = guarded_search(folder)
    assert (found.states, found.reasons) == (["steps/a.pt:"], [])


@pytest.mark.parametrize(("make", "kind"), [(make_pipe, "named pipe"), (link_to_device, "device")])
def test_non_regular_files_are_named(folder: Path, make: Callable[[Path], None], kind: str) -> None:
    make(folder / "special.pt")
    assert guarded_search(folder / "special.pt").reasons[0].endswith(f"but a {kind}")


def test_links_to_folders_around_them_are_followed_once(folder: Path) -> None:
    (folder / "itself").symlink_to(".")
    (folder / "steps/above").symlink_to("..")
    (folder / "latest").symlink_to("steps")
    found = guarded_search(folder)
    assert (found.states, found.reasons) == (["steps/a.pt:"], [])


def test_a_link_replaces_a_target_that_is_not_listed(folder: Path) -> None:
    (folder / "steps").rename(folder / ".steps")
    (folder / "latest").symlink_to(".steps")
    (folder / "last.pt").symlink_to("latest/a.pt")
    (folder / "gone.pt").symlink_to("nowhere")
    found = guarded_search(folder)
    assert len(found.states) == 1
    gone, latest = found.reasons
    assert gone == "cannot be read: No such file or directory"
    assert latest.endswith("/run/.steps', and is not followed")


def test_a_link_to_a_folder_outside_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    torch.save(after(2), tmp_path / "outside/b.pt")
    torch.save(after(3), tmp_path / "c.pt")
    (folder / "other").symlink_to(tmp_path / "outside")
    (folder / "root").symlink_to("/")
    (folder / "c.pt").symlink_to(tmp_path / "c.pt")
    found = guarded_search(folder)
    assert found.states == ["steps/a.pt:", "c.pt:"]
    assert [("and is not followed" in reason) for reason in found.reasons] == [True, True]


# Copies -----------------------------------------------------------------------------------------


def moved(path: Path, out: Path) -> list[State]:
    found = find_states(path)
    write_states(path, [(found[0], found[0].state | {"epoch": 7})], out)
    return [each.state for each in find_states(out)]


def test_a_copy_is_as_private_as_the_file(tmp_path: Path) -> None:
    write_all(tmp_path)
    for name in ("script.pt", "state.json", "checkpoint.json"):
        (tmp_path / name).chmod(0o600)
        moved(tmp_path / name, tmp_path / f"moved-{name}")
        assert (tmp_path / f"moved-{name}").stat().st_mode & 0o777 == 0o600


def test_a_copy_is_not_written_through_a_link(tmp_path: Path) -> None:
    torch.save(after(1), tmp_path / "a.pt")
    (tmp_path / "out.pt").symlink_to("absent.pt")
    with pytest.raises(NoState):
        moved(tmp_path / "a.pt", tmp_path / "out.pt")


def test_a_file_that_is_a_link_is_copied_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    torch.save(after(1), tmp_path / "a.pt")
    before = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "run/a.pt").symlink_to(tmp_path / "a.pt")
    assert moved(tmp_path / "run", tmp_path / "out")[0]["epoch"] == 7
    assert (tmp_path / "a.pt").read_bytes() == before
    assert not (tmp_path / "out/a.pt").is_symlink()


def test_a_folder_with_a_pipe_is_not_copied(folder: Path, tmp_path: Path) -> None:
    (found,) = find_states(folder)
    make_pipe(folder / "pipe")
    with pytest.raises(NoState, match="is a named pipe, which is not copied"):
        write_states(folder, [(found, found.state)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_of_torchs_distributed_tensors_are_read(tmp_path: Path) -> None:
    """torch declares them safe when their module is imported, which the guard has not done."""
    torch.save({"placement": Shard(0), "train": after(1)}, tmp_path / "a.pt")
    assert guarded_search(tmp_path).states == ["a.pt:train"]


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates them
        return torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)


def test_checkpoints_of_programs_are_still_read(tmp_path: Path) -> None:
    """Values that torch admits, and that a check might refuse."""
    values = {
        "parameter": torch.nn.Parameter(torch.zeros(2, 3).t()),
        "expanded": torch.zeros(1, 3).expand(4, 3),
        "empty": torch.empty(0, 4),
        "half": torch.zeros(2, dtype=torch.bfloat16),
        "small": torch.zeros(2, dtype=torch.float8_e4m3fn),
        "complex": torch.zeros(2, dtype=torch.complex64),
        "sparse": torch.eye(3).to_sparse(),
        "quantized": quantized(),
        "meta": torch.empty(3, device="meta"),
        "module": torch.nn.Linear(2, 2).state_dict(),
        "plain": [{1, 2}, 2 + 1j, bytearray(b"ab"), torch.device("cpu"), torch.float16, (1, None)],
        "conjugate": torch.zeros(2, dtype=torch.complex64).conj(),
        "size": torch.Size([1, 2]),
    }
    module: Any = values["module"]
    assert module._metadata
    for is_zip in (True, False):
        given = {k: v for k, v in values.items() if is_zip or k not in ("small", "meta")}
        saved = {"model": given, "train": after(1)}
        path = tmp_path / f"{is_zip}.pt"
        torch.save(saved, path, _use_new_zipfile_serialization=is_zip)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns when it reads a quantized tensor
            assert [each.where for each in find_states(path)] == ["train"]
