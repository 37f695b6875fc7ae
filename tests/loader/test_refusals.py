"""Arguments and states that a loader refuses by name, and that a refusal changes nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stateful_gpu_loader import (
    BadSample,
    DistributedShuffledSampler,
    FolderSource,
    ShuffledSampler,
    StatefulGPULoader,
)
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.samplers import ShardSampler
from stateful_gpu_loader.state.user_states import UserStates, worker_state
from tests.conformance import loaded, refusal
from tests.images import encode, photograph
from tests.map_datasets import Indices
from tests.user_objects import PlainIterable


def make_shuffled() -> ShuffledSampler:
    return ShuffledSampler(Indices(8), seed=4)


def make_distributed() -> DistributedShuffledSampler:
    return DistributedShuffledSampler(Indices(8), 2, 1, seed=4)


@pytest.mark.parametrize(
    ("make_sampler", "arguments", "text"),
    [
        (make_shuffled, {"seed": 5}, "seed=5 contradicts the sampler, which has 4"),
        (make_distributed, {"num_replicas": 3, "rank": 1}, "num_replicas=3 contradicts"),
    ],
)
def test_arguments_that_contradict_a_given_sampler_are_refused(
    make_sampler: Any, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        StatefulGPULoader(Indices(8), sampler=make_sampler(), **arguments)


@pytest.mark.parametrize("epoch", [-1, 2**32 - 1, 1.0, True, None])
def test_a_wrong_epoch_is_refused(epoch: Any) -> None:
    loader = StatefulGPULoader(Indices(3), shuffle=True)
    for set_epoch in (loader.set_epoch, loader.sampler.set_epoch):
        with pytest.raises(ValueError, match="epoch = "):
            set_epoch(epoch)
    assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"seed": 1.5}, TypeError, "seed=1.5 must be an int"),
        ({"seed": True}, TypeError, "must be an int"),
        ({"seed": 2**64}, ValueError, "must fit in 64 bits"),
        ({"rank": 0}, ValueError, "rank = 0 needs num_replicas"),
        ({"num_replicas": 2}, ValueError, "rank = None must be an int"),
        ({"num_replicas": 2, "rank": 2}, ValueError, "rank = 2 must be an int"),
        ({"num_replicas": 0, "rank": 0}, ValueError, "num_replicas = 0 must be"),
        ({"num_replicas": "all"}, ValueError, "num_replicas = 'all' must be"),
        ({"num_replicas": "auto", "rank": 1}, ValueError, "leave out rank = 1"),
        ({"worker_type": "fibre"}, ValueError, "worker_type='fibre' must be one of"),
        ({"on_epoch_boundary": "skip"}, ValueError, "on_epoch_boundary='skip' must be one of"),
        ({"shuffle": "yes"}, TypeError, "shuffle = 'yes'"),
        ({"transform": 7}, TypeError, "7 of type int, which is not callable"),
        ({"transform": [min, None]}, TypeError, "None of type NoneType"),
        ({"num_workers": 1, "worker_type": "thread"}, ValueError, "Indices is not a Source"),
        ({"threads_per_process": 0}, ValueError, "threads_per_process = 0 must be"),
        ({"num_workers": 2, "threads_per_process": 2}, ValueError, "Indices is not a Source"),
        (
            {"num_workers": 2, "threads_per_process": 2, "worker_type": "thread"},
            ValueError,
            "leave one of them out",
        ),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
        ({"persistent_workers": True}, ValueError, "persistent_workers"),
        ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context"),
        ({"batch_size": None, "drop_last": True}, ValueError, "batch_size=None"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": 2.5}, ValueError, "batch_size"),
        ({"num_workers": 1, "prefetch_factor": 0}, ValueError, "prefetch_factor = 0 must be"),
        ({"decoder": "photoshop"}, ValueError, "decoder='photoshop' must be one of"),
        ({"sampler": [0], "shuffle": True}, ValueError, "mutually exclusive"),
        ({"sampler": [0], "num_replicas": 2, "rank": 0}, ValueError, "num_replicas = 2 divides"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """The error is torch's, or a better one."""
    with pytest.raises(error, match=text):
        StatefulGPULoader(Indices(8), **arguments)


