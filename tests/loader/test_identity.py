"""Identity of a loader: the states that it refuses, and differences that it cannot see."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stateful_gpu_loader import (
    CallableSource,
    FolderSource,
    MixedDataset,
    SampleInfo,
    StatefulGPULoader,
)
from stateful_gpu_loader.state import contents
from stateful_gpu_loader.transforms import CenterCrop
from tests.conformance import loaded, refusal
from tests.images import write_photo_folder
from tests.loader.passes import interrupted
from tests.map_datasets import Caching, Indices
from tests.user_objects import StatefulIterable, StatefulSampler

Make = Callable[[], StatefulGPULoader[Any]]
"""Builds a loader."""


def state_in_the_middle(make: Make) -> dict[str, Any]:
    loader = make()
    next(iter(loader))
    return loader.state_dict()


def pad(samples: list[Any], length: int = 8) -> Any:
    return default_collate(samples), length


def abs_(sample: Any) -> Any:
    """A user's transform."""
    return sample if isinstance(sample, list) else abs(sample)


class Holding(Indices):
    """A user's dataset with its own transform."""

    def __init__(self, length: int, transform: Any = None) -> None:
        super().__init__(length)
        self.transform = transform


class Lengthless:
    """A dataset without length, read only by a sampler's indices."""

    def __getitem__(self, index: int) -> int:
        return index


def tensors(offset: int = 0) -> TensorDataset:
    return TensorDataset(torch.arange(12) + offset)


Arguments = Callable[[], dict[str, Any]]


def loader_of(arguments: Arguments, **more: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(**{"dataset": Indices(12), "batch_size": 2, **arguments(), **more})


COMPARED: dict[str, tuple[str, Arguments, Arguments]] = {
    "other values": (
        "dataset",
        lambda: {"dataset": tensors()},
        lambda: {"dataset": tensors(5)},
    ),
    "another split": (
        "dataset",
        lambda: {"dataset": Subset(tensors(), range(6))},
        lambda: {"dataset": Subset(tensors(), range(6, 12))},
    ),
    "another transform inside": (
        "dataset_transform",
        lambda: {"dataset": Holding(12, v2.RandomCrop(8))},
        lambda: {"dataset": Holding(12, v2.RandomCrop(9))},
    ),
    "a transform inside a split": (
        "dataset_transform",
        lambda: {"dataset": Subset(Holding(12), range(6))},
        lambda: {"dataset": Subset(Holding(12, float), range(6))},
    ),
    "settings of torchvision's transform": (
        "transform",
        lambda: {"transform": v2.Lambda(float, int)},
        lambda: {"transform": v2.Lambda(float, str)},
    ),
    "another collate function": ("collate_fn", dict, lambda: {"collate_fn": pad}),
    "another argument of it": (
        "collate_fn",
        lambda: {"collate_fn": partial(pad, length=8)},
        lambda: {"collate_fn": partial(pad, length=9)},
    ),
    "batches, then samples": ("batched", dict, lambda: {"batch_size": None}),
    "bad samples replaced, then dropped": (
        "on_bad_sample",
        lambda: {"on_bad_sample": "replace"},
        lambda: {"on_bad_sample": "drop"},
    ),
}


@pytest.mark.parametrize("what", COMPARED)
def test_another_stream_is_refused_by_name_unless_accepted(what: str) -> None:
    """Each of these states once loaded silently."""
    field, arguments, others = COMPARED[what]
    state = state_in_the_middle(partial(loader_of, arguments))
    loader_of(arguments).load_state_dict(state)
    other = loader_of(others)
    assert "accept=" in refusal(other, state, field).remedy
    accepted = {field, "collate_fn"} if field == "batched" else {field}
    other.load_state_dict(state, accept=accepted)
    assert other.state_dict()["position"] == state["position"]


@pytest.mark.parametrize("batches", [False, True])
def test_the_length_under_a_users_sampler_is_compared(batches: bool) -> None:
    """With a longer dataset, a sampler without state yields other indices."""

    def make(length: int) -> StatefulGPULoader[Any]:
        if batches:
            given: Any = [[0, 1], [2, 3], [4, 5]]
            return StatefulGPULoader(Indices(length), batch_sampler=given)
        return StatefulGPULoader(Indices(length), 2, sampler=range(6))

    state = state_in_the_middle(partial(make, 12))
    make(12).load_state_dict(state)
    refused = refusal(make(20), state, "length")
    assert (refused.saved, refused.present) == (12, 20)


def test_a_dataset_without_length_is_read_by_a_sampler_as_before() -> None:
    def make() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(Lengthless(), 2, sampler=range(6))

    state = state_in_the_middle(make)
    loader = loaded(make(), state)
    assert [batch.tolist() for batch in loader] == [[2, 3], [4, 5]]


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_a_run_that_met_a_bad_sample_may_continue_without_it(mode: str) -> None:
    """G: "raise" has delivered nothing else, and its exceptions are not silent."""
    state = state_in_the_middle(lambda: StatefulGPULoader(Indices(12), 2))
    loader = loaded(StatefulGPULoader(Indices(12), 2, on_bad_sample=mode), state)
    again = loaded(StatefulGPULoader(Indices(12), 2), loader.state_dict())
    assert next(iter(again)).tolist() == [2, 3]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=6)
    return tmp_path / "photos"


