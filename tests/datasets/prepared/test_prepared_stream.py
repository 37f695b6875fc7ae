"""A loader of prepared images delivers the same pixels as without preparation."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, default_collate

from stateful_gpu_loader import (
    CocoSource,
    FolderSource,
    MixedDataset,
    PreparedSource,
    StatefulGPULoader,
    StateMismatch,
    ragged_collate,
)
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source
from stateful_gpu_loader.datasets.source import OwnImage
from stateful_gpu_loader.datasets.storage.memory import new_memory
from stateful_gpu_loader.datasets.wrapped import as_source
from stateful_gpu_loader.decoders import probe
from stateful_gpu_loader.decoders.ppm import ppm_pixels
from stateful_gpu_loader.engine.device.images import DeviceImages
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.encoded import EncodedMaker
from stateful_gpu_loader.engine.pipeline import never_stopped
from stateful_gpu_loader.records import EncodedSample, Request
from tests.conformance import assert_same_rest, same, through_json, uninterrupted
from tests.damaged import Redirected, write_photos
from tests.datasets.coco.coco_files import write_coco
from tests.datasets.image_loaders import EXECUTIONS
from tests.datasets.source_conformance import (
    assert_source_conforms_in_processes,
    assert_source_conforms_in_threads,
)
from tests.datasets.storage.reads import recorded_fills
from tests.datasets.test_every_source import SOURCES
from tests.fake_gpu import FakeDecoder, FakeGpu, FakePlace, fake_gpu
from tests.images import write_photo_folder

__all__ = ["fake_gpu"]

HEAD = [T.Resize(64), T.CenterCrop((60, 72))]
TAIL = [
    T.RandomResizedCrop(24),
    T.RandomHorizontalFlip(),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.Normalize([0.5, 0.5, 0.5], [0.2, 0.2, 0.2]),
]
Loader = StatefulGPULoader[Any]


def make(dataset: Any, transform: Any = TAIL, **changes: Any) -> Loader:
    arguments: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 11, **changes}
    return StatefulGPULoader(dataset, transform=transform, **arguments)


def photos(root: Path, per_class: int = 3) -> FolderSource:
    """Return a source of photographs in two classes."""
    write_photo_folder(root, num_classes=2, per_class=per_class)
    return FolderSource(root)


def unprepared(dataset: Any, **changes: Any) -> list[list[Any]]:
    """Return two epochs of a loader that decodes each image and applies all recipes."""
    return epochs_of(make(dataset, HEAD + TAIL, **changes))


def epochs_of(loader: Loader) -> list[list[Any]]:
    return uninterrupted(loader, 2)[0]


@pytest.mark.parametrize("name", ["folder", "caffe2"])
def test_every_source_gives_the_same_pixels(tmp_path: Path, name: str) -> None:
    """While the directory is filled, when it is full, and when it is opened again."""
    open_source, write = SOURCES[name]
    given = write(tmp_path / "given", 0)
    source = open_source(given)
    expected = unprepared(source)
    for number, execution in enumerate(EXECUTIONS):
        folder = tmp_path / f"prepared {number}"
        assert same(epochs_of(make(PreparedSource(source, folder, HEAD), **execution)), expected)
        again = PreparedSource(open_source(given), folder, HEAD)
        assert all(again.is_kept(index) for index in range(len(again)))
        assert same(uninterrupted(make(again, **execution), 1)[0], expected[:1])


@pytest.mark.processes
def test_a_prepared_source_conforms_in_processes(tmp_path: Path) -> None:
    source = photos(tmp_path / "given", 5)
    assert_source_conforms_in_processes(lambda: PreparedSource(source, tmp_path / "kept", HEAD))


def test_a_prepared_source_keeps_all_promises_of_a_source(tmp_path: Path) -> None:
    write_photo_folder(tmp_path / "given", num_classes=2, per_class=5)
    write_photo_folder(tmp_path / "other", num_classes=5, per_class=2)

    def prepared(name: str) -> PreparedSource:
        return PreparedSource(FolderSource(tmp_path / name), tmp_path / f"{name} kept", HEAD)

    assert_source_conforms_in_threads(lambda: prepared("given"), changed=lambda: prepared("other"))


def test_images_that_are_not_stacked_have_memory_of_their_own(tmp_path: Path) -> None:
    """Also images of one pixel, which are not copied to be contiguous.

    A callable that changes its image changes no later epoch.
    """
    source = photos(tmp_path / "given")
    head = [T.Resize((1, 1))]
    expected = epochs_of(make(source, head, collate_fn=list))
    prepared = PreparedSource(source, tmp_path / "kept", head)
    for _ in range(2):
        assert same(epochs_of(make(prepared, [], collate_fn=list)), expected)
    first, second = epochs_of(make(prepared, lambda image: image.sub_(image // 2), shuffle=False))
    assert same(first, second)
    assert int(first[0][0].max()) > 0


def test_the_epoch_that_fills_reads_each_image_once(tmp_path: Path) -> None:
    """Each target is moved before its image's pixels are made."""
    source = Redirected(CocoSource(*write_coco(tmp_path)))
    source.has_spatial_targets = True
    prepared = PreparedSource(source, tmp_path / "kept", HEAD)
    uninterrupted(make(prepared, TAIL[:2], collate_fn=ragged_collate), 1)
    assert set(source.reads.values()) == {1}
    assert all(map(prepared.is_kept, range(len(prepared))))