def test_a_state_of_another_loader_changes_nothing() -> None:
    good = StatefulGPULoader(Indices(20), batch_size=4, shuffle=True, seed=1)
    state = {**good.state_dict(), "position": 8}
    others: dict[str, StatefulGPULoader[Any]] = {
        "length": StatefulGPULoader(Indices(21), batch_size=4, shuffle=True, seed=1),
        "order": StatefulGPULoader(Indices(20), batch_size=4, seed=1),
        "drop_last": StatefulGPULoader(
            Indices(20), batch_size=4, shuffle=True, seed=1, drop_last=True
        ),
        "transform": StatefulGPULoader(
            Indices(20), batch_size=4, shuffle=True, seed=1, transform=float
        ),
        "seed": StatefulGPULoader(Indices(20), batch_size=4, shuffle=True, seed=2),
    }
    for field, loader in others.items():
        batches = iter(loader)
        next(batches)
        refusal(loader, state, field)
        next(batches)
        if field != "length":
            loader.load_state_dict(
                state, accept={"order", "shuffle", "drop_last", "transform", "seed"}
            )
            assert loader.state_dict()["position"] == 8


def test_a_position_outside_the_epoch_is_refused() -> None:
    loader = StatefulGPULoader(Indices(20))
    assert refusal(loader, {**loader.state_dict(), "position": 21}, "position").saved == 21


@pytest.mark.parametrize("field", ["index_digest", "ahead", "bad_samples", "user"])
def test_unsupported_arguments_are_refused_not_ignored(field: str) -> None:
    loader = StatefulGPULoader(Indices(20))
    refusal(loader, {**loader.state_dict(), field: "something"}, field)


def test_a_position_beyond_a_shorter_epoch_is_refused() -> None:
    """Found by the fuzzer of inputs: an empty batch was collated."""
    sampler = ShardSampler(range(23), 2, num_shards=5, shard_id=1)
    loader = StatefulGPULoader(Indices(23), sampler=sampler, batch_size=2)
    assert [sampler.order.of_epoch(0, epoch).n for epoch in (0, 1)] == [6, 4]
    state = loader.state_dict()
    loader.load_state_dict({**state, "position": 6})
    refused = refusal(loader, {**state, "position": 6, "epoch": 1}, "position")
    assert refused.present == "an epoch of 4 samples"


def test_states_of_objects_from_after_the_position_are_refused() -> None:
    """Found by the fuzzer of inputs: the sampler was asked for places beyond int64."""
    sampler = DistributedSampler(Indices(8), 1, 0)
    loader = StatefulGPULoader(Indices(8), sampler=sampler, batch_size=2)
    next(iter(loader))
    state = loader.state_dict()
    assert (state["position"], state["user"]["base"]) == (2, 2)
    for base in (3, 2**64):
        refusal(loader, {**state, "user": {**state["user"], "base": base}}, "user's base")
    assert loader.state_dict() == state


@pytest.mark.parametrize(
    "attributes",
    [
        {"epoch": float},
        {"epoch": [1]},
        {5: 1},
        {"__class__": 1},
        {"absent.epoch": 1},
        {"epoch.real": 1},
        {"a b": 1},
        {"dataset": 1},
    ],
)
def test_attributes_that_no_sampler_had_are_refused(attributes: Any) -> None:
    """Found by the fuzzer of inputs: all attributes of the state were set."""
    sampler = DistributedSampler(Indices(8), 1, 0)
    loader = StatefulGPULoader(Indices(8), sampler=sampler, batch_size=2)
    next(iter(loader))
    state = loader.state_dict()
    mark = state["user"]["sampler"]
    assert mark["attributes"] == {"epoch": 0}
    user = {**state["user"], "sampler": {**mark, "attributes": attributes}}
    refusal(loader, {**state, "user": user}, "sampler's attributes")
    assert loader.state_dict() == state


@pytest.mark.parametrize("field", ["fetches", "samples", "steps"])
def test_impossible_counts_are_refused(field: str) -> None:
    """Found by the fuzzer of inputs: seeds of later batches exceeded int64."""
    loader = StatefulGPULoader(PlainIterable([8]), batch_size=2)
    next(iter(loader))
    state = loader.state_dict()
    user = copy.deepcopy(state["user"])
    counts = user if field == "steps" else user["workers"][0]
    assert counts[field] in (0, 1, 2)
    counts[field] = 2**62
    name = "user's steps" if field == "steps" else f"user's worker 0's {field}"
    refusal(loader, {**state, "user": user}, name)


