"""preview shows what the loader delivers, and changes nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.coco import CocoSource
from stateful_gpu_loader.engine.makers.collate import ragged_collate
from stateful_gpu_loader.tools.preview import NoPreview, PreviewedSample, preview
from stateful_gpu_loader.tools.preview_pictures import write_png
from stateful_gpu_loader.transforms.geometry.resize import resize
from tests.datasets.coco.coco_files import write_coco
from tests.images import write_photo_folder

Loader = StatefulGPULoader[Any]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIDE = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, num_classes=2, per_class=8)
    return root


def loader_of(folder: Path, *recipes: Any, **arguments: Any) -> Loader:
    return StatefulGPULoader(
        FolderSource(folder),
        **{"batch_size": 4, "seed": 1, "shuffle": True, "transform": list(recipes)} | arguments,
    )


FLIPS = [T.RandomHorizontalFlip(), T.RandomVerticalFlip()]


def whole_rectangle(sample: PreviewedSample) -> list[int]:
    assert sample.region is not None
    rectangle = sample.region.rectangle
    assert rectangle is not None
    assert all(number == int(number) for number in rectangle)
    return [int(number) for number in rectangle]


def cut(sample: PreviewedSample) -> Tensor:
    """Return the region, padded with zeros beyond the original, and flipped."""
    assert sample.original is not None
    assert sample.region is not None
    left, top, right, bottom = whole_rectangle(sample)
    part = v2.functional.crop(sample.original, top, left, bottom - top, right - left)
    for flip in sample.region.flips:
        part = part.flip(2 if flip == "horizontal" else 1)
    return part


def test_the_rectangle_and_the_flips_give_the_delivered_pixels(folder: Path) -> None:
    loader = loader_of(folder, T.RandomResizedCrop(SIDE), *FLIPS, batch_size=16)
    samples = preview(loader)
    images, _ = next(iter(loader))
    assert {sample.region.flips for sample in samples if sample.region} == {
        (),
        ("horizontal",),
        ("vertical",),
        ("horizontal", "vertical"),
    }
    for sample, image in zip(samples, images, strict=True):
        left, top, right, bottom = whole_rectangle(sample)
        assert sample.original is not None
        assert sample.region is not None
        part = sample.original[:, top:bottom, left:right]
        result = resize(part, (SIDE, SIDE), "bilinear", True)
        for flip in sample.region.flips:
            result = result.flip(2 if flip == "horizontal" else 1)
        assert torch.equal(result, image)
        assert torch.equal(sample.image, image)


@pytest.mark.parametrize(
    "crop",
    [T.RandomCrop(80, padding=40, pad_if_needed=True), T.CenterCrop(64), T.CenterCrop(200)],
    ids=str,
)
def test_crops_and_padding_are_exact(folder: Path, crop: Any) -> None:
    loader = loader_of(folder, crop, *FLIPS)
    samples = preview(loader)
    images, _ = next(iter(loader))
    for sample, image in zip(samples, images, strict=True):
        assert torch.equal(cut(sample), image)


def test_a_rotation_is_a_quadrilateral_whose_corners_are_computed(folder: Path) -> None:
    loader = loader_of(folder, T.Resize((64, 64)), T.RandomRotation((90, 90)))
    for sample in preview(loader):
        assert sample.original is not None
        assert sample.region is not None
        height, width = sample.original.shape[1:]
        # Rotated counterclockwise, the right edge is on top.
        assert sample.region.corners == ((width, 0), (width, height), (0, height), (0, 0))
        assert sample.region.rectangle is None
        assert sample.parameters[1] == ("RandomRotation", {"angle": 90.0})


def test_recipes_without_a_known_motion_are_named(folder: Path) -> None:
    loader = loader_of(folder, T.RandomCrop(60, pad_if_needed=True), T.TrivialAugmentWide())
    for sample in preview(loader):
        assert sample.region is not None
        assert "Pixels that TrivialAugmentWide moves are not in the outline." in sample.notes


def test_normalized_images_are_shown_as_they_were(folder: Path) -> None:
    plain = preview(loader_of(folder, T.Resize((SIDE, SIDE))))
    for normalized in (
        preview(loader_of(folder, T.Resize((SIDE, SIDE)), T.Normalize(MEAN, STD))),
        preview(
            loader_of(
                folder,
                transform=v2.Compose(
                    [
                        T.Resize((SIDE, SIDE)),
                        v2.ToDtype(torch.float32, scale=True),
                        v2.Normalize(MEAN, STD),
                    ]
                ),
            )
        ),
    ):
        for sample, bytes_of in zip(normalized, plain, strict=True):
            assert torch.equal(sample.image, bytes_of.image)
            assert not any("Normalize" in note for note in sample.notes)


def test_without_normalize_the_values_decide_and_a_note_says_so() -> None:
    values = torch.linspace(-3, 5, 12).view(1, 3, 4)
    [sample] = preview(StatefulGPULoader([values], batch_size=1))
    assert sample.image.min() == 0
    assert sample.image.max() == 255
    assert any("-3 to 5 are stretched" in note for note in sample.notes)


def test_mixed_labels_are_shown_with_their_shares(folder: Path) -> None:
    loader = loader_of(
        folder,
        *[T.RandomResizedCrop(SIDE), T.Normalize(MEAN, STD)],
        batch_transform=T.MixUp(num_classes=2),
    )
    samples = preview(loader)
    _, labels = next(iter(loader))
    assert any(0 < share < 1 for share in labels.flatten().tolist())
    for sample, shares in zip(samples, labels.tolist(), strict=True):
        ordered = sorted(((-share, i) for i, share in enumerate(shares) if share > 0))
        shown = ", ".join(f"class_0{i} {-share:.2f}" for share, i in ordered)
        assert sample.label == shown
        assert any(note.startswith("After batch_transform: MixUp") for note in sample.notes)


@pytest.mark.parametrize(
    ("target", "label"),
    [
        ([0.25, 0.75], "1 0.75, 0 0.25"),
        ([0.0, 1.0], "1 1.00"),
        ([0.7, 0.1, 0.1, 0.05, 0.05], "0 0.70, 1 0.10, 2 0.10, ..."),
        ([0.5, -0.2], ""),
        ([3.0, 4.0], ""),
    ],
)
def test_a_vector_is_shares_only_if_it_adds_up_to_one(target: list[float], label: str) -> None:
    data = [(torch.zeros(3, 4, 4), torch.tensor(target))]
    assert preview(StatefulGPULoader(data, batch_size=1))[0].label == label


class Grey(Dataset[Any]):
    """One grey picture, normalized or not."""

    picture = torch.arange(12, dtype=torch.uint8).view(1, 3, 4) * 20

    def __init__(self, *steps: Any) -> None:
        self.transform = v2.Compose(steps or [v2.Identity()])

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.picture), 1


def test_grey_images_are_shown_in_three_equal_channels() -> None:
    normalized = Grey(v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.2]))
    for dataset in (Grey(), normalized):
        [sample] = preview(StatefulGPULoader(dataset, batch_size=1))
        assert torch.equal(sample.image, Grey.picture.expand(3, 3, 4))


def test_preview_changes_nothing(folder: Path) -> None:
    def delivered(looks: bool) -> list[Any]:
        loader = loader_of(folder, T.RandomResizedCrop(SIDE), *FLIPS, seed=None, drop_last=True)
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        seen: list[Any] = []
        for epoch in range(2):
            run = iter(loader)
            for _ in range(len(loader)):
                if looks:
                    preview(loader, 2)
                seen += [loader.state_dict(), loader.epoch, next(run)[0]]
            loader.set_epoch(epoch + 1)
        return [*seen, torch.rand(1), random.random(), np.random.rand()]

    looked, left_alone = delivered(True), delivered(False)
    assert len(looked) == len(left_alone)
    for mine, other in zip(looked, left_alone, strict=True):
        assert torch.equal(mine, other) if isinstance(mine, Tensor) else mine == other


def test_in_the_middle_of_an_epoch_it_is_the_batch_that_comes_next(folder: Path) -> None:
    def make() -> Loader:
        return loader_of(folder, T.RandomResizedCrop(SIDE), batch_size=2, num_replicas=2, rank=1)

    loader = make()
    run = iter(loader)
    next(run)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    samples = preview(resumed, 2)
    assert [sample.place.position for sample in samples] == [5, 7, 9, 11]
    assert [sample.batch for sample in samples] == [0, 0, 1, 1]
    for number in range(2):
        images, labels = next(run)
        shown = samples[2 * number : 2 * number + 2]
        assert torch.equal(torch.stack([sample.image for sample in shown]), images)
        assert [sample.label for sample in shown] == [f"class_{each:02d}" for each in labels]


def test_parameters_are_those_of_draws(folder: Path) -> None:
    loader = loader_of(folder, T.RandomResizedCrop(SIDE), *FLIPS)
    samples = preview(loader)
    next(iter(loader))
    for number, drawn in enumerate(loader.draws()):
        name = drawn.pop("recipe")
        for i, sample in enumerate(samples):
            assert sample.parameters[number] == (
                name,
                {each: rows[i].item() for each, rows in drawn.items()},
            )


def test_boxes_and_masks_move_with_the_image(tmp_path: Path) -> None:
    root, annotations = write_coco(tmp_path)
    source = CocoSource(root, annotations, masks=True, box_format="xywh")
    loader: Loader = StatefulGPULoader(
        source,
        batch_size=4,
        seed=3,
        collate_fn=ragged_collate,
        transform=[T.Resize((80, 80)), T.RandomHorizontalFlip(1.0)],
    )
    samples = preview(loader)
    first = samples[0]
    _, targets = next(iter(loader))
    assert first.objects is not None
    assert first.original_objects is not None
    assert first.original is not None
    boxes = targets[0]["boxes"]
    assert torch.equal(first.objects.boxes[:, :2], boxes[:, :2])
    assert torch.allclose(first.objects.boxes[:, 2:], boxes[:, :2] + boxes[:, 2:])
    assert first.objects.masks is not None
    assert torch.equal(first.objects.masks, targets[0]["masks"] != 0)
    width = first.original.shape[2]
    scale = 80 / width
    assert torch.allclose(80 - first.original_objects.boxes[:, 2] * scale, boxes[:, 0], atol=1e-3)
    assert set(first.objects.labels) <= set(source.categories.values())
    write_png(tmp_path / "sheet.png", samples)


class OwnDataset(Dataset[dict[str, Any]]):
    """A user's own dataset, with PIL and torchvision's transforms."""

    classes = ("first", "second")

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.rglob("*.jpg"))
        self.transform = v2.Compose(
            [
                v2.PILToTensor(),
                v2.RandomResizedCrop(SIDE),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = Image.open(self.paths[index]).convert("RGB")
        box = tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYWH", canvas_size=(SIDE, SIDE))  # type: ignore[call-overload]
        return {"image": self.transform(image), "label": index % 2, "boxes": box}


def test_a_dataset_of_the_users_own_shows_the_delivered_image_alone(folder: Path) -> None:
    dataset = OwnDataset(folder)
    loader: Loader = StatefulGPULoader(
        dataset, batch_size=2, seed=1, shuffle=True, collate_fn=lambda samples: samples
    )
    samples = preview(loader)
    delivered = next(iter(loader))
    for sample, made in zip(samples, delivered, strict=True):
        expected = made["image"] * torch.tensor(STD)[:, None, None]
        expected = (expected + torch.tensor(MEAN)[:, None, None]) * 255
        assert torch.equal(sample.image, expected.round().clamp(0, 255).to(torch.uint8))
        assert sample.original is None
        assert sample.region is None
        assert sample.parameters == ()
        assert sample.objects is not None
        assert sample.objects.boxes.tolist() == [[1, 2, 4, 6]]
        assert any("original and drawn numbers are unknown" in note for note in sample.notes)


def test_an_own_transform_shows_the_original_without_numbers(folder: Path) -> None:
    loader = loader_of(folder, transform=v2.RandomCrop(SIDE, pad_if_needed=True))
    for sample in preview(loader):
        assert sample.original is not None
        assert sample.region is None
        assert "With a transform of your own, drawn numbers are unknown." in sample.notes


def test_batches_without_images_other_loaders_and_the_end_of_an_epoch_are_refused() -> None:
    with pytest.raises(NoPreview, match="images"):
        preview(StatefulGPULoader(range(4), batch_size=2))
    with pytest.raises(NoPreview, match="DataLoader"):
        preview(DataLoader(range(4)))  # type: ignore[arg-type]
    loader = StatefulGPULoader([torch.zeros(3, 4, 4)], batch_size=1)
    run = iter(loader)
    next(run)
    with pytest.raises(NoPreview, match="batch"):
        preview(loader)