def test_boxes_and_masks_move_with_the_pixels(tmp_path: Path) -> None:
    source = CocoSource(*write_coco(tmp_path), masks=True)
    tail = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
    changes: dict[str, Any] = {"collate_fn": ragged_collate}
    expected = uninterrupted(make(source, HEAD + tail, **changes), 2)[0]
    prepared = PreparedSource(source, tmp_path / "kept", HEAD)
    for _ in range(2):
        assert same(epochs_of(make(prepared, tail, **changes)), expected)
    assert same(epochs_of(make(prepared, tail, num_workers=2, **changes)), expected)


def test_the_target_of_one_image_is_where_its_pixels_are(tmp_path: Path) -> None:
    """In a plain dataset no loader moves the target, whether or not the image was kept."""
    source = CocoSource(*write_coco(tmp_path), masks=True)
    changes: dict[str, Any] = {"collate_fn": ragged_collate, "shuffle": False, "batch_size": 1}
    (expected,) = uninterrupted(make(source, HEAD, **changes), 1)[0]
    for prepared in (PreparedSource(source, tmp_path / name, HEAD) for name in ("a", "a", "b")):
        for index in (0, -1):
            _, target = prepared[index]
            _, (wanted,) = expected[index]
            assert same(target, wanted)


@pytest.mark.parametrize("on_bad_sample", ["drop", "replace"])
def test_bad_samples_are_those_of_the_source(tmp_path: Path, on_bad_sample: str) -> None:
    source = FolderSource(write_photos(tmp_path)[1])
    plain = make(source, HEAD + TAIL, on_bad_sample=on_bad_sample)
    expected = epochs_of(plain)
    for execution in EXECUTIONS:
        prepared = PreparedSource(source, tmp_path / repr(execution), HEAD)
        loader = make(prepared, on_bad_sample=on_bad_sample, **execution)
        assert same(epochs_of(loader), expected)
        assert _places(loader) == _places(plain)
        missing = {index for index in range(len(prepared)) if not prepared.is_kept(index)}
        assert missing == {bad.index for bad in loader.bad_samples.samples}


def _places(loader: Loader) -> set[tuple[Any, int, int]]:
    return {(bad.index, bad.epoch, bad.position) for bad in loader.bad_samples.samples}


def test_a_state_resumes_over_a_part_of_the_directory(tmp_path: Path) -> None:
    """The first run kept some of the images, or the directory is deleted before the resume.

    A run that began without it goes on with it: the different names must be accepted.
    """
    source, folder = photos(tmp_path / "photos", 6), tmp_path / "kept"
    expected, states = uninterrupted(make(source, HEAD + TAIL), 2)
    loader = make(PreparedSource(source, folder, HEAD))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = through_json(loader.state_dict())
    for execution in EXECUTIONS:
        resumed = make(PreparedSource(source, folder, HEAD), **execution)
        resumed.load_state_dict(state)
        assert_same_rest(resumed, expected, (0, 3), 2, execution)
        shutil.rmtree(folder)
    resumed = make(PreparedSource(source, folder, HEAD))
    with pytest.raises(StateMismatch) as caught:
        resumed.load_state_dict(states[0, 3])
    assert caught.value.field == "dataset"
    resumed.load_state_dict(states[0, 3], accept={"dataset", "transform"})
    assert_same_rest(resumed, expected, (0, 3), 2)


