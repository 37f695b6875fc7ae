"""Errors that people run into in their first hour: they say what to do (A1, G6)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stateful_gpu_loader import BadSample, FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.images import encode, photograph
from tests.map_datasets import Indices

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
    """Without this, the letters of the path would be the samples."""
    with pytest.raises(TypeError, match=r"is a path, and no dataset\. Remedy: FolderSource\('/"):
        StatefulGPULoader(kind(folder))


@pytest.mark.parametrize("wrap", [lambda whole: whole, lambda whole: Subset(whole, [0])])
def test_recipes_beside_an_image_folder_are_answered_with_the_source(
    wrap: Callable[[Any], Any], folder: Path
) -> None:
    with pytest.raises(TypeError, match=r"ImageFolder gives .* PIL image .*FolderSource\('/"):
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
def test_to_tensor_for_a_source_says_what_takes_its_place(transform: Any, folder: Path) -> None:
    """v2's would leave uint8 images as they are, in silence, and v1's fail on each."""
    with pytest.raises(TypeError, match=r"tensors already.*ToDtype\(torch\.float32, scale=True\)"):
        StatefulGPULoader(FolderSource(folder), transform=transform())


def test_to_tensor_among_recipes_says_what_takes_its_place() -> None:
    with pytest.raises(TypeError, match=r"no recipe.*ToDtype\(torch\.float32, scale=True\)"):
        T.Compose([T.CenterCrop(8), v1.ToTensor()])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"no recipe\. Remedy: take the recipe of that name"):
        T.Compose([v1.CenterCrop(8)])  # type: ignore[list-item]


def test_what_takes_the_place_of_to_tensor_does(folder: Path) -> None:
    """As an ImageFolder with ToTensor in torch's own loader."""
    crop = [T.CenterCrop(8), T.ToDtype(torch.float32, scale=True)]
    (ours,) = StatefulGPULoader(FolderSource(folder), batch_size=3, transform=crop)
    old = v1.Compose([v1.CenterCrop(8), v1.ToTensor()])
    (theirs,) = torch.utils.data.DataLoader(ImageFolder(folder, transform=old), batch_size=3)
    assert (ours[0].dtype, ours[0].shape) == (theirs[0].dtype, theirs[0].shape)
    assert torch.allclose(ours[0], theirs[0], atol=3 / 255)
    assert torch.equal(ours[1], theirs[1])


def test_a_bad_sample_has_one_remedy(folder: Path) -> None:
    (folder / "a" / "0.jpg").write_text("hello")
    with pytest.raises(BadSample, match="text, not an image") as raised:
        next(iter(StatefulGPULoader(FolderSource(folder))))
    assert str(raised.value).count("Remedy:") == 1
    torn = BadSample("a.jpg", index=1, position=2, epoch=3, reason="truncated JPEG")
    assert str(torn).endswith("truncated JPEG. Remedy: repair or remove it")


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
def test_an_iterator_is_no_thing_to_pickle(copied: Callable[[Any], Any]) -> None:
    """Nor to be copied: two would count for one loader."""
    loader = StatefulGPULoader(Indices(8), batch_size=2)
    batches = iter(loader)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"neither pickled nor copied.*loader\.state_dict\(\)"):
            copied(batches)
        next(batches)
    assert len(list(batches)) == 2
