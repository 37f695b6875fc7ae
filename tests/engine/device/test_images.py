"""DeviceImages alone, and the work that it leaves for later."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from stateful_gpu_loader import FolderSource, StatefulGPULoader, ragged_collate
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.coco import CocoSource
from stateful_gpu_loader.decoders import ImageHeader, JpegHeader, make_decoder, probe
from stateful_gpu_loader.decoders.batch_rule import decode_batch_by_rule
from stateful_gpu_loader.decoders.rule import without_exif
from stateful_gpu_loader.engine.device.images import DeviceImages
from stateful_gpu_loader.engine.makers.encoded import EncodedMaker
from stateful_gpu_loader.engine.pipeline import never_stopped
from stateful_gpu_loader.transforms.batches.ragged import launch
from tests.damaged import undecodable
from tests.decoders.variants import exif
from tests.device_loaders import request_of, steps_of
from tests.fake_gpu import FakeGpu, FakePlace, fake_gpu
from tests.images import encode, photograph, write_photo_folder

__all__ = ["fake_gpu"]


class CpuDecoded:
    """A GPU decoder that refuses files of some lengths, and leaves files of others to the CPU."""

    family = "fake-cuda"
    acts_on_exif = False

    def __init__(self, left: set[int], refused: set[int]) -> None:
        self.cpu = make_decoder("torchvision")
        self._left, self._refused = left, refused

    def version(self) -> str:
        return "1"

    def takes(self, header: ImageHeader, data: torch.Tensor) -> bool:
        return len(data) not in self._left

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
        return [
            ValueError("refused") if len(each) in self._refused else self.cpu.decode(each, header)
            for each, header in zip(data, headers, strict=True)
        ]


def test_pixels_of_the_cpu_are_copied_in_the_augmenting_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host waits for the first step's stream before it calls the engines."""
    files = write_photo_folder(tmp_path, num_classes=1, per_class=9)
    sizes = [path.stat().st_size for path in files]
    place = FakePlace()
    place.open()
    decoder = CpuDecoded({sizes[i] for i in (1, 2, 5)}, {sizes[7]})
    maker, steps = steps_of(tmp_path, place, decoder, T.Compose([T.Resize((16, 16))]))
    copied: list[torch.Tensor] = []
    monkeypatch.setattr(place, "copy_in", lambda given: copied.append(given) or given.clone())
    decoded = steps.decode(maker(request_of(9), never_stopped))
    assert copied == []
    images, _ = steps.augment(decoded)
    assert len(copied) == 3, "one of the batch's memory, one of the refused image, one of targets"
    maker, steps = steps_of(
        tmp_path, place, CpuDecoded(set(), set()), T.Compose([T.Resize((16, 16))])
    )
    expected, _ = steps.augment(steps.decode(maker(request_of(9), never_stopped)))
    assert torch.equal(images, expected)


class Given:
    """A decoder of JPEGs with given pixels, which notes its arguments."""

    family = "fake-cuda"
    acts_on_exif = True

    def __init__(self) -> None:
        self.cpu = make_decoder("torchvision")
        self.pixels: list[torch.Tensor] = []
        self.given: list[torch.Tensor] = []
        self.took: list[bytes] = []

    def version(self) -> str:
        return "1"

    def takes(self, header: ImageHeader, data: torch.Tensor) -> bool:
        self.took.append(data.numpy().tobytes())
        return isinstance(header, JpegHeader)

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
        self.given = list(data)
        pixels = self.pixels[: len(data)]
        plain = [without_exif(*pair) for pair in zip(data, headers, strict=True)]  # type: ignore[arg-type]
        return decode_batch_by_rule(lambda each: pixels, plain, headers)


def write_mixed_folder(root: Path, num_images: int) -> None:
    """Write JPEGs of all orientations with EXIF and XMP, and a PNG after every second JPEG."""
    folder = root / "class"
    folder.mkdir()
    picture = photograph("coffee").resize((60, 40))
    xmp = (
        b"\xff\xe1"
        + (2 + 40).to_bytes(2, "big")
        + b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>"[:40]
    )
    for i in range(num_images):
        path = folder / f"{i:03}.jpg"
        if i % 3 == 2:
            path.write_bytes(encode(picture, "PNG").numpy().tobytes())
            continue
        data = encode(picture, exif=exif(1 + i % 8), quality=60 + i).numpy().tobytes()
        end = probe(torch.frombuffer(bytearray(data), dtype=torch.uint8)).exif_spans[0][1]  # type: ignore[attr-defined]
        path.write_bytes(data[:end] + b"\xff\xfe\0\x05abc" + xmp + data[end:])


def test_readers_strip_exif_from_images_decoded_on_the_gpu(tmp_path: Path) -> None:
    """The choice of decoder sees the file unchanged."""
    write_mixed_folder(tmp_path, 9)
    place, decoder = FakePlace(), Given()
    place.open()
    maker, steps = steps_of(tmp_path, place, decoder, T.Compose([T.Resize((8, 8))]))
    decoder.pixels = [torch.zeros(3, 40, 60, dtype=torch.uint8)] * 6
    batch = maker(request_of(9), never_stopped)
    source = FolderSource(tmp_path)
    files = [source.read(index).data for index in range(9)]
    assert decoder.took == [data.numpy().tobytes() for data in files]
    steps.augment(steps.decode(batch))
    jpegs = [data for data in files if isinstance(probe(data), JpegHeader)]
    plain = [without_exif(data, probe(data)) for data in jpegs]  # type: ignore[arg-type]
    assert len(plain) == 6
    assert [data.tolist() for data in decoder.given] == [data.tolist() for data in plain]
    assert all(len(probe(data).exif_spans) == 2 for data in jpegs)  # type: ignore[attr-defined]
    assert all(probe(data).exif_spans == () for data in decoder.given)  # type: ignore[attr-defined]


