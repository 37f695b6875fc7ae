"""States of other readers, and objects that are no states, are refused by name."""

from __future__ import annotations

import glob
import shutil
from pathlib import Path
from typing import Any

import nvidia.dali.experimental.dynamic as ndd
import pytest

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.integrations.dali_dynamic import StatefulReader
from tests.conformance import differing
from tests.images import write_photo_folder
from tests.integrations.in_dynamic_mode.readers import (
    BATCH,
    after,
    build,
    content,
    epochs,
    raw,
    resumed,
)

OTHERS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 5},
    "random_shuffle": {"random_shuffle": False},
    "initial_fill": {"initial_fill": 7},
    "num_shards": {"num_shards": 2},
    "shard_id": {"num_shards": 2, "shard_id": 1},
    "stick_to_shard": {"stick_to_shard": True},
    "pad_last_batch": {"pad_last_batch": True},
    "shuffle_after_epoch": {"random_shuffle": False, "shuffle_after_epoch": True},
    "file_filters": {"file_filters": ["*_00*.jpg"]},
}


@pytest.mark.parametrize("field", OTHERS)
def test_another_configuration_is_refused_by_name(field: str, root: str) -> None:
    """DALI accepts all of these silently."""
    before = {"num_shards": 2} if field == "shard_id" else {}
    if field == "shuffle_after_epoch":
        before = {"random_shuffle": False}
    reader = build(root, **before)
    after(reader, 1)
    other = build(root, **OTHERS[field])
    untouched = other.state_dict()
    with pytest.raises(StateMismatch) as caught:
        other.load_state_dict(reader.state_dict())
    assert caught.value.field == field
    assert other.state_dict() == untouched


def test_arguments_that_do_not_matter_may_change(root: str) -> None:
    """An explicit default is no change."""
    expected = epochs(raw(root), 1)[0]
    reader = build(root)
    after(reader, 2)
    free = {"name": "mine", "read_ahead": True, "prefetch_queue_depth": 3, "dont_use_mmap": True}
    defaults = {"num_shards": 1, "stick_to_shard": False, "pad_last_batch": None}
    other = resumed(root, reader.state_dict(), **free, **defaults)
    assert epochs(other, 1)[0] == expected[2:]


def test_the_state_brings_the_seed(root: str) -> None:
    """In DALI's own notebook, too, the restored reader gets no seed."""
    expected = epochs(raw(root), 3)
    reader = build(root)
    untouched = reader.state_dict()
    after(reader, 2)
    other = resumed(root, reader.state_dict(), seed=None)
    assert epochs(other, 3) == [expected[0][2:], *expected[1:]]
    with pytest.raises(StateMismatch, check=differing("seed", saved=1234, present="not given")):
        resumed(root, untouched, seed=None)


def test_data_may_move_and_not_change(root: str, tmp_path: Path) -> None:
    write_photo_folder(tmp_path / "moved", num_classes=3, per_class=5)
    write_photo_folder(tmp_path / "more", num_classes=3, per_class=6)
    reader = build(root)
    after(reader, 2)
    state = reader.state_dict()
    expected = epochs(resumed(root, state), 1)
    assert epochs(resumed(str(tmp_path / "moved"), state), 1) == expected
    with pytest.raises(StateMismatch, check=differing("file_root")):
        resumed(str(tmp_path / "more"), state)


def test_other_data_of_the_same_length_may_be_accepted(
    root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By name, with a warning. More data is refused at the first batch."""
    shutil.copytree(root, tmp_path / "photos")
    reader = build(root)
    epoch = after(reader, 2)
    state, expected = reader.state_dict(), [content(batch) for batch in epoch]
    some = min((tmp_path / "photos").glob("*/*.jpg"))
    some.rename(some.with_stem("+"))
    other = build(str(tmp_path / "photos"))
    with pytest.raises(StateMismatch, match=r"accept=\{'file_root'\}"):
        other.load_state_dict(state)
    other.load_state_dict(state, accept={"file_root"})
    assert "accepted another file_root: '15 files" in caplog.text
    assert epochs(other, 1) == [expected]
    shutil.copy(some.with_stem("+"), some)
    more = build(str(tmp_path / "photos"))
    more.load_state_dict(state, accept={"file_root"})
    with pytest.raises(StateMismatch, check=differing("epoch_size")):
        next(more.next_epoch(BATCH))
    for accept in ({"seed"}, {"num_shards"}, "file_root", {"path"}):
        with pytest.raises(ValueError, match="'file_root'"):
            other.load_state_dict(state, accept=accept)


def test_other_data_under_the_same_names_are_found_at_the_first_batch(
    root: str, tmp_path: Path
) -> None:
    """Some properties are known only once DALI has opened the files."""
    names = sorted(glob.glob(f"{root}/*/*.jpg"))
    listing = tmp_path / "list.txt"
    files = {"file_root": "", "file_list": str(listing), "random_shuffle": False}
    line = "\n".join(f"{name} 0" for name in names)
    listing.write_text(line, encoding="utf-8")
    reader = StatefulReader(ndd.readers.File, **files)
    after(reader, 1)
    other = StatefulReader(ndd.readers.File, **files)
    other.load_state_dict(reader.state_dict())
    listing.write_text("\n".join(line.splitlines()[:-1]), encoding="utf-8")
    state = other.state_dict()
    for _ in range(2):
        with pytest.raises(StateMismatch, check=differing("epoch_size", saved=15, present=14)):
            next(other.next_epoch(BATCH))
        assert other.state_dict() == state


def test_another_batch_size_is_refused_after_the_first_batch(root: str) -> None:
    reader = build(root)
    untouched = reader.state_dict()
    after(reader, 1)
    assert len(list(resumed(root, untouched).next_epoch(5))) == 3
    for each in (reader, resumed(root, reader.state_dict())):
        with pytest.raises(StateMismatch, check=differing("batch_size", saved=4, present=5)):
            each.next_epoch(5)


@pytest.mark.parametrize("key", ["epoch", "position", "reader", "configuration", "digest"])
def test_an_altered_state_is_refused(key: str, root: str) -> None:
    """DALI hangs if its own part of the state is empty or altered."""
    reader = build(root)
    epochs(reader, 1)
    after(reader, 2)
    state = reader.state_dict()
    value = state[key]
    for altered in ({**state, key: value + value}, {**state, key: None}, {**state, key: type}):
        with pytest.raises(StateMismatch):
            build(root).load_state_dict(altered)
    with pytest.raises(StateMismatch, check=differing("keys")):
        build(root).load_state_dict({name: state[name] for name in state if name != key})


@pytest.mark.parametrize("state", [None, {}, [], {"format": "other"}, {"reader": ""}])
def test_values_that_are_not_states_are_refused(state: Any, root: str) -> None:
    with pytest.raises(StateMismatch, check=differing("format")):
        build(root).load_state_dict(state)


def test_a_later_version_is_refused(root: str) -> None:
    reader = build(root)
    for version in (2, True, None):
        with pytest.raises(StateMismatch, check=differing("version")):
            reader.load_state_dict({**reader.state_dict(), "version": version})


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="no_such_argument"):
        StatefulReader(ndd.readers.File, no_such_argument=3)
