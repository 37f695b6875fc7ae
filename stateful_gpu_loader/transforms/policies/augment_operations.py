"""The pixels of TrivialAugmentWide and RandAugment, for an image or a batch.

In a batch each image has its own operation: those of one are gathered and go through it in one
call, with a magnitude for each; shears, translations and rotations are one call together. Which
image goes where is known on the CPU, so nothing waits for the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.device_numbers import on_device
from stateful_gpu_loader.transforms.color.adjustments import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
)
from stateful_gpu_loader.transforms.color.levels import autocontrast, equalize, posterize, solarize
from stateful_gpu_loader.transforms.color.sharpness import adjust_sharpness
from stateful_gpu_loader.transforms.policies.augment_space import Operation
from stateful_gpu_loader.transforms.policies.augment_warps import Sampling
from stateful_gpu_loader.transforms.recipe import FloatArray

_WARP = int(Operation.SHEAR_X)
_QUARTER_TURNS = len(Operation)
"""Groups: all that is sampled, and ``_QUARTER_TURNS + k``: k right angles, without sampling."""
_GEOMETRIC = range(Operation.SHEAR_X, Operation.ROTATE + 1)
_WITH_FACTOR = range(Operation.BRIGHTNESS, Operation.SHARPNESS + 1)

_WITH_PARAMETER: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    Operation.BRIGHTNESS: adjust_brightness,
    Operation.COLOR: adjust_saturation,
    Operation.CONTRAST: adjust_contrast,
    Operation.SHARPNESS: adjust_sharpness,
    Operation.POSTERIZE: posterize,
    Operation.SOLARIZE: solarize,
}
_WITHOUT_PARAMETER: dict[int, Callable[[Tensor], Tensor]] = {
    Operation.AUTO_CONTRAST: autocontrast,
    Operation.EQUALIZE: equalize,
}


def augment(image: Tensor, operation: int, magnitude: float, how: Sampling) -> Tensor:
    """Do one operation to one image, as torchvision's automatic augmentations do.

    Args:
        image: [C, H, W] of 1 or 3 channels, uint8 or float in [0, 1].
        operation: see :class:`Operation`.
        magnitude: in the operation's unit.
        how: what to do where pixels move.

    Raises:
        TypeError: the image has another dtype, or channels that the operation cannot take.

    >>> image = torch.tensor([10, 200], dtype=torch.uint8).view(1, 1, 2)
    >>> augment(image, Operation.SOLARIZE, 0.5, Sampling()).flatten()
    tensor([10, 55], dtype=torch.uint8)
    """
    _check_dtype(image)
    group = _group(operation, magnitude, image.shape[-1] == image.shape[-2])
    if group == Operation.IDENTITY:
        return image
    # What follows works plane by plane, at twice the speed where planes are contiguous.
    images = image.contiguous().unsqueeze(0)
    if group == _WARP:
        row = np.array([operation]), np.array([magnitude])
        return how.warp(images, *row).squeeze(0)
    parameter = _parameter(operation, magnitude)
    parameters = torch.full((1, 1, 1, 1), parameter, dtype=torch.float64, device=image.device)
    return _carry_out(group, images, parameters).squeeze(0)


def augment_batch(
    images: Tensor, operations: IndexArray, magnitudes: FloatArray, how: Sampling
) -> Tensor:
    """As :func:`augment`, for n images [n, C, H, W] with an operation and a magnitude [n] each.

    >>> images = torch.tensor([[10, 200]] * 2, dtype=torch.uint8).view(2, 1, 1, 2)
    >>> operations = np.array([Operation.SOLARIZE, Operation.TRANSLATE_X])
    >>> augment_batch(images, operations, np.array([0.5, 1.2]), Sampling(fill=0.0)).flatten(1)
    tensor([[10, 55],
            [ 0, 10]], dtype=torch.uint8)
    """
    _check_dtype(images)
    is_square = images.shape[-1] == images.shape[-2]
    pairs = list(zip(operations.tolist(), magnitudes.tolist(), strict=True))
    groups = np.array([_group(*pair, is_square) for pair in pairs], dtype=np.int64)
    order = np.argsort(groups)
    packed = np.array([order, [_parameter(*pairs[i]) for i in order]], dtype=np.float64)
    numbers = on_device(packed, images.device)
    places, parameters = numbers[0].to(torch.int64), numbers[1].view(-1, 1, 1, 1)
    augmented = torch.empty(images.shape, dtype=images.dtype, device=images.device)
    for part in _runs(groups[order]):
        rows, chosen = order[part], images.index_select(0, places[part])
        group = int(groups[rows[0]])
        if group == _WARP:
            made = how.warp(chosen, operations[rows], magnitudes[rows])
        else:
            made = _carry_out(group, chosen, parameters[part])
        augmented.index_copy_(0, places[part], made)
    return augmented


def _carry_out(group: int, images: Tensor, parameters: Tensor) -> Tensor:
    """All but warps: images [n, C, H, W] and parameters float64 [n, 1, 1, 1]."""
    if group in _WITH_PARAMETER:
        return _WITH_PARAMETER[group](images, parameters)
    if group in _WITHOUT_PARAMETER:
        return _WITHOUT_PARAMETER[group](images)
    if group > _QUARTER_TURNS:
        return torch.rot90(images, group - _QUARTER_TURNS, dims=(-2, -1))
    return images


def _group(operation: int, magnitude: float, is_square: bool) -> int:
    """What goes in one call: an operation, all that is sampled, or a number of quarter turns.

    torchvision turns by right angles without sampling, which shows in the last bits of floats.
    """
    if operation not in _GEOMETRIC:
        return operation
    if operation == Operation.ROTATE:
        turns = magnitude / 90.0
        if turns.is_integer() and (is_square or turns % 2 == 0):
            quarters = int(turns) % 4
            return _QUARTER_TURNS + quarters if quarters else Operation.IDENTITY
    return _WARP


def _parameter(operation: int, magnitude: float) -> float:
    """What an operation on colors takes: a factor, a number of levels or a threshold."""
    if operation == Operation.POSTERIZE:
        return 2.0 ** int(magnitude)
    return 1.0 + magnitude if operation in _WITH_FACTOR else magnitude


def _runs(groups: IndexArray) -> Iterator[slice]:
    """Where equal groups lie in a sorted array."""
    bounds = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    for begin, end in itertools.pairwise(bounds):
        if begin < end:
            yield slice(begin, end)


def _check_dtype(images: Tensor) -> None:
    if images.dtype is not torch.uint8 and not images.is_floating_point():
        raise TypeError(f"images have dtype {images.dtype}. Remedy: pass uint8, or float in [0, 1]")