class Calls(TorchFunctionMode):
    """Counts the calls of torch, except those that only inspect a tensor."""

    LOOKS = frozenset(
        {"__get__", "stride", "data_ptr", "numel", "size", "__len__", "dim", "is_contiguous"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name not in self.LOOKS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the fused launch without its kernel."""

    def resample(images: Any, placement: Any, pointwise: Any, memory_format: Any) -> torch.Tensor:
        out = torch.empty((len(images), 3, *placement.sizes[0].tolist()), dtype=pointwise.dtype)
        launch(SimpleNamespace(resample=lambda *_, **__: None), images, placement, pointwise, out)  # type: ignore[arg-type]
        return out

    monkeypatch.setattr("stateful_gpu_loader.transforms.batches.batching.resample", resample)


RECIPES = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.Normalize([0], [1])])
TWO_LAUNCHES = T.Compose([T.RandomResizedCrop(16), T.GaussianBlur(3), *RECIPES.recipes[1:]])


def calls_of_the_stage(maker: EncodedMaker, steps: DeviceImages, num_images: int) -> Counter[str]:
    batch = maker(request_of(num_images), never_stopped)
    with Calls() as calls:
        decoded = steps.decode(batch)
        steps.augment(decoded)
    return calls.counts


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("recipes", [RECIPES, TWO_LAUNCHES])
def test_the_stage_calls_torch_as_often_for_any_number_of_images(
    recipes: T.Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call may hand Python's lock to a reader; for each image, that takes milliseconds."""
    write_mixed_folder(tmp_path, 24)
    place, decoder = FakePlace(), Given()
    place.open()
    monkeypatch.setattr(place, "copy_in", torch.clone)
    decoder.pixels = [torch.zeros(3, 40, 60, dtype=torch.uint8) for _ in range(24)]
    maker, steps = steps_of(tmp_path, place, decoder, recipes)
    found = [calls_of_the_stage(maker, steps, num_images) for num_images in (6, 12, 24)]
    assert found[0] == found[1] == found[2]
    assert sum(found[0].values()) < 60, found[0]


def write_objects(folder: Path, num_images: int) -> CocoSource:
    """Write photographs with one to three objects each, and their masks."""
    images: list[Any] = []
    objects: list[Any] = []
    for i in range(num_images):
        photograph("coffee").resize((60, 40)).save(folder / f"{i:03}.jpg")
        images.append({"id": i, "file_name": f"{i:03}.jpg", "height": 40, "width": 60})
        for left in range(5, 5 + 15 * (1 + i % 3), 15):
            outline = [left, 9, left + 14, 9, left + 14, 30, left, 30]
            entry = {"image_id": i, "category_id": 1, "segmentation": [outline]}
            objects.append(entry | {"id": len(objects), "bbox": [left, 9, 14, 21]})
    categories = [{"id": 1, "name": "cup"}]
    content = {"images": images, "annotations": objects, "categories": categories}
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    return CocoSource(folder, path, masks=True)


@pytest.mark.usefixtures("no_launch")
def test_the_stage_calls_torch_as_often_for_the_objects_of_any_number_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readers have moved boxes and masks, and those of all images are copied at once."""
    place, decoder = FakePlace(), Given()
    place.open()
    monkeypatch.setattr(place, "copy_in", torch.clone)
    decoder.pixels = [torch.zeros(3, 40, 60, dtype=torch.uint8) for _ in range(16)]
    source = write_objects(tmp_path, 16)
    maker, steps = steps_of(source, place, decoder, RECIPES, ragged_collate)
    found = [calls_of_the_stage(maker, steps, num_images) for num_images in (4, 16)]
    assert found[0] == found[1]
    assert sum(found[0].values()) < 50, found[0]


def test_objects_move_once_whatever_replaces_their_images(
    tmp_path: Path, fake_gpu: FakeGpu
) -> None:
    """One batch has an image without a header, another has an image with undecodable pixels."""
    source = write_objects(tmp_path, 16)
    whole = (tmp_path / "000.jpg").read_bytes()
    (tmp_path / "001.jpg").write_bytes(b"no photograph")
    (tmp_path / "006.jpg").write_bytes(undecodable(whole))
    batches = []
    for device in (None, "cuda"):
        loader: StatefulGPULoader[Any] = StatefulGPULoader(
            source,
            batch_size=4,
            seed=3,
            device=device,
            transform=[T.RandomResizedCrop(16), T.RandomHorizontalFlip()],
            collate_fn=ragged_collate,
            on_bad_sample="replace",
        )
        batches.append([targets for _, targets in loader])
    flat = [[target for targets in each for target in targets] for each in batches]
    assert len(flat[0]) == 16
    assert {target["image_id"] for target in flat[1]} == set(range(16)) - {1, 6}
    for one, other in zip(*flat, strict=True):
        assert one["image_id"] == other["image_id"]
        for name in ("boxes", "labels", "area", "iscrowd", "masks"):
            assert torch.equal(one[name], other[name]), name
