"""Finds the images, labels, boxes and masks in a batch of any form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.ops import box_convert
from torchvision.transforms.v2 import functional as F

Split = tuple[list[Tensor], list[Any]]


@dataclass(frozen=True, eq=False)
class Objects:
    """Boxes and masks of one image."""

    boxes: Tensor
    """float32 [n, 4]: left, top, right, bottom in pixels; n may be 0 if there are masks."""
    labels: tuple[str, ...]
    """Labels of the n boxes; empty if they have no labels."""
    masks: Tensor | None
    """bool [m, H, W]."""


def split_batch(batch: Any, *, batched: bool = True) -> Split | None:
    """Return the images [C, H, W] of a batch and as many targets; None if it has no images.

    The images are one tensor [n, C, H, W] or a list of tensors, in a tuple, list or dict, next to
    the targets; or the batch is a list of samples. In a dict, a target is a dict of the other
    entries.

    >>> images, targets = split_batch({"pixels": torch.zeros(2, 3, 4, 4), "label": [5, 6]})
    >>> len(images), targets
    (2, [{'label': 5}, {'label': 6}])
    """
    if not batched:
        return split_batch([batch]) or split_batch(batch)
    images = _as_images(batch)
    if images is not None:
        return images, [None] * len(images)
    if isinstance(batch, Mapping):
        return _beside(dict(batch))
    if not isinstance(batch, list | tuple) or not batch:
        return None
    found = _beside(dict(enumerate(batch)))
    if found is not None:
        images, targets = found
        return images, [_alone(target) for target in targets]
    samples = [_image_of_sample(sample) for sample in batch]
    known = [sample for sample in samples if sample is not None]
    if len(known) < len(samples):
        return None
    return [image for image, _ in known], [target for _, target in known]


def _as_images(value: Any) -> list[Tensor] | None:
    if isinstance(value, Tensor) and value.ndim == 4:
        value = list(value.unbind(0))
    if isinstance(value, list | tuple) and value and all(map(_is_image, value)):
        return list(value)
    return None


def _is_image(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and not isinstance(value, tv_tensors.Mask)
        and value.ndim == 3
        and value.shape[0] in (1, 3)
        and value.numel() > 0
        and (value.dtype is torch.uint8 or value.is_floating_point())
    )


def _beside(parts: dict[Any, Any]) -> Split | None:
    """Return the images in one of several parts, and the entries of the other parts for each."""
    for name, part in parts.items():
        images = _as_images(part)
        if images is not None:
            others = {key: value for key, value in parts.items() if key != name}
            return images, [_entries(others, i, len(images)) for i in range(len(images))]
    return None


def _entries(parts: Mapping[Any, Any], i: int, n: int) -> dict[Any, Any]:
    """Return entry i of each part with n entries, also in nested dicts."""
    found: dict[Any, Any] = {}
    for key, value in parts.items():
        if isinstance(value, Mapping):
            inner = _entries(value, i, n)
            if len(inner) == len(value):
                found[key] = inner
        elif isinstance(value, list | tuple | Tensor) and _length(value) == n:
            found[key] = value[i]
    return found


def _length(value: Any) -> int:
    return 0 if isinstance(value, Tensor) and value.ndim == 0 else len(value)


def _alone(target: dict[Any, Any]) -> Any:
    """Return the only target of a tuple (images, targets), or all targets."""
    if len(target) == 1:
        return next(iter(target.values()))
    return target or None


def _image_of_sample(sample: Any) -> tuple[Tensor, Any] | None:
    if _is_image(sample):
        return sample, None
    if isinstance(sample, Mapping):
        parts: dict[Any, Any] = dict(sample)
    elif isinstance(sample, list | tuple):
        parts = dict(enumerate(sample))
    else:
        return None
    for name, part in parts.items():
        if _is_image(part):
            rest = {key: value for key, value in parts.items() if key != name}
            return part, rest if isinstance(sample, Mapping) else _alone(rest)
    return None


def setting_of(dataset: Any, name: str) -> Any:
    """Return an attribute of a dataset or of the dataset in torch's wrappers; None if missing.

    Several datasets in a wrapper must agree.
    """
    if getattr(dataset, name, None) is not None:
        return getattr(dataset, name)
    if hasattr(dataset, "dataset"):
        return setting_of(dataset.dataset, name)
    inner = [setting_of(each, name) for each in getattr(dataset, "datasets", ())]
    return inner[0] if inner and all(each == inner[0] for each in inner) else None


def named_classes(dataset: Any) -> Mapping[int, str]:
    """Return the class names of a dataset by number: ``classes``, or COCO's ``categories``."""
    categories = setting_of(dataset, "categories")
    if isinstance(categories, Mapping):
        return categories
    classes = setting_of(dataset, "classes")
    return dict(enumerate(map(str, classes))) if isinstance(classes, list | tuple) else {}


