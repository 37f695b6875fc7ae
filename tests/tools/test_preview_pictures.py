"""Output of preview: the boxes on a picture, the sheet, and the page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.tools.preview import PreviewedSample, preview
from stateful_gpu_loader.tools.preview_pictures import picture_of, write_html, write_png
from tests.images import write_photo_folder

SIDE = 231
"""Side of a square image that keeps its size in its picture."""


class Boxed(Dataset[Any]):
    """One black image with the given boxes and labels."""

    def __init__(self, boxes: list[list[float]], labels: list[int]) -> None:
        self.categories = {1: "cat", 2: "a very long name of a rare animal"}
        self.boxes, self.labels = torch.tensor(boxes), torch.tensor(labels)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        image = torch.zeros(3, SIDE, SIDE, dtype=torch.uint8)
        return image, {"boxes": self.boxes, "labels": self.labels}


def boxed(boxes: list[list[float]], labels: list[int]) -> PreviewedSample:
    [sample] = preview(StatefulGPULoader(Boxed(boxes, labels), batch_size=None))
    return sample


def lit(picture: Image.Image) -> tuple[int, int, int, int] | None:
    """Return the smallest box around the non-black pixels."""
    return picture.convert("RGB").convert("L").point(lambda value: 255 * (value > 0)).getbbox()


def test_labels_are_above_their_boxes_and_within_the_picture() -> None:
    high = picture_of(boxed([[50.0, 60.0, 150.0, 200.0]], [1]))
    left, top, right, bottom = lit(high) or (0, 0, 0, 0)
    assert (left, right, bottom) == (50, 151, 201)
    assert 40 <= top < 60
    corner = picture_of(boxed([[225.0, 2.0, 230.0, 20.0]], [2]))
    left, top, right, bottom = lit(corner) or (0, 0, 0, 0)
    assert left > 100
    assert (top, right, bottom) == (2, SIDE + 1, 21)


def test_a_box_is_outlined_where_it_lies_and_damaged_boxes_are_left_out() -> None:
    damaged = [[80.0, 80.0, 40.0, 90.0], [float("nan"), 1.0, 5.0, 6.0]]
    sample = boxed([*damaged, [50.0, 60.0, 150.0, 200.0]], [])
    assert sample.to_dict()["boxes"][2:] == [{"label": None, "box": [50.0, 60.0, 150.0, 200.0]}]
    assert lit(picture_of(sample)) == (50, 60, 151, 201)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[PreviewedSample]:
    root = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, num_classes=2, per_class=4)
    recipes = [T.RandomResizedCrop(48), T.RandomHorizontalFlip()]
    return preview(StatefulGPULoader(FolderSource(root), batch_size=7, seed=1, transform=recipes))


def test_the_sheet_says_where_each_picture_is(
    samples: list[PreviewedSample], tmp_path: Path
) -> None:
    boxes = write_png(tmp_path / "sheet.png", samples)
    assert len(boxes) == 7
    with Image.open(tmp_path / "sheet.png") as sheet:
        for sample, box in zip(samples, boxes, strict=True):
            picture = picture_of(sample)
            paper = Image.new("RGB", picture.size, (229, 231, 235))
            paper.paste(picture, mask=picture)
            assert sheet.crop(box).tobytes() == paper.tobytes()


def test_the_dictionary_for_programs(samples: list[PreviewedSample]) -> None:
    sample = samples[1]
    fields = json.loads(json.dumps(sample.to_dict()))
    assert (fields["index"], fields["position"], fields["lane"]) == (1, 1, None)
    assert fields["size"] == [48, 48]
    drawn = fields["drawn"][0]
    assert drawn.pop("recipe") == "RandomResizedCrop"
    assert fields["crop"] == [
        *[drawn["left"], drawn["top"]],
        *[drawn["left"] + drawn["width"], drawn["top"] + drawn["height"]],
    ]
    assert fields["flips"] == ["horizontal"] * fields["drawn"][1]["acts"]
    assert sample.original is not None
    assert fields["original_size"] == list(sample.original.shape[:0:-1])


def test_indices_of_any_kind_are_reported() -> None:
    images = {(0, "a"): torch.zeros(3, 4, 4)}
    loader: Any = StatefulGPULoader(images, sampler=list(images), batch_size=1)  # type: ignore[arg-type]
    [sample] = preview(loader)
    assert json.loads(json.dumps(sample.to_dict()))["index"] == "(0, 'a')"


def test_the_page_holds_every_number_and_no_link(
    samples: list[PreviewedSample], tmp_path: Path
) -> None:
    """It fits a phone and a dark screen."""
    strange = replace(samples[0], label="<b>long & " + "wide " * 80)
    write_html(tmp_path / "page.html", [strange, *samples[1:]])
    page = (tmp_path / "page.html").read_text()
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "prefers-color-scheme: dark" in page
    assert "Coming batch: 7 samples" in page
    assert page.count('tabindex="0"') == page.count('src="data:image/png;base64,') == 7
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<b>long" not in page
    for sample in samples:
        numbers = sample.parameters[0][1]
        assert f"top {numbers['top']}, left {numbers['left']}" in page
