"""CocoSource: boxes, labels and masks of a folder of images."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2

from stateful_gpu_loader import BadSample, PreparedSource, StatefulGPULoader, ragged_collate
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.coco import CocoSource
from tests.conformance import same
from tests.datasets.coco.coco_files import (
    CATEGORIES,
    SIZES,
    annotations,
    write_annotations,
    write_coco,
)

# pycocotools' decode under NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_coco(tmp_path)


def targets(source: CocoSource) -> list[dict[str, Any]]:
    return [source[index][1] for index in range(len(source))]


def test_samples_are_those_of_torchvision(files: tuple[Path, Path]) -> None:
    """Order, boxes, labels and masks equal those of CocoDetection, wrapped for its transforms.

    Boxes come in other formats, and as parts of the image.
    """
    keys = ("image_id", "boxes", "labels", "masks")
    theirs = wrap_dataset_for_transforms_v2(CocoDetection(*map(str, files)), target_keys=keys)
    source = CocoSource(*files, masks=True)
    sides, parts = CocoSource(*files, box_format="xywh"), CocoSource(*files, ratio=True)
    assert len(source) == len(theirs)
    for index, target in enumerate(targets(source)):
        expected, boxes = theirs[index][1], target["boxes"]
        assert target["image_id"] == expected["image_id"]
        xywh, part = sides[index][1]["boxes"], parts[index][1]["boxes"]
        assert torch.equal(boxes, torch.cat((xywh[:, :2], xywh[:, :2] + xywh[:, 2:]), dim=1))
        height, width = SIZES[target["image_id"]]
        assert same(part, boxes / torch.tensor([width, height] * 2, dtype=torch.float32))
        if "boxes" not in expected:
            assert boxes.shape == (0, 4)
            continue
        assert same(boxes, expected["boxes"].as_subclass(torch.Tensor))
        assert same(target["labels"], expected["labels"])
        assert torch.equal(target["masks"], expected["masks"].as_subclass(torch.Tensor))


def test_a_target_has_the_types_that_detection_models_take(files: tuple[Path, Path]) -> None:
    source = CocoSource(*files)
    for target in targets(source):
        n = len(target["labels"])
        assert list(target) == ["boxes", "labels", "image_id", "area", "iscrowd"]
        assert (target["boxes"].dtype, target["boxes"].shape) == (torch.float32, (n, 4))
        assert (target["labels"].dtype, target["labels"].shape) == (torch.int64, (n,))
        assert (target["area"].dtype, target["iscrowd"].dtype) == (torch.float32, torch.int64)
        assert type(target["image_id"]) is int
    image = source[3][0]
    assert image.numpy().tobytes() == (files[0] / "00007.jpg").read_bytes()
    assert source.read(3).name == str(files[0] / "00007.jpg")


def test_objects_and_images_are_left_out_if_asked_for(tmp_path: Path) -> None:
    content = annotations()
    content["annotations"][1]["bbox"][2] = 0.5
    content["annotations"][4]["bbox"][3] = 0.5
    files = write_coco(tmp_path, content)
    assert [len(each["labels"]) for each in targets(CocoSource(*files))] == [2, 2, 0, 2, 3]
    source = CocoSource(*files, skip_empty=True)
    assert source.image_ids.tolist() == [3, 4, 7, 11]
    source = CocoSource(*files, skip_empty=True, size_threshold=1.0, masks=True)
    assert source.image_ids.tolist() == [4, 7, 11]
    source = CocoSource(*files, include_iscrowd=False, masks=True)
    whole = targets(CocoSource(*files, masks=True))
    for target, every in zip(targets(source), whole, strict=True):
        kept = every["iscrowd"] == 0
        for name in ("boxes", "labels", "area", "iscrowd", "masks"):
            assert same(target[name], every[name][kept]), name


def test_labels_are_numbered_if_asked_for(files: tuple[Path, Path], tmp_path: Path) -> None:
    source, numbered = CocoSource(*files), CocoSource(*files, contiguous_labels=True)
    assert source.categories == CATEGORIES
    assert numbered.categories == {1: "dog", 2: "plane", 3: "brush"}
    numbers = {18: 1, 5: 2, 90: 3}
    for one, other in zip(targets(source), targets(numbered), strict=True):
        assert [numbers[label] for label in one["labels"].tolist()] == other["labels"].tolist()
    content = annotations()
    content["categories"].pop()
    path = write_annotations(tmp_path / "few.json", content)
    with pytest.raises(ValueError, match="objects are of category 90, and the file lists no such"):
        CocoSource(files[0], path, contiguous_labels=True)
    assert len(CocoSource(files[0], path)) == 5


def test_what_cannot_be_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"box_format = 'cxcywh'.*'xyxy'.*'xywh'"):
        CocoSource(*files, box_format="cxcywh")  # type: ignore[arg-type]
    empty = write_annotations(tmp_path / "empty.json", {"images": []})
    with pytest.raises(ValueError, match=r"empty\.json'.*0"):
        CocoSource(files[0], empty)
    content = annotations()
    content["images"][0].pop("width")
    path = write_annotations(tmp_path / "sizes.json", content)
    with pytest.raises(ValueError, match="no height and width of image 7"):
        CocoSource(files[0], path, ratio=True)
    (files[0] / "00004.jpg").unlink()
    source = CocoSource(*files)
    with pytest.raises(FileNotFoundError, match=r"index = 1.*00004\.jpg"):
        source[1]


def test_an_image_of_unknown_size_without_objects_has_no_masks(tmp_path: Path) -> None:
    """Found by the fuzzer of inputs: a mask had -1 rows."""
    content = annotations()
    empty = next(image for image in content["images"] if image["id"] == 5)
    del empty["height"], empty["width"]
    source = CocoSource(*write_coco(tmp_path, content), masks=True)
    index = source.image_ids.tolist().index(5)
    target = source.target(index)
    assert target["masks"].shape == (0, 0, 0)
    moved = source.move_target(index, target, np.array([[2.0, 0, 0], [0, 2, 0]]), (8, 9))
    assert moved["masks"].shape == (0, 8, 9)


def test_the_fingerprint_depends_on_content(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Images, objects, and settings of the targets."""
    source = CocoSource(*files, masks=True)
    assert source.fingerprint() is source.fingerprint()
    seen = {source.fingerprint()}
    for arguments in (
        {},
        {"box_format": "xywh"},
        {"ratio": True},
        {"contiguous_labels": True},
        {"skip_empty": True},
        {"include_iscrowd": False},
    ):
        seen.add(CocoSource(*files, **arguments).fingerprint())
    for field, value in (("bbox", [1, 2, 3, 4]), ("category_id", 5), ("image_id", 4), ("area", 1)):
        content = copy.deepcopy(annotations())
        content["annotations"][0][field] = value
        path = write_annotations(tmp_path / "changed.json", content)
        seen.add(CocoSource(files[0], path).fingerprint())
    content = annotations()
    content["annotations"][0]["segmentation"][0][0] += 1
    path = write_annotations(tmp_path / "changed.json", content)
    seen.add(CocoSource(files[0], path, masks=True).fingerprint())
    content["images"][0]["file_name"] = "other.jpg"
    path = write_annotations(tmp_path / "changed.json", content)
    seen.add(CocoSource(files[0], path).fingerprint())
    assert len(seen) == 13


