"""COCO annotation files, whole and damaged."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from stateful_gpu_loader.datasets.coco_annotations import read_annotations
from tests.datasets.coco.coco_files import CATEGORIES, SIZES, annotations, write_annotations

CONTENT = annotations()


def test_images_are_sorted_and_objects_keep_their_order(tmp_path: Path) -> None:
    """The order is torchvision's and DALI's."""
    found = read_annotations(str(write_annotations(tmp_path / "a.json", CONTENT)))
    assert found.image_ids.tolist() == sorted(SIZES)
    assert found.file_names == [f"{number:05d}.jpg" for number in sorted(SIZES)]
    assert found.sizes.tolist() == [list(SIZES[number]) for number in sorted(SIZES)]
    assert found.categories == CATEGORIES
    assert found.segments is None
    for i, number in enumerate(sorted(SIZES)):
        own = slice(found.firsts[i], found.firsts[i + 1])
        entries = [each for each in CONTENT["annotations"] if each["image_id"] == number]
        boxes = np.array([each["bbox"] for each in entries], dtype=np.float32).reshape(-1, 4)
        np.testing.assert_array_equal(found.boxes[own], boxes)
        assert found.category_ids[own].tolist() == [each["category_id"] for each in entries]
        assert found.are_crowds[own].tolist() == [bool(each["iscrowd"]) for each in entries]
        np.testing.assert_array_equal(
            found.areas[own], np.array([each["area"] for each in entries], dtype=np.float32)
        )


def test_what_a_file_need_not_say_is_made_up(tmp_path: Path) -> None:
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [
            {"image_id": 2, "category_id": 1, "bbox": [0, 0, 1, 1]},
            {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]},
        ],
    }
    found = read_annotations(str(write_annotations(tmp_path / "a.json", content)))
    assert found.sizes.tolist() == [[-1, -1]]
    assert found.areas.tolist() == [12]
    assert found.are_crowds.tolist() == [False]
    assert found.boxes.tolist() == [[1, 2, 3, 4]]
    found = read_annotations(
        str(write_annotations(tmp_path / "b.json", {"images": content["images"]}))
    )
    assert found.firsts.tolist() == [0, 0]


def test_compressed_files_and_urls_are_read(tmp_path: Path) -> None:
    text = json.dumps(CONTENT).encode()
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text))
    fsspec.filesystem("memory").pipe("/coco.json", text)
    for path in (f"{tmp_path}/a.json.gz", "memory://coco.json"):
        assert read_annotations(path).image_ids.tolist() == sorted(SIZES)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(text)[:-20])
    with pytest.raises(ValueError, match=r"b\.json\.gz'.*decompressed"):
        read_annotations(f"{tmp_path}/b.json.gz")


def test_every_truncation_is_named(tmp_path: Path) -> None:
    content = {"images": CONTENT["images"][:1], "annotations": [], "categories": []}
    text = json.dumps(content).encode()
    path = tmp_path / "a.json"
    for size in range(len(text)):
        path.write_bytes(text[:size])
        with pytest.raises(ValueError, match=r"a\.json', byte \d+.*JSON"):
            read_annotations(str(path))
    with pytest.raises(FileNotFoundError):
        read_annotations(str(tmp_path / "absent.json"))


def _changed(change: Callable[[Any], Any]) -> Any:
    content = copy.deepcopy(CONTENT)
    change(content)
    return content


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.pop("images"), "no list 'images'"),
        (lambda c: c.update(annotations={}), "no list 'annotations'"),
        (lambda c: c["images"][2].pop("id"), r"images\[2\]': it has no 'id'"),
        (
            lambda c: c["images"][2].pop("file_name"),
            r"images\[2\] \(id 11\)': it has no 'file_name'",
        ),
        (lambda c: c["images"][1].update(id=7), "two images have the id 7"),
        (lambda c: c["images"][1].update(id="x"), r"images\[1\].*its id is 'x', and no integer"),
        (lambda c: c["images"][1].update(height=0), r"images\[1\].*its height is 0"),
        (lambda c: c["images"].append(None), r"images\[5\]"),
        (
            lambda c: c["annotations"][3].pop("image_id"),
            r"annotations\[3\] \(id 97\)': .*'image_id'",
        ),
        (lambda c: c["annotations"][3].pop("bbox"), r"annotations\[3\] \(id 97\).*no 'bbox'"),
        (lambda c: c["annotations"][3].update(bbox=[1, 2, 3]), r"annotations\[3\] \(id 97\)"),
        (lambda c: c["annotations"][3].update(bbox=[1, 2, 3, "x"]), r"annotations\[3\] \(id 97\)"),
        (
            lambda c: c["annotations"][3].update(bbox=[1, 2, 3, float("nan")]),
            r"annotations\[3\].*not four numbers",
        ),
        (lambda c: c["annotations"][0].pop("category_id"), r"annotations\[0\] .*'category_id'"),
        (lambda c: c["annotations"][0].pop("segmentation"), r"annotations\[0\].*'segmentation'"),
        (
            lambda c: c["annotations"][0].update(segmentation=[[1, 2, 3, 4]]),
            r"annotations\[0\].*a polygon has 4 numbers",
        ),
        (
            lambda c: c["annotations"][1]["segmentation"].update(size=[1, 2]),
            r"annotations\[1\].*its mask is for \[1, 2\] pixels",
        ),
        (
            lambda c: c["annotations"][1]["segmentation"].update(size="\ud800"),
            r"annotations\[1\].*its mask is for '\\ud800' pixels",
        ),
        (lambda c: c["annotations"][1].update(segmentation=7), r"annotations\[1\].*is a int"),
        (lambda c: c["images"][2].pop("height"), r"annotations\[0\].*no height and width"),
        (
            lambda c: c["annotations"][3].update(bbox=[1, 2, 3, 1e308]),
            r"annotations\[3\].*not four numbers",
        ),
        (
            lambda c: c["annotations"][3].update(area=1e308),
            r"annotations\[3\].*its area is 1e\+308",
        ),
        (
            lambda c: c["annotations"][0].update(segmentation=[[1, 2, 3, 4, 5, 1e308]]),
            r"annotations\[0\].*a corner of a polygon",
        ),
        (
            lambda c: c["images"][2].update(file_name="\ud800.jpg"),
            r"images\[2\].*its file_name is '\\ud800.jpg', and no name",
        ),
        (lambda c: c["images"][2].update(file_name="a\0.jpg"), r"images\[2\].*and no name"),
        (lambda c: c["categories"][1].pop("id"), r"categories\[1\].*'id'"),
    ],
)
def test_what_is_malformed_is_named(
    tmp_path: Path, change: Callable[[Any], Any], text: str
) -> None:
    """The error names file, entry and field."""
    path = write_annotations(tmp_path / "a.json", _changed(change))
    with pytest.raises(ValueError, match=rf"a\.json'.*{text}"):
        read_annotations(str(path), masks=True)


@pytest.mark.parametrize(
    "text", [b"[]", b"7", b"9" * 5000, b"\xff\xfe\xfd", b"[" * 100_000, b'{"images": 3}']
)
def test_what_is_no_annotation_file_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"a\.json'"):
        read_annotations(str(tmp_path / "a.json"))