def label_of(target: Any, names: Mapping[int, str]) -> str:
    """Return a target in one line: a class, or the shares of mixed classes; otherwise "".

    >>> label_of(torch.tensor([0.7, 0.0, 0.3]), {0: "cat", 2: "dog"})
    'cat 0.70, dog 0.30'
    """
    if isinstance(target, Mapping):
        if "boxes" in target:
            return f"{len(target['boxes'])} objects"
        shown = {name: label_of(value, names) for name, value in target.items()}
        return ", ".join(
            text
            if name in ("label", "labels", "target", "class") or isinstance(name, int)
            else f"{name} {text}"
            for name, text in shown.items()
            if text
        )
    if isinstance(target, Tensor):
        if target.ndim == 1 and target.is_floating_point() and len(target) > 1:
            return _shares(target.tolist(), names)
        if target.numel() != 1:
            return ""
        target = target.item()
    if isinstance(target, bool | float):
        return str(target)
    if isinstance(target, int):
        return str(names.get(target, target))
    return target if isinstance(target, str) else ""


def _shares(values: list[float], names: Mapping[int, str]) -> str:
    """Return the largest shares of classes; "" if the values are not shares that add up to 1."""
    if min(values) < 0 or abs(sum(values) - 1) > 0.01:
        return ""
    shares = sorted(((-share, i) for i, share in enumerate(values) if share > 0))
    more = ", ..." if len(shares) > 3 else ""
    return ", ".join(f"{names.get(i, i)} {-share:.2f}" for share, i in shares[:3]) + more


def objects_of(
    target: Any,
    image: Tensor,
    names: Mapping[int, str],
    box_format: str,
    in_parts: bool,
) -> Objects | None:
    """Return the boxes and masks of a target as in torchvision's detection models.

    Args:
        target: boxes under ``"boxes"``, labels under ``"labels"``, masks [n, H, W] under
            ``"masks"``; or a ``tv_tensors.Mask`` or ``BoundingBoxes``.
        image: the image of the boxes and masks, [C, H, W].
        names: names of the classes.
        box_format: format of boxes without a format of their own.
        in_parts: whether boxes are fractions of the image's sides.
    """
    if isinstance(target, tv_tensors.BoundingBoxes):
        target = {"boxes": target}
    elif isinstance(target, tv_tensors.Mask):
        target = {"masks": target}
    elif isinstance(target, Mapping) and not {"boxes", "masks"} & target.keys():
        inner = [objects_of(each, image, names, box_format, in_parts) for each in target.values()]
        return next((each for each in inner if each is not None), None)
    elif isinstance(target, list | tuple) and len(target) <= 8:
        inner = [objects_of(each, image, names, box_format, in_parts) for each in target]
        return next((each for each in inner if each is not None), None)
    if not isinstance(target, Mapping):
        return None
    size = (image.shape[1], image.shape[2])
    given, masks = target.get("boxes"), target.get("masks")
    boxes = torch.zeros(0, 4)
    if isinstance(given, tv_tensors.BoundingBoxes):
        given = F.convert_bounding_box_format(given, new_format=tv_tensors.BoundingBoxFormat.XYXY)
        boxes = given.as_subclass(Tensor).to("cpu", torch.float32)
    elif isinstance(given, Tensor):
        boxes = box_convert(given.to("cpu", torch.float32).view(-1, 4), box_format, "xyxy")
        if in_parts:
            height, width = size
            boxes = boxes * torch.tensor([width, height, width, height])
    shown = None
    if isinstance(masks, Tensor) and masks.shape[-2:] == size:
        shown = masks.as_subclass(Tensor).cpu().view(-1, *size) != 0
    labels = target.get("labels")
    numbers = labels.tolist() if isinstance(labels, Tensor) and labels.ndim == 1 else []
    texts = tuple(str(names.get(number, number)) for number in numbers)
    return Objects(boxes, texts if len(texts) == len(boxes) else (), shown)