def test_records_are_as_in_the_file(files: tuple[Path, Path]) -> None:
    content = annotations()
    record = CocoSource(*files).record(1)
    own = [each for each in content["annotations"] if each["image_id"] == 4]
    assert record["file_name"] == "00004.jpg"
    assert (record["image_id"], record["height"], record["width"]) == (4, 64, 64)
    np.testing.assert_allclose(record["bbox"], [each["bbox"] for each in own], rtol=1e-6)
    assert record["label"] == [each["category_id"] for each in own]


@pytest.mark.parametrize("orientation", [3, 6])
def test_an_image_that_its_annotations_do_not_fit_is_a_bad_sample(
    files: tuple[Path, Path], orientation: int
) -> None:
    """The decoder turns the image upright, so boxes of the stored pixels would be wrong."""
    name = min(files[0].glob("*.jpg"))
    with Image.open(name) as image:
        exif = image.getexif()
        exif[0x0112] = orientation
        image.save(name, exif=exif)
    source = CocoSource(*files)
    number = source.image_ids.tolist().index(int(name.stem))
    loader = StatefulGPULoader(source, sampler=[number], transform=[T.Resize((16, 16))])
    with pytest.raises(BadSample, match="EXIF orientation"):
        next(iter(loader))


def test_targets_of_different_numbers_are_not_stacked(tmp_path: Path) -> None:
    """torch's default_collate would fail in the middle of an epoch. Others are stacked."""
    source = CocoSource(*write_coco(tmp_path))
    recipes = [T.Resize((16, 16))]
    assert [len(each["labels"]) for each in targets(source)] == [2, 2, 0, 2, 3]
    prepared = PreparedSource(source, tmp_path / "prepared", recipes)
    differing = (source, prepared, Subset(source, [0, 2]), ConcatDataset([source, source]))
    for dataset in differing:
        with pytest.raises(ValueError, match="ragged_collate"):
            StatefulGPULoader(dataset, batch_size=2, transform=recipes)
        for arguments in (
            {"batch_size": 1},
            {"batch_size": None},
            {"batch_size": 2, "collate_fn": ragged_collate},
            {"batch_sampler": [[0], [1]]},
        ):
            loader = StatefulGPULoader(dataset, transform=recipes, **arguments)
            next(iter(loader))
    alike = StatefulGPULoader(Subset(source, [0, 1, -2]), batch_size=3, transform=recipes)
    _, target = next(iter(alike))
    assert target["boxes"].shape == (3, 2, 4)


def test_objects_of_images_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    content = annotations()
    files = write_coco(tmp_path, content)
    whole = targets(CocoSource(*files))
    unlisted = [{**content["annotations"][0], "image_id": number} for number in (404, 12, 12)]
    content["annotations"] = [*unlisted, *content["annotations"]]
    write_annotations(files[1], content)
    with pytest.warns(UserWarning, match=r"5.*3.*image_id 404") as caught:
        source = CocoSource(*files)
    assert caught[0].filename == __file__
    assert same(targets(source), whole)