@pytest.mark.parametrize(
    "build",
    [
        lambda prepare, a, b: (prepare(Subset(a, [3, 0, 5, 1])), Subset(a, [3, 0, 5, 1])),
        lambda prepare, a, b: (Subset(prepare(a), [3, 0, 5, 1]), Subset(a, [3, 0, 5, 1])),
        lambda prepare, a, b: (prepare(ConcatDataset([a, b])), ConcatDataset([a, b])),
        lambda prepare, a, b: (ConcatDataset([prepare(a), prepare(b)]), ConcatDataset([a, b])),
        lambda prepare, a, b: (MixedDataset([prepare(a), prepare(b)]), MixedDataset([a, b])),
    ],
    ids=["of a subset", "a subset", "of a concatenation", "a concatenation", "a mixture"],
)
def test_parts_and_mixtures(tmp_path: Path, build: Callable[..., tuple[Any, Any]]) -> None:
    def prepare(dataset: Any) -> Source:
        return PreparedSource(dataset, tmp_path / f"kept {len(dataset)}", HEAD)

    prepared, plain = build(prepare, photos(tmp_path / "a"), photos(tmp_path / "b", 4))
    expected = unprepared(plain)
    for _ in range(2):
        assert same(epochs_of(make(prepared)), expected)


class Labelled(Redirected):
    """Gives each index the target that a function returns."""

    def __init__(self, source: Source, target: Callable[[int], Any]) -> None:
        super().__init__(source)
        self._target = target

    def read(self, index: int) -> EncodedSample:
        return replace(super().read(index), target=self._target(index))


