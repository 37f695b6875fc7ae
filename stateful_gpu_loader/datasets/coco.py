"""CocoSource: images of a folder, with boxes, labels and masks from a COCO annotation file."""

from __future__ import annotations

import os
import warnings
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stateful_gpu_loader.datasets.coco_annotations import Annotations, Segments, read_annotations
from stateful_gpu_loader.datasets.name_table import NameTable
from stateful_gpu_loader.datasets.source import Source, reads_as
from stateful_gpu_loader.datasets.storage.failures import failed
from stateful_gpu_loader.datasets.storage.memory import Memory, new_memory
from stateful_gpu_loader.datasets.storage.open_files import read_file, read_whole
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths, is_url
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.contents import ContentDigest

BoolArray = npt.NDArray[np.bool_]


class CocoSource(Source):
    """The images of an annotation file, sorted by image id, each with its objects.

    The order is that of torchvision's CocoDetection and DALI's ``fn.readers.coco``; an image's
    objects keep the file's order. A target is a dict, for n objects:

    - ``boxes``: float32 [n, 4], in pixels
    - ``labels``: int64 [n]: category ids
    - ``image_id``: int
    - ``area``: float32 [n], in pixels
    - ``iscrowd``: int64 [n]: 1 for a group
    - ``masks``: uint8 [n, height, width] of 0 and 1, as pycocotools decodes them; optional

    Images have different numbers of objects, so the loader needs ``collate_fn=ragged_collate``.
    Objects of unlisted images are left out, with a warning. Recipes that move pixels also move
    boxes and masks, and drop objects with less than a pixel of width or height left.

    Args:
        root: folder of the images, or a URL.
        annotations: the JSON file (instances), or a URL; plain or compressed. Read once, here.
        masks: whether targets include masks.
        box_format: "xyxy" for left, top, right, bottom, as in torchvision's models and in DALI with
            ``ltrb=True``; "xywh" for left, top, width, height, as in the file.
        contiguous_labels: number the categories from 1 in the file's order, as DALI does by
            default; False keeps their ids, as torchvision does.
        ratio: boxes as fractions of the image's width and height instead of pixels.
        skip_empty: leave out images without objects.
        size_threshold: leave out objects whose width or height in pixels is smaller. (DALI's
            default is 0.1.)
        include_iscrowd: False leaves out groups.

    Attributes:
        root: the folder, absolute, or the URL.
        categories: names of the categories by label.
        image_ids: int64 [num_samples], ascending, read-only.
        box_format: as given.

    Raises:
        OSError: the annotations cannot be read. (Images are opened only when they are read.)
        ValueError: the annotations are damaged or list no image, or an argument is unknown.

    >>> import json, tempfile
    >>> annotations = {
    ...     "images": [{"id": 3, "file_name": "a.jpg", "height": 4, "width": 6}],
    ...     "annotations": [{"image_id": 3, "category_id": 18, "bbox": [1, 1, 2, 3]}],
    ...     "categories": [{"id": 18, "name": "dog"}],
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/instances.json", "w") as file:
    ...         json.dump(annotations, file)
    ...     with open(f"{folder}/a.jpg", "wb") as file:
    ...         _ = file.write(b"...")
    ...     data, target = CocoSource(folder, f"{folder}/instances.json")[0]
    >>> target["boxes"], target["labels"]
    (tensor([[1., 1., 3., 4.]]), tensor([18]))
    """

    suits_processes = True
    has_spatial_targets = True
    """Recipes that move pixels must move the targets as well."""

    def __init__(
        self,
        root: AnyPath,
        annotations: AnyPath,
        *,
        masks: bool = False,
        box_format: BoxFormat = "xyxy",
        contiguous_labels: bool = False,
        ratio: bool = False,
        skip_empty: bool = False,
        size_threshold: float = 0.0,
        include_iscrowd: bool = True,
    ) -> None:
        if box_format not in ("xyxy", "xywh"):
            raise ValueError(f"{box_format = } must be 'xyxy' or 'xywh'")
        self.root = _only("root", root)
        self.box_format: BoxFormat = box_format
        self.masks = masks
        self.ratio = ratio
        path = _only("annotations", annotations)
        found = read_annotations(path, masks=masks)
        self._check(path, found)
        if found.num_unlisted:
            warnings.warn(
                f"{path!r} lists {len(found.image_ids)} images, and {found.num_unlisted} of its "
                f"annotations are of other images, such as image_id {found.unlisted_id}: they are "
                "left out. If images are missing, give the file that lists them",
                stacklevel=2,
            )
        kept: BoolArray = np.all(found.boxes[:, 2:] >= size_threshold, axis=1)
        if not include_iscrowd:
            kept &= ~found.are_crowds
        self._settle(found, kept, skip_empty=skip_empty, contiguous=contiguous_labels)
        if not len(self):
            raise ValueError(
                f"{path!r} lists {len(found.image_ids)} images and "
                f"{int(kept.sum())} objects after the filters, which leave no sample. "
                "Remedy: give another file, or skip_empty=False"
            )
        self._fingerprint: str | None = None

    def _check(self, path: str, found: Annotations) -> None:
        lacking = np.flatnonzero((found.sizes < 1).any(axis=1))
        if self.ratio and len(lacking):
            raise ValueError(
                f"{path!r} gives no height and width of image {found.image_ids[lacking[0]]}, which "
                "ratio=True needs. Remedy: ratio=False"
            )

    def _settle(
        self, found: Annotations, kept: BoolArray, *, skip_empty: bool, contiguous: bool
    ) -> None:
        counts = np.add.reduceat(np.append(kept, False).astype(np.int64), found.firsts[:-1])
        counts[found.firsts[1:] == found.firsts[:-1]] = 0
        images = np.flatnonzero(counts > 0) if skip_empty else np.arange(len(counts))
        # Leaving out images without objects keeps all objects.
        self._firsts = np.cumsum([0, *counts[images]], dtype=np.int64)
        self.image_ids = found.image_ids[images]
        self.image_ids.setflags(write=False)
        self._names = NameTable(found.file_names[i] for i in images.tolist())
        self._sizes = found.sizes[images]
        self._boxes = found.boxes[kept]
        self._areas = found.areas[kept]
        self._crowds = found.are_crowds[kept].astype(np.int64)
        self._labels = found.category_ids[kept]
        self.categories = dict(found.categories)
        if contiguous:
            numbers = {category: i for i, category in enumerate(found.categories, start=1)}
            self._labels = _renumbered(self._labels, numbers)
            self.categories = {numbers[each]: name for each, name in self.categories.items()}
        self._objects = np.flatnonzero(kept)
        self._segments: Segments | None = found.segments

    def __len__(self) -> int:
        return len(self.image_ids)

    def path(self, index: int) -> str:
        """Return the path or URL of the image at ``0 <= index < len(self)``."""
        if is_url(self.root):
            return f"{self.root.rstrip('/')}/{self._names[index]}"
        return os.path.join(self.root, self._names[index])

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        """Return the image's bytes, its target, and its path as name.

        Raises:
            OSError: the system's error, of the same type; the message has the path and the index.
        """
        path = self.path(index)
        try:
            data = _read(path, into or new_memory)
        except OSError as error:
            raise failed(error, path, f"sample {index = }") from error
        height, width = self._sizes[index].tolist()
        size = (height, width) if height > 0 and width > 0 else None
        return EncodedSample(data, self.target(index), path, size)

    def target(self, index: int) -> dict[str, Any]:
        """Return the target without reading the image."""
        own = slice(int(self._firsts[index]), int(self._firsts[index + 1]))
        target: dict[str, Any] = {
            "boxes": as_tensor(self._formatted(index, self._boxes[own])),
            "labels": as_tensor(self._labels[own]),
            "image_id": int(self.image_ids[index]),
            "area": as_tensor(self._areas[own]),
            "iscrowd": as_tensor(self._crowds[own]),
        }
        if self._segments is not None:
            objects = self._objects[own]
            # An unknown size is -1; an image without objects may have one.
            shape = (len(objects), *self._sizes[index].clip(min=0).tolist())
            target["masks"] = torch.zeros(shape, dtype=torch.uint8, device="cpu")
            for mask, number in zip(target["masks"].numpy(), objects.tolist(), strict=True):
                self._segments.draw(number, mask)
        return target

    def read_target_alone(self, index: int) -> Any:
        return self.target(index) if reads_as(self, CocoSource) else self.read(index).target

    def _object_counts(self) -> npt.NDArray[np.int64]:
        return np.diff(self._firsts)

    def move_target(
        self,
        index: int,
        target: dict[str, Any],
        motion: npt.NDArray[np.float64],
        size: tuple[int, int],
    ) -> dict[str, Any]:
        """Return the target after the image's pixels were moved: see :func:`moved`."""
        height, width = self._sizes[index].tolist()
        ratio = (height, width) if self.ratio else None
        return moved(target, motion, size, box_format=self.box_format, ratio=ratio)

    def record(self, index: int) -> dict[str, Any]:
        """Return the entries of the image and its objects, as plain values."""
        own = slice(int(self._firsts[index]), int(self._firsts[index + 1]))
        height, width = self._sizes[index].tolist()
        return {
            "image_id": int(self.image_ids[index]),
            "file_name": self._names[index],
            "height": height,
            "width": width,
            "bbox": self._boxes[own].tolist(),
            "label": self._labels[own].tolist(),
            "area": self._areas[own].tolist(),
            "iscrowd": self._crowds[own].tolist(),
        }

    def fingerprint(self) -> str:
        """Return a blake2b of the file names, ids and all data of the targets, in order.

        Copies of the images and the annotations at other paths have the same fingerprint.
        """
        if self._fingerprint is None:
            digest = ContentDigest("coco 1")
            arrays: list[npt.NDArray[Any]] = [self.image_ids, self._sizes, self._firsts]
            arrays += [self._boxes, self._areas, self._crowds, self._labels]
            if (segments := self._segments) is not None:
                arrays += [self._objects, segments.firsts, segments.ends, segments.values]
                arrays.append(segments.are_runs)
            digest.add_blocks((*self._names.blocks(), *(array.tobytes() for array in arrays)))
            digest.add(repr((self.box_format, self.ratio)).encode())
            self._fingerprint = f"{len(self)} images, {digest.text()}"
        return self._fingerprint

    def _formatted(self, index: int, boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a copy of the boxes, float32 [n, 4], in the chosen format."""
        boxes = boxes.copy()
        if self.box_format == "xyxy":
            boxes[:, 2:] += boxes[:, :2]
        if self.ratio:
            height, width = self._sizes[index].tolist()
            boxes /= np.array([width, height, width, height], dtype=np.float32)
        return boxes

    def __repr__(self) -> str:
        objects = len(self._labels)
        return f"{type(self).__name__}({self.root!r}, {len(self)} images, {objects} objects)"


def _only(name: str, path: AnyPath) -> str:
    found = as_paths(path)
    if len(found) > 1:
        raise ValueError(
            f"{name} is {len(found)} paths: {', '.join(found[:3])}. Remedy: make a source of each, "
            "and a ConcatDataset of them"
        )
    return found[0]


def _renumbered(labels: npt.NDArray[np.int64], numbers: dict[int, int]) -> npt.NDArray[np.int64]:
    unknown = set(labels.tolist()) - set(numbers)
    if unknown:
        raise ValueError(
            f"objects are of category {min(unknown)}, and the file lists no such category, so it "
            f"has no number. Remedy: contiguous_labels=False"
        )
    return np.array([numbers[label] for label in labels.tolist()], dtype=np.int64)


def _read(path: str, memory: Memory) -> torch.Tensor:
    if not is_url(path):
        return read_file(path, memory)
    return torch.from_numpy(read_whole(path))


BoxFormat = Literal["xyxy", "xywh"]
FloatArray = npt.NDArray[np.float64]

SMALLEST = 1.0
"""Smallest side in pixels of a moved box, as in torchvision's SanitizeBoundingBoxes."""

_AT_REST = np.eye(2, 3)


def moved(
    target: dict[str, Any],
    motion: FloatArray,
    size: tuple[int, int],
    *,
    box_format: BoxFormat,
    ratio: tuple[int, int] | None,
) -> dict[str, Any]:
    """Return the target of an image whose pixels were moved by an affine map and cropped.

    As in torchvision, a box becomes the smallest box around its four moved corners, clipped to the
    image. A mask takes the nearest pixel. An object with less than a pixel of width or height left
    is dropped from all fields. An area scales with the map and with the remaining share of the box;
    with masks, it is their number of pixels. If nothing moves, ``target`` is returned.

    Args:
        motion: float64 [2, 3]: maps a point (x, y, 1), in pixels from the upper left corner.
        size: (height, width) of the image after the crop.
        box_format: of the boxes in ``target`` and in the result.
        ratio: (height, width) before the motion, if boxes are fractions of it.

    >>> target = {"boxes": torch.tensor([[10.0, 0, 30, 20]]), "labels": torch.tensor([7])}
    >>> flip = np.array([[-1.0, 0, 100], [0, 1, 0]])
    >>> moved(target, flip, (50, 100), box_format="xyxy", ratio=None)["boxes"]
    tensor([[70.,  0., 90., 20.]])
    """
    if np.array_equal(motion, _AT_REST):
        return target
    before = _corners(target["boxes"].numpy().astype(np.float64), box_format, ratio)
    after = _enclosing(before, motion)
    height, width = size
    cut = after.copy()
    cut[:, 0::2] = cut[:, 0::2].clip(0, width)
    cut[:, 1::2] = cut[:, 1::2].clip(0, height)
    sides = cut[:, 2:] - cut[:, :2]
    kept = np.flatnonzero((sides >= SMALLEST).all(axis=1))
    result = dict(target)
    result["boxes"] = _boxes(cut[kept], box_format, None if ratio is None else size)
    for name in ("labels", "iscrowd"):
        if name in target:
            result[name] = target[name][torch.from_numpy(kept)]
    if "masks" in target:
        masks = moved_masks(target["masks"][torch.from_numpy(kept)], motion, size)
        result["masks"] = masks
        result["area"] = masks.sum(dim=(1, 2), dtype=torch.float32)
    elif "area" in target:
        whole = (after[kept, 2:] - after[kept, :2]).prod(axis=1)
        left = sides[kept].prod(axis=1) / np.maximum(whole, 1e-9)
        scale = abs(float(motion[0, 0] * motion[1, 1] - motion[0, 1] * motion[1, 0]))
        areas = target["area"].numpy()[kept] * scale * left
        result["area"] = as_tensor(areas.astype(np.float32))
    return result


def moved_masks(masks: Tensor, motion: FloatArray, size: tuple[int, int]) -> Tensor:
    """Return masks under an affine map, uint8 [n, height, width], from the nearest pixels.

    Without rotation or shear this is torchvision's "nearest-exact".

    Args:
        masks: uint8 [n, H, W]; H and W may be 0 if n is 0.
        motion: as for :func:`moved`.
    """
    height, width = size
    if not masks.numel():
        return torch.zeros((len(masks), height, width), dtype=torch.uint8, device="cpu")
    # Written out, because the rounding of np.linalg.inv depends on the machine's BLAS.
    (a, b, c), (d, e, f) = motion.tolist()
    area = a * e - b * d
    back = np.array([[e, -b, b * f - c * e], [-d, a, c * d - a * f]]) / area
    xs, ys = np.arange(width) + 0.5, (np.arange(height) + 0.5)[:, np.newaxis]
    # A point halfway between two pixels, up to rounding, belongs to the second.
    columns = np.floor(np.round(back[0, 0] * xs + back[0, 1] * ys + back[0, 2], 6)).astype(np.int64)
    rows = np.floor(np.round(back[1, 0] * xs + back[1, 1] * ys + back[1, 2], 6)).astype(np.int64)
    old_height, old_width = masks.shape[1:]
    inside = (columns >= 0) & (columns < old_width) & (rows >= 0) & (rows < old_height)
    chosen = masks.numpy()[:, rows.clip(0, old_height - 1), columns.clip(0, old_width - 1)]
    return as_tensor(chosen * inside.astype(np.uint8))


def as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """Return a copy on the CPU, whatever torch's default device is.

    Empty arrays from NumPy computations may have other strides than torch's, with which ``view``
    fails. The copy has torch's strides.
    """
    given = torch.from_numpy(array)
    return torch.empty(given.shape, dtype=given.dtype, device="cpu").copy_(given)


def _corners(boxes: FloatArray, box_format: BoxFormat, ratio: tuple[int, int] | None) -> FloatArray:
    if box_format == "xywh":
        boxes = np.concatenate((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]), axis=1)
    return boxes if ratio is None else boxes * _scale(ratio)


def _boxes(corners: FloatArray, box_format: BoxFormat, ratio: tuple[int, int] | None) -> Tensor:
    boxes = corners if ratio is None else corners / _scale(ratio)
    if box_format == "xywh":
        boxes = np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1)
    return as_tensor(boxes.astype(np.float32))


def _scale(size: tuple[int, int]) -> FloatArray:
    height, width = size
    return np.array([width, height, width, height], dtype=np.float64)


def _enclosing(boxes: FloatArray, motion: FloatArray) -> FloatArray:
    xs, ys = boxes[:, [0, 2, 2, 0]], boxes[:, [1, 1, 3, 3]]
    new_xs = motion[0, 0] * xs + motion[0, 1] * ys + motion[0, 2]
    new_ys = motion[1, 0] * xs + motion[1, 1] * ys + motion[1, 2]
    lows = np.stack((new_xs.min(axis=1), new_ys.min(axis=1)), axis=1)
    highs = np.stack((new_xs.max(axis=1), new_ys.max(axis=1)), axis=1)
    return np.concatenate((lows, highs), axis=1)
