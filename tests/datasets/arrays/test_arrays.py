"""An array of decoded images as a source: the same pixels one by one and many at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, default_collate
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import (
    ArraySource,
    FolderSource,
    MixedDataset,
    PreparedSource,
    StatefulGPULoader,
    ragged_collate,
)
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source, arrays
from stateful_gpu_loader.datasets.wrapped import as_source
from stateful_gpu_loader.engine.makers import images as makers
from stateful_gpu_loader.records import EncodedSample
from tests.conformance import assert_exact_resume, same, uninterrupted
from tests.datasets.image_loaders import EXECUTIONS
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.images import kept_photos, small_photographs
from tests.stream_kinds import ALL_RECIPES, RECIPES

__all__ = ["fake_gpu"]

N = 23
LABELS = [(7 * i) % 10 for i in range(N)]
CIFAR = [
    T.RandomCrop(16, padding=4),
    T.RandomHorizontalFlip(),
    T.Normalize([0.49, 0.48, 0.45], [0.25, 0.24, 0.26]),
]
Loader = StatefulGPULoader[Any]


def photographs() -> Any:
    """Return uint8 [N, 20, 16, 3]."""
    return small_photographs(N)


def make(dataset: Any, transform: Any = CIFAR, **changes: Any) -> Loader:
    arguments: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 11, **changes}
    return StatefulGPULoader(dataset, transform=transform, **arguments)


def epochs_of(loader: Loader) -> list[list[Any]]:
    return uninterrupted(loader, 2)[0]


class OneByOne(Source):
    """The same images, read one after another like those of any source."""

    makes_pixels = True

    def __init__(self, source: ArraySource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> EncodedSample:
        return self.source.read(index)

    def fingerprint(self) -> str:
        return self.source.fingerprint()


def mapped(folder: Path, images: Any) -> Any:
    np.save(folder / "images.npy", images)
    return np.load(folder / "images.npy", mmap_mode="r")


LAYOUTS: dict[str, Callable[[Any, Path], Any]] = {
    "channels last": lambda images, folder: images,
    "channels first": lambda images, folder: np.ascontiguousarray(images.transpose(0, 3, 1, 2)),
    "transposed view": lambda images, folder: images.transpose(0, 3, 1, 2),
    "tensor": lambda images, folder: torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
    "tensor, channels last": lambda images, folder: torch.from_numpy(images),
    "mapped": lambda images, folder: mapped(folder, images),
    "part of what is mapped": lambda images, folder: mapped(
        folder, np.repeat(np.pad(images, ((3, 2), (4, 0), (0, 1), (0, 0))), 2, axis=0)
    )[6:-4:2, 4:, :-1],
    "backwards": lambda images, folder: np.ascontiguousarray(images[::-1])[::-1],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_images_are_those_of_the_array(tmp_path: Path, name: str) -> None:
    given = LAYOUTS[name](photographs(), tmp_path)
    source = ArraySource(given, LABELS)
    assert source.images is given
    restored = pickle.loads(pickle.dumps(source))
    for each in (source, restored):
        images, labels = zip(*make(each, [], shuffle=False), strict=True)
        assert np.array_equal(torch.cat(images).permute(0, 2, 3, 1).numpy(), photographs())
        assert torch.cat(labels).tolist() == LABELS
    expected = ArraySource(photographs(), LABELS)
    assert source.fingerprint() == restored.fingerprint() == expected.fingerprint()
    assert same(epochs_of(make(source)), epochs_of(make(OneByOne(expected))))


@pytest.mark.parametrize("shape", [(N, 20, 16), (N, 20, 16, 1), (N, 1, 20, 16)])
def test_grey_images_have_three_equal_channels(shape: tuple[int, ...]) -> None:
    grey = np.ascontiguousarray(photographs()[..., 0])
    source = ArraySource(grey.reshape(shape), LABELS)
    images = torch.cat([images for images, _ in make(source, [], shuffle=False)])
    assert images.shape == (N, 3, 20, 16)
    assert all(np.array_equal(images[:, channel].numpy(), grey) for channel in range(3))
    assert same(epochs_of(make(source)), epochs_of(make(OneByOne(source))))


PIPELINES: dict[str, list[Any]] = {
    "none": [],
    "of CIFAR": CIFAR,
    "of photographs": RECIPES,
    "all": ALL_RECIPES,
    "resized": [T.Resize(12), T.CenterCrop(12), T.ToDtype(torch.float32, scale=True)],
    "channels last": [T.RandomVerticalFlip(), T.ToMemoryFormat(torch.channels_last)],
    "cropped alike": [T.CenterCrop((24, 12)), T.Normalize([0.5], [0.5])],
    "float crop": [T.ToDtype(torch.float32, scale=True), T.RandomCrop(12, 2, fill=0.5)],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_many_images_at_once_are_those_one_by_one(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Bit for bit, also for a batch in parts, and in the requested memory layout."""
    source = ArraySource(photographs(), LABELS)
    expected = epochs_of(make(OneByOne(source), PIPELINES[name]))
    for values in (1, 3 * 20 * 16 * 2, 1 << 30):
        monkeypatch.setattr(makers, "_VALUES_AT_ONCE", values)
        found = epochs_of(make(source, PIPELINES[name]))
        assert same(found, expected)
        assert [batch[0].stride() for batch in found[0]] == [
            batch[0].stride() for batch in expected[0]
        ]