def masks_of(index: int) -> torch.Tensor:
    """Return masks of 0 and 1: uint8 [10, 70, 90]."""
    return (torch.arange(10 * 70 * 90) // 100 % 7 == index).to(torch.uint8).view(10, 70, 90)


@pytest.mark.parametrize(
    ("target", "reads"),
    [
        (lambda index: (0, 1, 2**32 - 1, 2**32, -1, True)[index], 1),
        (lambda index: f"photo {index}", 1),
        (lambda index: {"a": (index, torch.arange(index)), "b": np.float32(index)}, 1),
        (lambda index: {"masks": masks_of(index), 7: masks_of(1)[0], "n": None}, 1),
        (lambda index: Fraction(1, index + 1), 2),  # no JSON form
        (lambda index: torch.arange(10_000) + index, 2),  # larger than the pixels
        (lambda index: {"masks": masks_of(index) * 2}, 2),  # no masks, and larger than the pixels
    ],
    ids=["a number", "a text", "a dict", "masks", "an object", "a large one", "no masks"],
)
def test_targets_are_kept_as_far_as_they_can_be(
    tmp_path: Path, target: Callable[[int], Any], reads: int
) -> None:
    """If targets can be kept, the source is not read again. Nothing else differs."""
    source = Labelled(photos(tmp_path / "photos"), target)
    prepared = PreparedSource(source, tmp_path / "kept", HEAD)
    for index in [*range(6)] * 2:
        found = prepared.read(index).target
        assert type(found) is type(target(index))
        assert same(found, target(index))
    assert set(source.reads.values()) == {reads}


def test_prepared_images_can_be_prepared_further(tmp_path: Path) -> None:
    """draws() returns the numbers of the loader's own recipes."""
    source = photos(tmp_path / "photos")
    first = PreparedSource(source, tmp_path / "first", HEAD[:1])
    prepared = make(PreparedSource(first, tmp_path / "second", HEAD[1:]))
    plain = make(source, HEAD + TAIL)
    assert same(epochs_of(prepared), epochs_of(plain))
    assert same(prepared.draws(), plain.draws()[len(HEAD) :])


def test_a_device_gets_what_is_kept_without_a_copy_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read into the memory that the device copies from, and all images in one copy."""
    prepared = PreparedSource(photos(tmp_path / "photos"), tmp_path / "kept", HEAD)
    alone = [prepared.read(index) for index in range(6)]
    place, recipes = FakePlace(), T.Compose([T.CenterCrop(32)])
    policy = BadSamplePolicy(mode="raise")
    make_batch = EncodedMaker(
        prepared,
        takes=lambda header, data: False,
        decoder=None,  # type: ignore[arg-type]
        recipes=recipes,
        allocate=place.empty_host,
        policy=policy,
    )
    request = Request(0, 42, 0, 0, 1, np.arange(6), 6)
    make_batch(request, never_stopped)  # so that it knows how much memory a batch takes
    fills = recorded_fills(monkeypatch)
    batch = make_batch(request, never_stopped)
    views = [np.frombuffer(part, dtype=np.uint8) for _, parts in fills for part in parts]
    starts = np.cumsum((0, *batch.lengths))
    assert [view.ctypes.data for view in views] == [
        batch.arena.data_ptr() + start for start in starts[:-1].tolist()
    ]
    found = batch.arena.split(batch.lengths)
    assert [data.tolist() for data in found] == [sample.data.tolist() for sample in alone]
    copied: list[int] = []
    monkeypatch.setattr(place, "copy_in", lambda given: copied.append(given.data_ptr()) or given)
    steps = DeviceImages(
        prepared,
        decoder=FakeDecoder(),
        recipes=recipes,
        collate_fn=default_collate,
        policy=policy,
        place=place,
    )
    decoded = steps.decode(batch)
    images, _ = steps.augment(decoded)
    headers: list[Any] = [probe(sample.data) for sample in alone]
    pixels = [ppm_pixels(one.data, header) for one, header in zip(alone, headers, strict=True)]
    assert torch.equal(images, recipes.apply_batch(pixels, decoded.drawn))
    of_targets = 1
    assert len(copied) == 1 + of_targets
    assert copied[0] == batch.arena.data_ptr() + headers[0].start


@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_gets_the_pixels_from_the_workers(
    tmp_path: Path, fake_gpu: FakeGpu, workers: int
) -> None:
    """The workers decode on the CPU, and the GPU applies the transform to their pixels.

    New pixels replace damaged ones, and later images keep their places.
    """
    source = photos(tmp_path / "photos", 6)
    tail = [T.CenterCrop(32), T.Normalize([0.5, 0.5, 0.5], [0.2, 0.2, 0.2])]
    expected = epochs_of(make(source, HEAD + tail))
    prepared = PreparedSource(source, tmp_path / "kept", HEAD)
    assert same(epochs_of(make(prepared, tail, device="cuda", num_workers=workers)), expected)
    pixels = tmp_path / "kept" / "pixels-000000.bin"
    content = bytearray(pixels.read_bytes())
    for place in range(1000, len(content), 30_000):
        content[place] ^= 0xFF
    pixels.write_bytes(content)
    prepared = PreparedSource(source, tmp_path / "kept", HEAD)
    assert same(epochs_of(make(prepared, tail, device="cuda", num_workers=workers)), expected)


def test_pixels_are_made_when_they_are_asked_for(tmp_path: Path) -> None:
    """Code that reads only sizes decodes nothing."""
    prepared = PreparedSource(photos(tmp_path / "photos", 1), tmp_path / "kept", HEAD)
    for dataset in (Subset(prepared, [0]), ConcatDataset([prepared])):
        image = as_source(dataset).open_for_loader(0)  # type: ignore[union-attr]
        assert isinstance(image, OwnImage)
        assert (image.header.height, image.header.width, image.target) == (60, 72, 0)
        assert not prepared.is_kept(0)
    made = image.make(new_memory)
    assert prepared.is_kept(0)
    again = prepared.open_for_loader(0)
    assert isinstance(again, OwnImage)
    assert torch.equal(again.make(new_memory), made)
    data = prepared.read(0).data
    assert torch.equal(ppm_pixels(data, probe(data)), made)  # type: ignore[arg-type]


@pytest.mark.parametrize(("height", "num_reads"), [(8, 1), (60, 2)], ids=["not kept", "kept"])
def test_masks_cost_no_reading_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, height: int, num_reads: int
) -> None:
    """They are stored beside the pixels or drawn from annotations; moving them reads nothing."""
    source = CocoSource(*write_coco(tmp_path), masks=True)
    head, tail = [T.Resize((height, 9))], [T.RandomResizedCrop(7), T.RandomHorizontalFlip()]
    changes: dict[str, Any] = {"collate_fn": ragged_collate}
    expected = uninterrupted(make(source, [*head, *tail], **changes), 1)[0]
    prepared = PreparedSource(source, tmp_path / "kept", head)
    for index in range(len(prepared)):
        prepared.read(index)

    def refuse(path: str) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("stateful_gpu_loader.datasets.coco._read", refuse)
    reads = recorded_fills(monkeypatch)
    assert same(uninterrupted(make(prepared, tail, **changes), 1)[0], expected)
    assert len(reads) == num_reads * len(prepared)


class Counting(CocoSource):
    """Counts the objects of each target."""

    def read(self, index: int) -> EncodedSample:
        sample = super().read(index)
        return replace(sample, target={**sample.target, "count": len(sample.target["labels"])})


def test_a_target_is_that_of_the_source_that_reads_otherwise(tmp_path: Path) -> None:
    source = Counting(*write_coco(tmp_path), masks=True)
    prepared = PreparedSource(source, tmp_path / "kept", [T.Resize((8, 9))])
    for _ in range(2):
        for index in range(len(source)):
            assert same(prepared.read(index).target, source.read(index).target)
