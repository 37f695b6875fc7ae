"""Images and COCO annotation files for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as reference

from tests.images import PHOTOGRAPHS, photograph

SIZES = {7: (48, 64), 3: (60, 40), 11: (50, 50), 5: (40, 72), 4: (64, 64)}
"""Height and width by image id, in the order of the file; 5 has no objects."""
CATEGORIES = {18: "dog", 5: "plane", 90: "brush"}


def annotations(seed: int = 0) -> dict[str, Any]:
    """Return objects of all kinds: one or more polygons, compressed and plain runs, groups."""
    generator = np.random.default_rng(seed)
    images = [
        {"id": number, "file_name": f"{number:05d}.jpg", "height": height, "width": width}
        for number, (height, width) in SIZES.items()
    ]
    owners = [11, 3, 11, 7, 3, 11, 4, 4, 7]
    return {
        "images": images,
        "annotations": [_object(generator, i, owner) for i, owner in enumerate(owners)],
        "categories": [{"id": number, "name": name} for number, name in CATEGORIES.items()],
    }


def _object(generator: np.random.Generator, i: int, owner: int) -> dict[str, Any]:
    height, width = SIZES[owner]
    left, top = generator.uniform(0, width / 2), generator.uniform(0, height / 2)
    box = [left, top, generator.uniform(8, width - left), generator.uniform(8, height - top)]
    corners = [float(np.round(number, 2)) for number in generator.uniform(0, 40, 10)]
    segmentation: Any = [corners, [*corners[2:], 3.0, 4.5]]
    if i % 3 == 1:
        mask = (generator.random((height, width)) > 0.6).astype(np.uint8)
        counts = reference.encode(np.asfortranarray(mask))["counts"].decode()
        segmentation = {"size": [height, width], "counts": counts}
    elif i % 3 == 2:
        segmentation = {"size": [height, width], "counts": [5, height * width - 9, 4]}
    return {
        "id": 100 - i,
        "image_id": owner,
        "category_id": list(CATEGORIES)[i % 3],
        "bbox": [float(np.round(number, 2)) for number in box],
        "area": float(np.round(box[2] * box[3] / 2, 1)),
        "iscrowd": int(i % 3 == 2),
        "segmentation": segmentation,
    }


def write_annotations(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def write_coco(folder: Path, content: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """Write real JPEGs and their annotation file; return the folder and the file."""
    for i, (number, (height, width)) in enumerate(SIZES.items()):
        photo = photograph(PHOTOGRAPHS[i % len(PHOTOGRAPHS)])
        photo.crop((40, 40, 40 + width, 40 + height)).save(folder / f"{number:05d}.jpg")
    content = annotations() if content is None else content
    return folder, write_annotations(folder / "instances.json", content)
