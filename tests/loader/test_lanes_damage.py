"""Shards that are damaged, vanish or cannot be read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import BadSample, LoaderError, StatefulGPULoader, TarShards
from stateful_gpu_loader import transforms as T
from tests.conformance import copy_of, loaded, same
from tests.damaged import delivered_with_errors
from tests.datasets.shards import DamagedShards, Loader, Numbers, PhotoShards, indices_of
from tests.datasets.tar.tar_files import photo_entries, write_tar
from tests.fake_gpu import FakeGpu, fake_gpu

__all__ = ["fake_gpu"]

SIZES = (7, 4, 9, 5, 0, 6)
DAMAGE = {0: (3, "value"), 2: (8, "value"), 3: (0, "missing"), 5: (2, "missing")}


def make(damage: Any = None, **arguments: Any) -> Loader:
    lanes, counted = arguments.pop("lanes", 2), arguments.pop("counted", False)
    dataset = DamagedShards(
        DAMAGE if damage is None else damage, SIZES, lanes=lanes, buffer=10, counted=counted
    )
    return StatefulGPULoader(dataset, **{"batch_size": 3, "seed": 1, "shuffle": True, **arguments})


def make_photos(**arguments: Any) -> Loader:
    counted = arguments.pop("counted", False)
    dataset = PhotoShards((3, 6, 5, 4), broken=frozenset({101, 103, 201}), counted=counted)
    return StatefulGPULoader(
        dataset,
        **{"batch_size": 2, "seed": 1, "shuffle": True, "transform": [T.Resize((8, 8))]}
        | arguments,
    )


@pytest.mark.parametrize(
    ("shuffle", "batch_size", "num_workers"), [(False, 1, 0), (True, 3, 2), (True, 100, 0)]
)
def test_raise_names_the_shard_and_continues_after_it(
    shuffle: bool, batch_size: int, num_workers: int
) -> None:
    """Each damage is raised once with its own type; each other sample comes exactly once."""
    loader = make(shuffle=shuffle, batch_size=batch_size, num_workers=num_workers)
    found, errors = delivered_with_errors(loader)
    assert sorted(indices_of(found)) == loader.dataset.sound()
    kinds = sorted(type(error).__name__ for error in errors)
    assert kinds == ["FileNotFoundError", "FileNotFoundError", "ValueError", "ValueError"]
    texts = [f"{error} {getattr(error, '__notes__', '')}" for error in errors]
    for shard, (at, _) in DAMAGE.items():
        assert any(f"in shard '{shard}', cursor {at}" in text for text in texts)
    assert sorted(indices_of(delivered_with_errors(loader)[0])) == loader.dataset.sound()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_resume_after_an_error_loses_no_sample(batch_size: int, shuffle: bool) -> None:
    """Errors that are met again are raised again; batches equal those of the uninterrupted run."""
    build = partial(make, batch_size=batch_size, shuffle=shuffle)
    loader = build()
    batches, found, states = iter(loader), [], []
    while True:
        try:
            found.append(copy_of(next(batches)))
            states.append(loader.state_dict())
        except StopIteration:
            break
        except (ValueError, FileNotFoundError):
            continue
    for number, state in enumerate(states):
        resumed = loaded(build(), state)
        rest, _ = delivered_with_errors(resumed)
        assert same(rest, found[number + 1 :]), number


@pytest.mark.parametrize("shuffle", [False, True])
def test_drop_leaves_out_the_rest_with_a_record(shuffle: bool) -> None:
    loader = make(on_bad_sample="drop", shuffle=shuffle)
    assert sorted(indices_of(loader)) == loader.dataset.sound()
    record = {bad.index: bad.reason for bad in loader.bad_samples.samples}
    assert set(record) == {f"rest of shard '{s}', cursor {at}" for s, (at, _) in DAMAGE.items()}
    assert record["rest of shard '0', cursor 3"] == "ValueError: the record's checksum is wrong"
    assert loader.bad_samples.total == 4


def test_bad_samples_before_a_dropped_rest_are_recorded() -> None:
    """Under drop_last no batch can report it. Records are in the order of the lanes."""
    loader = make(on_bad_sample="drop", drop_last=True, batch_size=30)
    assert list(loader) == []
    names = {str(bad.index) for bad in loader.bad_samples.samples}
    assert names == {f"rest of shard '{s}', cursor {at}" for s, (at, _) in DAMAGE.items()}


@pytest.mark.parametrize("counted", [False, True])
def test_a_single_rank_repeats_no_samples_for_dropped_ones(counted: bool) -> None:
    """Also if the numbers of samples are known."""
    for batch_size in (1, 2):
        loader = make(on_bad_sample="drop", counted=counted, batch_size=batch_size)
        assert sorted(indices_of(loader)) == loader.dataset.sound()
        photos = make_photos(on_bad_sample="drop", counted=counted, batch_size=batch_size)
        found = indices_of(photos)
        assert len(set(found)) == len(found)
        assert {101, 103, 201}.isdisjoint(found)


@pytest.mark.parametrize("mode", ["raise", "drop"])
def test_a_temporary_error_changes_nothing(mode: str) -> None:
    """OSError and SystemError are retried with the same draws."""
    flaky = {0: (3, "flaky"), 2: (0, "flaky"), 5: (5, "flaky")}
    loader = make(flaky, on_bad_sample=mode)
    assert same([copy_of(b) for b in loader], [copy_of(b) for b in make({}, on_bad_sample=mode)])
    attempts = sorted(loader.dataset.attempts.values())
    assert attempts == [3, 3, 3], "two failures and a success each"
    assert loader.bad_samples.total == 0


@pytest.mark.parametrize("mode", ["raise", "drop"])
def test_a_permanent_storage_error_is_raised(mode: str) -> None:
    """It is no bad sample; earlier samples and other lanes are delivered."""
    loader = make({0: (3, "storage")}, on_bad_sample=mode, shuffle=False)
    batches = iter(loader)
    found = [next(batches), next(batches)]
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error") as caught:
            next(batches)
        assert "in shard '0', cursor 3" in caught.value.__notes__  # type: ignore[attr-defined]
        found.append(next(batches))
    assert indices_of(found) == [0, 1, 2, 1000, 1001, 1002, 1003, 3000, 3001, 3002, 3003, 3004]
    loader.dataset.damage.clear()
    assert sorted(indices_of(found) + indices_of(batches)) == Numbers(SIZES).all()
    assert loader.bad_samples.total == 0


def test_a_programming_error_is_raised_under_drop() -> None:
    loader = make({2: (4, "code")}, on_bad_sample="drop")
    found, errors = delivered_with_errors(loader)
    assert [type(error) for error in errors] == [TypeError]
    assert sorted(indices_of(found)) == loader.dataset.sound()


@pytest.mark.parametrize(("batch_size", "num_workers"), [(1, 0), (2, 2), (30, 0)])
def test_undecodable_images_are_raised_by_name(batch_size: int, num_workers: int) -> None:
    """Only their batch is lost; the rest after it is unchanged."""
    loader = make_photos(batch_size=batch_size, num_workers=num_workers, shuffle=False)
    found, errors = delivered_with_errors(loader)
    assert errors
    assert all(isinstance(error, BadSample) for error in errors)
    assert "photos-" in str(errors[0])
    came = indices_of(found)
    assert len(set(came)) == len(came)
    lost = set(loader.dataset.all()) - set(came)
    assert len(lost) <= len(errors) * batch_size
    assert {101, 103, 201} <= lost


@pytest.mark.parametrize("batch_size", [2, 30])
def test_undecodable_images_are_dropped(batch_size: int, fake_gpu: FakeGpu) -> None:
    """On a device as on the CPU."""
    alone = make_photos(on_bad_sample="drop", batch_size=batch_size)
    dropped = indices_of(alone)
    assert sorted(dropped) == sorted(set(alone.dataset.all()) - {101, 103, 201})
    wanted = alone.bad_samples.samples
    names = {f"shard 'photos-{s}', cursor {i}" for s, i in ((1, 1), (1, 3), (2, 1))}
    assert {str(bad.index) for bad in wanted} == names
    loader = make_photos(on_bad_sample="drop", batch_size=batch_size, device="cuda", num_workers=2)
    assert indices_of(loader) == dropped
    found = loader.bad_samples.samples
    assert [(b.index, b.position) for b in found] == [(b.index, b.position) for b in wanted]


def test_damaged_records_of_images_are_bad_samples() -> None:
    """The records name shard and cursor."""
    dataset = PhotoShards((3, 6), damaged=frozenset({102}))
    loader = StatefulGPULoader(dataset, batch_size=2, transform=[T.Resize((8, 8))])
    found, errors = delivered_with_errors(loader)
    assert indices_of(found) == [0, 1, 100, 101, 2]
    (error,) = errors
    assert isinstance(error, BadSample)
    assert (error.name, error.index, error.epoch) == ("shard 'photos-1', cursor 2", 2, 0)


@pytest.mark.parametrize(("lanes", "batch_size"), [(1, 100), (3, 2)])
@pytest.mark.parametrize(("says", "message"), [(6, "has only 5"), (4, "has more than 4")])
def test_a_wrong_number_of_samples_is_an_error(
    says: int, message: str, lanes: int, batch_size: int
) -> None:
    """Samples are not cut silently. The error comes once, and the epoch ends."""
    dataset = WrongCount(says)
    dataset.num_lanes = lanes
    loader = StatefulGPULoader(dataset, batch_size=batch_size)
    found, errors = delivered_with_errors(loader)
    (error,) = errors
    assert isinstance(error, LoaderError)
    assert message in str(error)
    assert "'1'" in str(error)
    assert f"returns {says}" in str(error)
    middle = [1000, 1001, 1002, 1003, 1004][: 5 if says == 6 else 4]
    assert sorted(indices_of(found)) == [0, 1, 2, *middle, 2000, 2001, 2002]


class WrongCount(Numbers):
    """Declares a wrong number of samples for its middle shard, which has 5."""

    def __init__(self, says: int) -> None:
        super().__init__((3, 5, 3), counted=True)
        self.says = says

    def num_samples(self, shard: str) -> int | None:
        return self.says if shard == "1" else super().num_samples(shard)


@pytest.mark.fuzz
def test_only_the_malformed_sample_is_dropped(tmp_path: Path) -> None:
    """In a tar, one image has no class, and the class of another is no number."""
    entries = dict(photo_entries(0, 9))
    del entries["photos/0003.cls"]
    entries["photos/0006.cls"] = b"seven"
    paths = [
        write_tar(tmp_path / "0.tar", list(entries.items())),
        write_tar(tmp_path / "1.tar", photo_entries(9, 12)),
    ]

    def build(**arguments: Any) -> Loader:
        shards = TarShards(paths, target=("cls", "txt"), num_lanes=2, shuffle_buffer=8)
        return StatefulGPULoader(
            shards,
            **{"batch_size": 2, "seed": 1, "shuffle": True, "transform": [T.Resize((8, 8))]}
            | arguments,
        )

    sound = {f"cup {number}" for number in range(12)} - {"cup 3", "cup 6"}
    for num_workers in (0, 2):
        found, errors = delivered_with_errors(build(num_workers=num_workers))
        assert {text for batch in found for text in batch[1][1]} == sound
        assert [type(error) for error in errors] == [BadSample, BadSample]
        assert "record 'photos/0003'" in str(errors[0])
        assert "lacks the target (cls)" in str(errors[0])
    loader = build(on_bad_sample="drop")
    texts = [text for batch in loader for text in batch[1][1]]
    assert sorted(texts) == sorted(sound)
    assert loader.bad_samples.total == 2
    assert all(bad.index.startswith("shard '0.tar', cursor") for bad in loader.bad_samples.samples)
