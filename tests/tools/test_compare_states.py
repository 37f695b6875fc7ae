"""Two states: their differences, whether a loader accepts the other, and their distance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from stateful_gpu_loader.tools.compare_states import compare, compare_files
from stateful_gpu_loader.tools.state_files import NoState
from tests.tools.checkpoints import Counting, after, after_in_torchdata


@pytest.mark.parametrize(("one", "other", "apart"), [(2, 2, 0), (1, 3, 2), (3, 1, -2)])
def test_places_of_one_epoch(one: int, other: int, apart: int) -> None:
    found = compare(after(one), after(other) | {"_iterator_finished": False})  # Accelerate's key
    assert (found.same_identity, found.same_place) == (True, apart == 0)
    assert found.is_same == (apart == 0)
    assert found.resumes
    assert (found.samples_apart, found.batches_apart) == (2 * apart, apart)
    assert [each.field for each in found.differences] == ["position"] * (apart != 0)


@pytest.mark.parametrize(("drop_last", "samples"), [(False, 14), (True, 13)])
def test_places_of_two_epochs_count_whole_epochs(drop_last: bool, samples: int) -> None:
    first = after(1, batch_size=3, drop_last=drop_last)
    second = after(0, batch_size=3, drop_last=drop_last) | {"epoch": 1, "position": 7}
    found = compare(first, second)
    assert (found.samples_apart, found.batches_apart) == (samples, None)


def test_another_batch_size_is_for_information_and_leaves_samples() -> None:
    found = compare(after(3), after(2, batch_size=3))
    assert found.is_same
    assert (found.samples_apart, found.batches_apart) == (0, None)
    assert [(each.field, each.kind) for each in found.differences] == [
        ("global_batch_size", "information")
    ]


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"shuffle": False}, "order"),
    ({"drop_last": True}, "drop_last"),
    ({"dataset": range(20)}, "dataset"),
    ({"dataset": range(1, 11)}, "dataset"),
    ({"collate_fn": list}, "collate_fn"),
]


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize(("change", "field"), CHANGES)
def test_the_reported_accept_matches_a_load(
    change: dict[str, Any], field: str, batches: int
) -> None:
    """The loader itself refuses the state, and accepts it with the names or does not."""
    first, second = after(0, **{"shuffle": True, "dataset": range(10), **change}), after(batches)
    found = compare(first, second)
    assert found.resumes is False
    assert field in {each.field for each in found.differences}
    arguments = {"shuffle": True, "dataset": range(10), **change}
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        arguments.pop("dataset"), batch_size=2, seed=1, **arguments
    )
    with pytest.raises(StateMismatch):
        loader.load_state_dict(second)
    if found.accept_is_enough:
        loader.load_state_dict(second, accept=set(found.accept))
    else:
        with pytest.raises(StateMismatch):
            loader.load_state_dict(second, accept=set(found.accept))


def test_another_seed_is_taken_without_one() -> None:
    found = compare(after(1), after(1, seed=2))
    assert (found.same_identity, found.resumes, found.accept) == (False, True, ("seed",))
    assert found.samples_apart is None


def test_fields_unknown_in_one_state_are_not_refused() -> None:
    second = after(1)
    silent = json.loads(second["fingerprint"]) | {"dataset": None}
    found = compare(after(1), second | {"fingerprint": json.dumps(silent)})
    assert found.is_same
    (difference,) = found.differences
    assert difference.field == "dataset"
    assert "does not hold it" in difference.meaning


def test_digests_of_long_data_are_compared() -> None:
    """Their texts, which show a sample, are the same."""
    paths = [f"{number}.jpg" for number in range(5000)]
    one, other = (
        StatefulGPULoader([*paths[:2001], name, *paths[2002:]], seed=1).state_dict()
        for name in ("one", "other")
    )
    found = compare(one, other)
    assert [each.field for each in found.differences] == ["dataset"]
    assert (found.resumes, found.accept) == (False, ("dataset",))


def test_states_of_a_users_objects_are_compared() -> None:
    one = after(1, Counting(), shuffle=None)
    other = json.loads(json.dumps(one))
    other["user"]["workers"][0]["dataset"]["next"] = 9
    found = compare(one, other)
    assert (found.same_identity, found.same_place) == (True, False)
    assert [each.field for each in found.differences] == ["user"]


def test_torchdatas_states_do_not_identify_the_loader() -> None:
    one = after_in_torchdata(1)
    same, other = compare(one, one), compare(one, after_in_torchdata(2))
    assert (same.is_same, same.resumes) == (True, None)
    assert (other.same_place, other.resumes, other.batches_apart) == (False, None, None)


def test_states_of_two_libraries_differ() -> None:
    found = compare(after(1), after_in_torchdata(1))
    assert not found.is_same
    assert found.resumes is None
    assert found.differences[0].field == "library"


def test_files_are_compared_place_by_place(tmp_path: Path) -> None:
    torch.save({"train": after(1), "val": after(2)}, tmp_path / "a.pt")
    torch.save({"train": after(1), "test": after(2)}, tmp_path / "b.pt")
    pairs = compare_files(tmp_path / "a.pt", tmp_path / "b.pt")
    assert [(pair.where, pair.first is None, pair.second is None) for pair in pairs] == [
        ("train", False, False),
        ("val", False, True),
        ("test", True, False),
    ]
    assert pairs[0].comparison is not None
    assert pairs[0].comparison.is_same
    (only,) = compare_files(tmp_path / "a.pt", tmp_path / "b.pt", "train")
    assert only.where == "train"
    with pytest.raises(NoState, match=r"'val'\..*\['train', 'test'\]"):
        compare_files(tmp_path / "a.pt", tmp_path / "b.pt", "val")


def test_single_states_are_compared_wherever_they_lie(tmp_path: Path) -> None:
    torch.save({"loader": after(1)}, tmp_path / "a.pt")
    (tmp_path / "b.json").write_text(json.dumps(after(2)))
    (pair,) = compare_files(tmp_path / "a.pt", tmp_path / "b.json")
    assert pair.comparison is not None
    assert pair.comparison.batches_apart == 1
