"""COCO annotation files, whole and damaged."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from stateful_gpu_loader.datasets.coco_annotations import read_annotations
from tests.datasets.coco.coco_files import CATEGORIES, SIZES, annotations, write_annotations

CONTENT, NAN = annotations(), float("nan")


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


@pytest.mark.parametrize(
    ("place", "change", "text"),
    [
        ((), {"images": None}, "no list 'images'"),
        ((), {"annotations": {}}, "no list 'annotations'"),
        (("images", 2), {"id": None}, r"images\[2\]': it has no 'id'"),
        (("images", 2), {"file_name": None}, r"images\[2\] \(id 11\)': it has no 'file_name'"),
        (("images", 1), {"id": 7}, "two images have the id 7"),
        (("images", 1), {"id": "x"}, r"images\[1\].*its id is 'x', not a 64-bit integer"),
        (("images", 1), {"height": 0}, r"images\[1\].*its height is 0"),
        (("images", 2), {"height": None}, r"annotations\[0\].*no height and width"),
        (
            ("images", 2),
            {"file_name": "\ud800.jpg"},
            r"images\[2\].*its file_name is '\\ud800.jpg', not a name",
        ),
        (("images", 2), {"file_name": "a\0.jpg"}, r"images\[2\].*not a name"),
        (("annotations", 3), {"image_id": None}, r"annotations\[3\] \(id 97\)': .*'image_id'"),
        (("annotations", 3), {"bbox": None}, r"annotations\[3\] \(id 97\).*no 'bbox'"),
        (("annotations", 3), {"bbox": [1, 2, 3]}, r"annotations\[3\] \(id 97\)"),
        (("annotations", 3), {"bbox": [1, 2, 3, "x"]}, r"annotations\[3\] \(id 97\)"),
        (("annotations", 3), {"bbox": [1, 2, 3, NAN]}, r"annotations\[3\].*not four numbers"),
        (("annotations", 3), {"bbox": [1, 2, 3, 1e308]}, r"annotations\[3\].*not four numbers"),
        (("annotations", 3), {"area": 1e308}, r"annotations\[3\].*its area is 1e\+308"),
        (("annotations", 0), {"category_id": None}, r"annotations\[0\] .*'category_id'"),
        (("annotations", 0), {"segmentation": None}, r"annotations\[0\].*'segmentation'"),
        (
            ("annotations", 0),
            {"segmentation": [[1, 2, 3, 4]]},
            r"annotations\[0\].*a polygon has 4 numbers",
        ),
        (
            ("annotations", 0),
            {"segmentation": [[1, 2, 3, 4, 5, 1e308]]},
            r"annotations\[0\].*a corner of a polygon",
        ),
        (
            ("annotations", 1, "segmentation"),
            {"size": [1, 2]},
            r"annotations\[1\].*its mask is for \[1, 2\] pixels",
        ),
        (
            ("annotations", 1, "segmentation"),
            {"size": "\ud800"},
            r"annotations\[1\].*its mask is for '\\ud800' pixels",
        ),
        (("annotations", 1), {"segmentation": 7}, r"annotations\[1\].*is a int"),
        (("categories", 1), {"id": None}, r"categories\[1\].*'id'"),
    ],
)
def test_what_is_malformed_is_named(
    tmp_path: Path, place: tuple[Any, ...], change: dict[str, Any], text: str
) -> None:
    """The error names file, entry and field. A field that becomes None is left out."""
    content = copy.deepcopy(CONTENT)
    entry: Any = content
    for part in place:
        entry = entry[part]
    entry.update(change)
    for name in [name for name, value in change.items() if value is None]:
        del entry[name]
    path = write_annotations(tmp_path / "a.json", content)
    with pytest.raises(ValueError, match=rf"a\.json'.*{text}"):
        read_annotations(str(path), masks=True)


def test_an_entry_that_is_no_object_is_named(tmp_path: Path) -> None:
    content = {**CONTENT, "images": [*CONTENT["images"], None]}
    path = write_annotations(tmp_path / "a.json", content)
    with pytest.raises(ValueError, match=r"a\.json'.*images\[5\]"):
        read_annotations(str(path), masks=True)


def test_what_is_no_annotation_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for text in (b"[]", b"7", b"9" * 5000, b"\xff\xfe\xfd", b"[" * 100_000, b'{"images": 3}'):
        file.write_bytes(text)
        with pytest.raises(ValueError, match=r"a\.json'"):
            read_annotations(str(file))
