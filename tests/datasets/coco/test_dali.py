"""CocoSource compared with DALI's own CPU reader, sample for sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stateful_gpu_loader.datasets.coco import CocoSource
from tests.datasets.coco.coco_files import annotations, write_coco
from tests.datasets.dali import read_by_dali


@pytest.mark.dali
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {"box_format": "xywh"}),
        ({"ltrb": True}, {}),
        ({"ltrb": True, "ratio": True}, {"ratio": True}),
        ({"ratio": True}, {"ratio": True, "box_format": "xywh"}),
        ({"ltrb": True, "skip_empty": True}, {"skip_empty": True}),
        ({"ltrb": True, "include_iscrowd": False}, {"include_iscrowd": False}),
        ({"ltrb": True, "size_threshold": 12.0}, {"size_threshold": 12.0}),
        ({"avoid_class_remapping": True}, {"contiguous_labels": False, "box_format": "xywh"}),
    ],
)
def test_samples_are_those_of_dali(
    tmp_path: Path, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    """Order, boxes bit for bit, and labels as DALI numbers them."""
    content = annotations()
    content["annotations"][0]["bbox"][2] = 0.05
    root, file = write_coco(tmp_path, content)
    arguments = {"contiguous_labels": True, "size_threshold": 0.1, **ours}
    source = CocoSource(root, file, **arguments)
    expected = read_by_dali(
        "coco", file_root=str(root), annotations_file=str(file), image_ids=True, **theirs
    )
    assert len(expected) == len(source)
    for index, (image, boxes, labels, image_id) in enumerate(expected):
        data, target = source[index]
        assert data.numpy().tobytes() == image.tobytes()
        assert target["image_id"] == int(image_id[0])
        assert target["labels"].tolist() == labels.reshape(-1).tolist()
        np.testing.assert_array_equal(target["boxes"].numpy(), boxes.reshape(-1, 4))