def test_a_samplers_state_that_cannot_be_copied_is_refused() -> None:
    """Found by the fuzzer of inputs: the error was a LoaderError about the sampler."""
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    loader = StatefulGPULoader(Indices(8), sampler=list(range(8)), batch_size=2)
    state = loader.state_dict()
    for name in ("sampler", "workers"):
        mark = {"kind": nested} if name == "sampler" else [{**worker_state(), "dataset": nested}]
        user = UserStates().to_dict() | {name: mark}
        assert refusal(loader, {**state, "user": user}).field in ("user's sampler", "user's worker")


@pytest.mark.parametrize("accept", ["transform", {"everything"}, {"length"}])
def test_accept_names_known_fields_only(accept: Any) -> None:
    loader = StatefulGPULoader(Indices(20))
    with pytest.raises(ValueError, match="must be a collection of names among"):
        loader.load_state_dict(loader.state_dict(), accept=accept)


def test_an_accepted_seed_keeps_the_loaders_own() -> None:
    state = StatefulGPULoader(Indices(20), shuffle=True, seed=1).state_dict()
    loader = StatefulGPULoader(Indices(20), shuffle=True, seed=2)
    loader.load_state_dict(state, accept={"seed"})
    assert loader.state_dict()["seed"] == 2


def test_a_samplers_own_seed_is_compared_as_the_loaders() -> None:
    """Another explicit seed is refused, wherever it is passed."""
    state = StatefulGPULoader(Indices(8), sampler=ShuffledSampler(Indices(8), seed=4)).state_dict()
    other = StatefulGPULoader(Indices(8), sampler=ShuffledSampler(Indices(8), seed=5))
    refused = refusal(other, state, "seed")
    assert (refused.saved, refused.present) == (4, 5)
    undecided = loaded(StatefulGPULoader(Indices(8), sampler=ShuffledSampler(Indices(8))), state)
    assert undecided.state_dict() == state


# Common mistakes of new users: the error says what to do.


SIZES = ((20, 30), (20, 30), (25, 30))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    photo = photograph("coffee")
    for i, (height, width) in enumerate(SIZES):
        data = encode(photo.crop((0, 0, width, height)))
        (tmp_path / "a" / f"{i}.jpg").write_bytes(bytes(data.numpy()))
    return tmp_path


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_for_a_dataset_is_answered_with_the_source(kind: Any, folder: Path) -> None:
    """Otherwise the letters of the path would be the samples."""
    with pytest.raises(TypeError, match=r"is a path, not a dataset\. Remedy: FolderSource\('/"):
        StatefulGPULoader(kind(folder))


@pytest.mark.parametrize("wrap", [lambda whole: whole, lambda whole: Subset(whole, [0])])
def test_recipes_beside_an_image_folder_are_answered_with_the_source(
    wrap: Callable[[Any], Any], folder: Path
) -> None:
    with pytest.raises(TypeError, match=r"ImageFolder returns .* PIL image .*FolderSource\('/"):
        StatefulGPULoader(wrap(ImageFolder(folder)), transform=[T.CenterCrop(8)])