def test_many_images_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a Subset, a concatenation and a mixture, and in worker processes."""

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("one image was read")

    source = ArraySource(photographs(), LABELS)
    monkeypatch.setattr(ArraySource, "open_for_loader", forbidden)
    for dataset in (source, Subset(source, [5, 3, 8]), ConcatDataset([source, source])):
        assert len(list(make(dataset))) > 0
    mixture = MixedDataset([source, Subset(source, range(9))], [1, 2])
    assert len(list(make(mixture, num_workers=2, worker_type="process"))) > 0
    with pytest.raises(AssertionError, match="one image"):
        list(make(source, collate_fn=list))


def test_crops_and_flips_are_those_of_torchvision() -> None:
    """For the same random numbers."""
    source = ArraySource(photographs(), LABELS)
    loader = make(source, shuffle=False)
    for start, (images, labels) in zip(range(0, N, 5), loader, strict=True):
        crop, flip, _ = loader.draws()
        assert labels.tolist() == LABELS[start : start + 5]
        for i, index in enumerate(range(start, min(start + 5, N))):
            image = torch.from_numpy(photographs()[index]).permute(2, 0, 1)
            image = F.pad(image, [4, 4, 4, 4])
            image = F.crop(image, crop["top"][i], crop["left"][i], 16, 16)
            image = F.horizontal_flip(image) if flip["acts"][i] else image
            image = F.to_dtype(image, torch.float32, scale=True)
            expected = F.normalize(image, CIFAR[2].mean, CIFAR[2].std)  # type: ignore[attr-defined]
            assert torch.allclose(images[i], expected, atol=1e-5)


def halves(source: Source) -> list[Any]:
    return [Subset(source, range(0, N, 2)), Subset(source, range(1, N, 2))]


@pytest.mark.parametrize("view", ["subset", "concatenation", "mixture", "beside files"])
def test_parts_and_mixtures_are_exact(view: str) -> None:
    def dataset(source: Source) -> Any:
        if view == "subset":
            return Subset(source, [3, 1, 4, 1, 5, 9, 2, 6, -5])
        if view == "concatenation":
            return ConcatDataset([*halves(source), source])
        if view == "mixture":
            return MixedDataset(halves(source), [2, 1])
        return ConcatDataset([source, FolderSource(kept_photos())])

    transform = [T.Resize((18, 18)), *CIFAR] if view == "beside files" else CIFAR
    source = ArraySource(photographs(), LABELS)
    expected = epochs_of(make(dataset(OneByOne(source)), transform))
    loader = partial(make, dataset(source), transform)
    assert same(epochs_of(loader()), expected)
    assert_exact_resume(loader, epochs=2, other=EXECUTIONS[1:])


def test_views_of_arrays_of_one_size_alone_are_read_at_once() -> None:
    source, other = ArraySource(photographs()), ArraySource(photographs()[:, 1:])
    for dataset, expected in (
        (ConcatDataset([source, source]), (20, 16)),
        (ConcatDataset([source, other]), None),
        (Subset(other, [1]), (19, 16)),
    ):
        found = as_source(dataset)
        assert found is not None
        assert found._pixel_size() == expected


def test_a_subclass_that_reads_otherwise_is_asked_for_each_image() -> None:
    class Darker(ArraySource):
        def read(self, index: int, into: Any = None) -> EncodedSample:
            sample = super().read(index, into)
            sample.data[-960:] //= 2
            return sample

    source = Darker(photographs(), LABELS)
    images = torch.cat([images for images, _ in make(source, [], shuffle=False)])
    assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), photographs() // 2)


def test_recipes_that_refuse_the_size_raise() -> None:
    with pytest.raises(ValueError, match="RandomCrop needs 30x30"):
        next(iter(make(ArraySource(photographs()), [T.RandomCrop(30)])))


def test_prepared_and_ragged_and_callable() -> None:
    source = ArraySource(photographs(), LABELS)
    expected = epochs_of(make(source))
    ragged = epochs_of(make(source, collate_fn=ragged_collate))
    assert same([[[i, t.tolist()] for i, t in epoch] for epoch in expected], ragged)
    plain = epochs_of(make(source, lambda image: image.float(), shuffle=False))
    images = torch.cat([images for images, _ in plain[0]])
    assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), photographs())


def test_prepared_images_are_the_same(tmp_path: Path) -> None:
    source, head = ArraySource(photographs(), LABELS), [T.Resize((24, 20))]
    expected = epochs_of(make(source, [*head, *CIFAR]))
    prepared = PreparedSource(source, tmp_path, head)
    assert same(epochs_of(make(prepared)), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_gets_the_same_pixels(fake_gpu: FakeGpu, workers: int) -> None:
    source = ArraySource(photographs(), LABELS)
    expected = epochs_of(make(source, CIFAR[:2]))
    assert same(epochs_of(make(source, CIFAR[:2], device="cuda", num_workers=workers)), expected)


TARGETS: dict[str, tuple[Any, Any]] = {
    "list": (LABELS, LABELS[4]),
    "tensor": (torch.tensor(LABELS), LABELS[4]),
    "small ints": (np.array(LABELS, dtype=np.uint8), LABELS[4]),
    "bool": (np.array(LABELS) > 4, LABELS[4] > 4),
    "floats": ([i / 2 for i in LABELS], LABELS[4] / 2),
    "not a number": ([np.nan, *LABELS[1:]], float(LABELS[4])),
    "of a parameter": (torch.nn.Parameter(torch.tensor(LABELS) / 2), LABELS[4] / 2),
    "texts": ([str(i) for i in LABELS], str(LABELS[4])),
    "index": (None, 4),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_plain_values(name: str) -> None:
    given, expected = TARGETS[name]
    source = ArraySource(photographs(), given)
    for target in (source.read(4).target, source.read_target_alone(4)):
        assert target == expected
        assert type(target) is type(expected)
    assert same(epochs_of(make(source, [])), epochs_of(make(OneByOne(source), [])))


def test_rows_of_targets_are_arrays() -> None:
    rows = np.arange(2 * N, dtype=np.float32).reshape(N, 2)
    source = ArraySource(photographs(), rows)
    first = source.read(1).target
    first[:] = 0
    assert source.read(1).target.tolist() == [2.0, 3.0]
    _, targets = next(iter(make(source, shuffle=False)))
    assert torch.equal(targets, torch.from_numpy(rows[:5]))


@pytest.mark.parametrize("device", [None, "cuda"])
def test_texts_are_collated_as_by_default_collate(fake_gpu: FakeGpu, device: str | None) -> None:
    source = ArraySource(photographs(), TARGETS["texts"][0])
    _, expected = default_collate([(0, source.read(i).target) for i in range(5)])
    for dataset in (source, OneByOne(source)):
        _, targets = next(iter(make(dataset, [], shuffle=False, device=device)))
        assert targets == expected


def test_rows_in_the_byte_order_of_another_machine_are_collated() -> None:
    rows = np.arange(2 * N, dtype=">f4").reshape(N, 2)
    source = ArraySource(photographs(), rows)
    _, targets = next(iter(make(source, shuffle=False)))
    assert targets.tolist() == rows[:5].tolist()
    assert source.fingerprint() == ArraySource(photographs(), rows.astype("<f4")).fingerprint()


REFUSED: dict[str, tuple[Callable[[], Any], Any, type[Exception], str]] = {
    "floats": (lambda: photographs() / 255, None, TypeError, "float64.*uint8"),
    "list": (lambda: [*photographs()], None, TypeError, "numpy.stack"),
    "alpha": (
        lambda: np.zeros((N, 8, 8, 4), np.uint8),
        None,
        ValueError,
        r"neither side.*without alpha",
    ),
    "both": (lambda: np.zeros((N, 3, 8, 3), np.uint8), None, ValueError, "both sides"),
    "one image": (lambda: np.zeros((8, 8), np.uint8), None, ValueError, r"\[8, 8\]"),
    "no image": (lambda: photographs()[:0], None, ValueError, r"n > 0"),
    "fewer targets": (photographs, LABELS[:-1], ValueError, rf"{N} images.*\[{N - 1}\]"),
    "one target": (photographs, 3, ValueError, "one target for each"),
    "objects": (photographs, [None] * N, TypeError, "object"),
    "a number among texts": (photographs, [*"a" * (N - 1), 1], TypeError, rf"\[{N - 1}\] is 1,"),
    "a rounded number": (photographs, [2**53 + 1, *[0.5] * (N - 1)], TypeError, "99[23]"),
    "a cut text": (photographs, ["a\0"] * N, TypeError, r"\[0\]"),
    "rows of two lengths": (photographs, [[1], *[[1, 2]] * (N - 1)], TypeError, "only|numbers"),
    "rows of texts": (photographs, [["a", "b"]] * N, TypeError, rf"\[{N}, 2\]"),
    "bfloat16": (photographs, torch.zeros(N, dtype=torch.bfloat16), TypeError, "BFloat16"),
    "another device": (
        lambda: torch.empty(N, 3, 8, 8, dtype=torch.uint8, device="meta"),
        None,
        TypeError,
        "meta",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_array_of_images_is_refused(name: str) -> None:
    make_images, targets, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        ArraySource(make_images(), targets)


def test_fingerprints_tell_every_pixel_and_target() -> None:
    other, labels = photographs(), [*LABELS]
    other[7, 3, 2, 1] ^= 1
    labels[7] += 1
    sources = [
        ArraySource(photographs(), LABELS),
        ArraySource(other, LABELS),
        ArraySource(photographs(), labels),
        ArraySource(photographs(), np.array(LABELS, dtype=np.float64)),
        ArraySource(photographs()[::-1], LABELS),
    ]
    assert len({source.fingerprint() for source in sources}) == 5


def test_the_fingerprint_of_a_large_array_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_MOST_DIGESTED", 3 * 20 * 16 * N - 1)
    monkeypatch.setattr(arrays, "_MOST_SAMPLED", 3)
    before = ArraySource(photographs(), LABELS).fingerprint()
    assert before.endswith(", sampled")
    for index, is_seen in ((0, True), (1, False), (N // 2, True), (N - 1, True)):
        other = photographs()
        other[index, 3, 2, 1] ^= 1
        assert (ArraySource(other, LABELS).fingerprint() != before) is is_seen


def test_a_mapped_array_travels_as_the_name_of_its_file(tmp_path: Path) -> None:
    large = np.zeros((1000, 32, 32, 3), dtype=np.uint8)
    source = ArraySource(mapped(tmp_path, large)[5:])
    pickled = pickle.dumps(source)
    assert len(pickled) < 20_000
    restored = pickle.loads(pickled)
    assert isinstance(restored.images, np.ndarray)
    assert restored.images.shape == (995, 32, 32, 3)
    assert not restored.images.flags.writeable
    assert len(pickle.dumps(restored)) < 20_000
    with open(tmp_path / "images.npy", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match="size"):
        pickle.loads(pickled)


def test_changes_that_are_not_in_the_file_travel(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", photographs())
    images = np.load(tmp_path / "images.npy", mmap_mode="c")
    images[2] = 9
    restored = pickle.loads(pickle.dumps(ArraySource(images)))
    assert (restored.images[2] == 9).all()


def test_a_tensor_is_read_where_it_lies_after_it_moved_to_shared_memory() -> None:
    """Torch moves the tensors of a dataset that it sends to a spawned worker, and frees the old."""
    images, targets = torch.from_numpy(photographs()), torch.tensor(LABELS)
    source = ArraySource(images, targets)
    assert not np.shares_memory(source.targets, targets.numpy())
    images.share_memory_()
    images[2] = 7
    pixels, _ = source._read_pixels(np.array([2]))
    assert pixels.unique().tolist() == [7]