def image_loader(root: Path, crop: int = 24, **arguments: Any) -> StatefulGPULoader[Any]:
    """Return a loader with torchvision's dataset and transforms, as in torchvision's references."""
    transform = v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(crop, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    folder = ImageFolder(str(root), transform=transform)
    return StatefulGPULoader(folder, batch_size=4, shuffle=True, seed=3, **arguments)


def test_a_plain_image_folder_that_moved_is_the_same_and_a_renamed_file_is_not(
    photos: Path,
) -> None:
    """The README promises this. Nothing is open."""
    assert image_loader(photos).unverified == ()
    state = state_in_the_middle(partial(image_loader, photos))
    moved = photos.rename(photos.with_name("moved"))
    image_loader(moved).load_state_dict(state)
    refused = refusal(image_loader(moved, crop=16), state, "dataset_transform")
    assert "size=(24, 24)" in refused.saved
    assert "size=(16, 16)" in refused.present
    image_loader(moved, crop=16).load_state_dict(state, accept={"dataset_transform"})
    photo = sorted(moved.glob("*/*"))[3]
    photo.rename(photo.with_stem("renamed"))
    refusal(image_loader(moved), state, "dataset")


def test_an_older_state_says_less_and_is_not_compared_in_that() -> None:
    """Under strict, a missing entry is refused."""
    fields = ("dataset", "dataset_transform", "collate_fn", "batched", "on_bad_sample")
    state = state_in_the_middle(lambda: StatefulGPULoader(tensors(), 2))
    saved = json.loads(state["fingerprint"])
    older = {**saved, "dataset": None}
    for field in fields[1:]:
        del older[field]
    state["fingerprint"] = json.dumps(older)
    loader = loaded(StatefulGPULoader(tensors(5), 2, collate_fn=pad), state)
    assert json.loads(loader.state_dict()["fingerprint"])["dataset"] is not None
    assert "strict" in str(refusal(StatefulGPULoader(tensors(), 2, strict=True), state))


PATHS = [f"/data/{number:06d}.jpg" for number in range(100_000)]


class Held(Indices):
    """A user's dataset that holds an object."""

    def __init__(self, samples: Any) -> None:
        super().__init__(12)
        self.samples = samples


@pytest.mark.parametrize(("hold", "names"), [(list, PATHS), (deque, PATHS[:9]), (set, PATHS[:9])])
def test_one_other_entry_is_another_dataset_whatever_holds_it(
    hold: Callable[[list[str]], Any], names: list[str]
) -> None:
    """A13. Each of these datasets once loaded silently; ``tests/state`` has more containers."""
    changed = [*names[:5], "/data/other.jpg", *names[6:]]
    state = state_in_the_middle(lambda: StatefulGPULoader(Held(hold(names)), 2))
    StatefulGPULoader(Held(hold(list(names))), 2).load_state_dict(state)
    other = StatefulGPULoader(Held(hold(changed)), 2)
    refusal(other, state, "dataset")
    other.load_state_dict(state, accept={"dataset"})


def test_a_long_list_is_proven_and_a_longer_one_named_as_sampled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A13. ``accept`` takes the name, and accepts no other dataset."""

    def make(paths: list[str] = PATHS) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(paths, 2, strict=True)

    assert make().unverified == ()
    make().load_state_dict(state_in_the_middle(make))
    monkeypatch.setattr(contents, "MAX_COST", 1000)
    assert make().unverified == ("dataset (sampled)",)
    state = state_in_the_middle(make)
    refusal(make(), state, "dataset (sampled)")
    make().load_state_dict(state, accept={"dataset (sampled)"})
    make().load_state_dict(state, accept={"dataset"})
    refusal(make(PATHS[::-1]), state, "dataset", accept={"dataset (sampled)"})


@pytest.mark.parametrize("field", ["transform", "batch_transform", "collate_fn"])
def test_a_callables_long_argument_is_compared_in_full(field: str) -> None:
    """For example, a tokenizer's vocabulary."""

    def make(words: list[str]) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(range(12), 2, **{field: partial(looked_up, words=words)})

    state = state_in_the_middle(partial(make, PATHS))
    make(list(PATHS)).load_state_dict(state)
    refusal(make([*PATHS[:5], "other", *PATHS[6:]]), state, field)


def looked_up(sample: Any, words: list[str]) -> Any:
    return sample


@pytest.mark.parametrize("samples", [PATHS, deque(PATHS)], ids=["list", "deque"])
def test_a_state_without_digests_loads_and_proves_its_text_alone(samples: Any) -> None:
    """Earlier versions saved such states."""

    def older(make: Make) -> dict[str, Any]:
        state = state_in_the_middle(make)
        fields = json.loads(state["fingerprint"])
        del fields["content"]
        return {**state, "fingerprint": json.dumps(fields)}

    def make(strict: bool = False) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(samples, 2, strict=strict)

    make().load_state_dict(older(make))
    refusal(make(strict=True), older(make), "dataset")
    make(strict=True).load_state_dict(older(make), accept={"dataset"})
    StatefulGPULoader(tensors(), 2, strict=True).load_state_dict(
        older(lambda: StatefulGPULoader(tensors(), 2))
    )


def test_an_older_text_of_a_transform_is_refused_with_both_and_can_be_accepted() -> None:
    """The older text has the names of torchvision's transforms without their settings."""

    def make() -> StatefulGPULoader[Any]:
        flips = v2.Compose([v2.RandomHorizontalFlip(0.25)])
        return StatefulGPULoader(range(12), 2, transform=flips)

    state = make().state_dict()
    older = (
        "torchvision.transforms.v2._container.Compose("
        "torchvision.transforms.v2._geometry.RandomHorizontalFlip)"
    )
    fields = {**json.loads(state["fingerprint"]), "transform": older}
    state["fingerprint"] = json.dumps(fields)
    refused = refusal(make(), state, "transform")
    assert older in refused.saved
    assert "RandomHorizontalFlip(p=0.25)" in refused.present
    make().load_state_dict(state, accept={"transform"})


class Forgetful:
    """A user's sampler without state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


def count(info: SampleInfo) -> int:
    if info.idx_in_epoch >= 12:
        raise StopIteration
    return info.idx_in_epoch


UNVERIFIED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "a user's dataset": (("dataset",), {"dataset": Indices(12)}),
    "a mixture of them": (("dataset",), {"dataset": MixedDataset([Indices(12)])}),
    "a function": (("dataset",), {"dataset": CallableSource(count)}),
    "an iterable": (("dataset",), {"dataset": StatefulIterable([12])}),
    "a function in the dataset": (
        ("dataset", "dataset_transform"),
        {"dataset": Holding(12, pad)},
    ),
    "a transform": (("transform",), {"transform": abs_}),
    "a list of them": (("transform",), {"transform": [float, abs_]}),
    "a batch transform": (("batch_transform",), {"batch_transform": abs_}),
    "a lambda": (("collate_fn",), {"collate_fn": lambda samples: samples}),
    "a sampler with state": (("sampler",), {"sampler": StatefulSampler(12)}),
}


@pytest.mark.parametrize("what", UNVERIFIED)
def test_unverifiable_parts_are_logged_and_refused_under_strict(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In one log line for each load, and without a warning."""
    words, given = UNVERIFIED[what]
    make = partial(loader_of, lambda: {"dataset": range(12), **given})
    assert make().unverified == words
    state = state_in_the_middle(make)
    with caplog.at_level(logging.INFO, logger="stateful_gpu_loader"):
        make().load_state_dict(state)
    lines = [line for line in caplog.messages if "cannot prove" in line]
    assert len(lines) == 1
    assert all(f"{word}: " in lines[0] for word in words)
    strict = make(strict=True)
    refusal(strict, state, words[0])
    strict.load_state_dict(state, accept=set(words))
    assert strict.state_dict()["position"] == state["position"]


def test_a_digest_verifies_the_indices_of_a_sampler_without_state() -> None:
    """Once the sampler has yielded indices."""

    def make() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(range(12), 2, sampler=Forgetful(), strict=True)

    assert make().unverified == ("sampler",)
    make().load_state_dict(state_in_the_middle(make))
    refusal(make(), make().state_dict(), "sampler")


def test_a_fully_verified_loader_logs_nothing(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> StatefulGPULoader[Any]:
        source = FolderSource(photos)
        return StatefulGPULoader(source, 2, transform=CenterCrop(8), seed=1, strict=True)

    with caplog.at_level(logging.INFO, logger="stateful_gpu_loader"):
        make().load_state_dict(state_in_the_middle(make))
    assert make().unverified == ()
    assert not caplog.messages


def test_a_state_of_torchdata_proves_nothing() -> None:
    """It does not identify its dataset."""
    theirs = StatefulDataLoader(list(range(12)), batch_size=2)
    next(iter(theirs))
    state = theirs.state_dict()
    StatefulGPULoader(list(range(12)), 2).load_state_dict(state)
    refusal(StatefulGPULoader(list(range(12)), 2, strict=True), state, "dataset")


def test_a_dataset_is_described_once_and_not_for_every_state() -> None:
    """No state costs a description, and before the first use none is made."""
    calls: list[Any] = []

    class Counting(Indices):
        def fingerprint(self) -> str:
            calls.append(self)
            return "mine"

    loader = StatefulGPULoader(Counting(12), 2)
    batches = iter(loader)
    next(batches)
    assert not calls
    state = loader.state_dict()
    asked = len(calls)
    for _ in batches:
        loader.state_dict()
    loader.load_state_dict(state)
    assert loader.unverified == ()
    assert len(calls) == asked


def test_caches_filled_by_reading_are_not_part_of_the_identity() -> None:
    """The identity is that of the dataset before the first batch."""
    loader = StatefulGPULoader(Caching(8), batch_size=2)
    state, _ = interrupted(loader)
    resumed = loaded(StatefulGPULoader(Caching(8), batch_size=2), state)
    assert len(list(resumed)) == 3


def test_an_iterable_that_is_known_otherwise_can_be_accepted() -> None:
    """Iterables have no length, so both appear equally long."""

    class Records(IterableDataset[int]):
        def __init__(self, data: list[int]) -> None:
            self.data = data

        def __iter__(self) -> Any:
            return iter(range(6))

    loader = StatefulGPULoader(Records([1]), batch_size=2)
    batches = iter(loader)
    next(batches)
    resumed = StatefulGPULoader(Records([2]), batch_size=2)
    refusal(resumed, loader.state_dict(), "dataset")
    resumed.load_state_dict(loader.state_dict(), accept={"dataset"})
    with pytest.warns(UserWarning, match="read again"):
        assert len(list(resumed)) == 2


def test_strict_names_all_that_is_open_and_takes_a_samplers_fingerprint() -> None:
    """A single load lists everything to accept."""

    class Sampler:
        def __iter__(self) -> Any:
            return iter([1, 0])

        def __len__(self) -> int:
            return 2

    class Known(Sampler):
        def fingerprint(self) -> str:
            return "backwards"

    def make(sampler: Any) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            [5, 6], sampler=sampler, collate_fn=lambda samples: samples, strict=True
        )

    refused = refusal(make(Sampler()), make(Sampler()).state_dict())
    assert "collate_fn" in refused.remedy
    assert "strict=False" in refused.remedy
    assert make(Known()).unverified == ("collate_fn",)
    make(Known()).load_state_dict(make(Known()).state_dict(), accept={"collate_fn"})