def test_recipes_on_whole_samples_are_answered_with_the_source() -> None:
    samples = [(torch.zeros(3, 9, 9), 0)] * 2
    loader = StatefulGPULoader(samples, transform=[T.CenterCrop(8)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a whole sample, a tuple.*FolderSource\(root\)"):
        next(iter(loader))


def test_image_folders_that_give_images_alone_take_recipes(folder: Path) -> None:
    class Images(ImageFolder):
        def __getitem__(self, index: int) -> Any:
            return v2.functional.pil_to_tensor(super().__getitem__(index)[0])

    loader = StatefulGPULoader(Images(folder), batch_size=3, transform=[T.CenterCrop(8)])
    assert next(iter(loader)).shape == (3, 3, 8, 8)


@pytest.mark.parametrize(
    "transform",
    [
        v1.ToTensor,
        lambda: [T.CenterCrop(8), v1.ToTensor()],
        lambda: v1.Compose([v1.CenterCrop(8), v1.ToTensor()]),
        lambda: [T.CenterCrop(8), v2.Compose([v2.ToTensor(), v2.Identity()])],
    ],
    ids=["alone", "in a list", "in a Compose", "v2, in a Compose in a list"],
)
@pytest.mark.filterwarnings("ignore:.*ToTensor... is deprecated")
def test_to_tensor_for_a_source_is_refused_with_its_replacement(
    transform: Any, folder: Path
) -> None:
    """v2's ToTensor would silently leave uint8 images unchanged, and v1's would fail on each."""
    with pytest.raises(TypeError, match=r"tensors already.*ToDtype\(torch\.float32, scale=True\)"):
        StatefulGPULoader(FolderSource(folder), transform=transform())


def test_to_tensor_among_recipes_is_refused_with_its_replacement() -> None:
    with pytest.raises(TypeError, match=r"not a recipe.*ToDtype\(torch\.float32, scale=True\)"):
        T.Compose([T.CenterCrop(8), v1.ToTensor()])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"not a recipe\. Remedy: take the recipe of that name"):
        T.Compose([v1.CenterCrop(8)])  # type: ignore[list-item]


def test_the_replacement_of_to_tensor_gives_its_pixels(folder: Path) -> None:
    """The result is that of an ImageFolder with ToTensor in torch's own loader."""
    crop = [T.CenterCrop(8), T.ToDtype(torch.float32, scale=True)]
    (ours,) = StatefulGPULoader(FolderSource(folder), batch_size=3, transform=crop)
    old = v1.Compose([v1.CenterCrop(8), v1.ToTensor()])
    (theirs,) = torch.utils.data.DataLoader(ImageFolder(folder, transform=old), batch_size=3)
    assert (ours[0].dtype, ours[0].shape) == (theirs[0].dtype, theirs[0].shape)
    assert torch.allclose(ours[0], theirs[0], atol=3 / 255)
    assert torch.equal(ours[1], theirs[1])


def test_the_error_of_a_bad_sample_names_both_remedies(folder: Path) -> None:
    (folder / "a" / "0.jpg").write_text("hello")
    with pytest.raises(BadSample, match="text, not an image") as raised:
        next(iter(StatefulGPULoader(FolderSource(folder))))
    assert str(raised.value).count("Remedy:") == 1
    truncated = BadSample("a.jpg", index=1, position=2, epoch=3, reason="truncated JPEG")
    assert "truncated JPEG. Remedy: repair or remove it, or pass on_bad_sample=" in str(truncated)
    for error in (str(truncated), str(raised.value)):
        assert 'on_bad_sample="replace"' in error
        assert 'on_bad_sample="drop"' in error


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda folder: {"dataset": FolderSource(folder)}, ValueError),
        (
            lambda folder: {"dataset": FolderSource(folder), "transform": v2.Identity()},
            RuntimeError,
        ),
        (lambda folder: {"dataset": ImageFolder(folder, v1.ToTensor())}, RuntimeError),
        (
            lambda folder: {"dataset": Subset(ImageFolder(folder, v1.ToTensor()), [0, 1, 2])},
            RuntimeError,
        ),
    ],
    ids=["a source", "a source and a callable", "an ImageFolder", "a Subset of it"],
)
@pytest.mark.parametrize("on_bad_sample", ["raise", "replace"])
def test_images_of_two_sizes_are_named_with_their_files(
    make: Callable[[Path], dict[str, Any]], error: Any, on_bad_sample: str, folder: Path
) -> None:
    loader = StatefulGPULoader(batch_size=3, on_bad_sample=on_bad_sample, **make(folder))
    first, second = r"a/0\.jpg'\) gives .*20\D+30", r"a/2\.jpg'\) gives .*25\D+30"
    with pytest.raises(error, match=rf"{first}.*{second}.*Remedy:.*RandomResizedCrop"):
        next(iter(loader))


def test_samples_without_files_are_named_by_their_indices() -> None:
    data = [torch.zeros(2), torch.zeros(2), torch.zeros(3)]
    loader = StatefulGPULoader(data, batch_size=3)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"index 0 gives \[2\], index 2 gives \[3\]"):
        next(iter(loader))


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_iterator_cannot_be_pickled(copied: Callable[[Any], Any]) -> None:
    """Nor can it be copied: two iterators would count for one loader."""
    loader = StatefulGPULoader(Indices(8), batch_size=2)
    batches = iter(loader)
    for _ in range(2):
        # torch's iterator raises this type; a trainer's test expects it.
        with pytest.raises(NotImplementedError, match=r"cannot be pickled.*loader\.state_dict\(\)"):
            copied(batches)
        next(batches)
    assert len(list(batches)) == 2
