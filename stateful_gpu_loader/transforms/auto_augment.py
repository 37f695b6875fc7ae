"""AutoAugment and AugMix: learned pairs of operations, and mixtures of chains of operations."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import Fill, Interpolation
from stateful_gpu_loader.transforms.batches.device import on_device
from stateful_gpu_loader.transforms.mixing import beta_share, checked_alpha
from stateful_gpu_loader.transforms.policies import (
    AugmentPolicy,
    Operation,
    augment_batch,
    magnitudes_for_sizes,
    with_signs,
)
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray

_NUM_BINS = 10
_BY_TORCHVISIONS_NAME = {one.name.title().replace("_", ""): one for one in Operation}


class AutoAugment(AugmentPolicy):
    """Apply one of 25 learned pairs of operations, as ``torchvision.transforms.v2.AutoAugment``.

    Cubuk, Zoph, Mané, Vasudevan and Le, "AutoAugment: Learning augmentation strategies from data",
    CVPR 2019.

    Numbers: for each of the two operations, its :class:`Operation` and its magnitude; 0
    (IDENTITY) for an operation that is not applied.

    Args:
        policy: dataset on which the pairs were learned: "imagenet", "cifar10", "svhn", or
            torchvision's ``AutoAugmentPolicy``.
        interpolation: "nearest" or "bilinear".
        fill: value outside the image: one number, or one per channel. None gives zeros, into
            which the border is blended.

    >>> recipe = AutoAugment()
    >>> recipe.draw(np.array([[0.0, 0.3, 0.5, 0.9, 0.9]]), np.array([[375, 500]])).numbers
    array([[10.,  4.,  5., 30.]])
    """

    num_draws = 5
    number_names = ("operation_1", "magnitude_1", "operation_2", "magnitude_2")

    def __init__(
        self,
        policy: Any = "imagenet",
        interpolation: Interpolation = "nearest",
        fill: Fill = None,
    ) -> None:
        from torchvision.transforms import autoaugment

        super().__init__(interpolation, fill)
        self.policy = policy.value if isinstance(policy, Enum) else policy
        known = [one.value for one in autoaugment.AutoAugmentPolicy]
        if self.policy not in known:
            raise ValueError(f"{policy = } must be one of {', '.join(map(repr, known))}")
        # v1 has its table of pairs in a public attribute.
        pairs = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(self.policy)).policies
        names, chances, bins = np.moveaxis(np.array(pairs, dtype=object), -1, 0)
        operations = [[_BY_TORCHVISIONS_NAME[name] for name in pair] for pair in names]
        self._operations = np.array(operations, dtype=np.int64)
        self._chances = chances.astype(np.float64)
        self._bins = np.array([[bin_ or 0 for bin_ in pair] for pair in bins], dtype=np.int64)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        pairs = np.floor(uniforms[:, 0] * len(self._operations)).astype(np.int64)
        numbers = np.zeros((len(sizes), 4))
        for i in (0, 1):
            operations, bins = self._operations[pairs, i], self._bins[pairs, i]
            values = magnitudes_for_sizes(operations, bins, _NUM_BINS, sizes)
            values = with_signs(operations, values, uniforms[:, 3 + i])
            acts = uniforms[:, 1 + i] < self._chances[pairs, i]
            numbers[acts, 2 * i], numbers[acts, 2 * i + 1] = operations[acts], values[acts]
        return Draw(numbers, sizes)


_MOST_DEEP = 3
_RESOLUTION = 2.0**24
_SPACE = np.array(
    [
        *range(Operation.SHEAR_X, Operation.ROTATE + 1),
        *range(Operation.POSTERIZE, Operation.EQUALIZE + 1),
        *range(Operation.BRIGHTNESS, Operation.SHARPNESS + 1),
    ]
)
_NUM_PARTIAL = 9


class AugMix(AugmentPolicy):
    """Blend an image with chains of operations on it, as ``torchvision.transforms.v2.AugMix``.

    Hendrycks, Mu, Cubuk, Zoph, Gilmer and Lakshminarayanan, "AugMix: A simple data processing
    method to improve robustness and uncertainty", ICLR 2020.

    Numbers: the weight of the image (``weight_0``) and of each chain, multiples of 2**-24; then,
    for each operation of each chain, its :class:`Operation` and its magnitude. Shorter chains are
    filled with 0 (IDENTITY).

    Args:
        severity: number of the ten magnitudes that can be drawn, weakest first; 1 to 10.
        mixture_width: number of chains, at least 1.
        chain_depth: number of operations in a chain; at most 0 to draw 1, 2 or 3 for each chain.
        alpha: parameter of the Dirichlet distributions of the weights; 0.001 to 10000.
        all_ops: whether the operations include brightness, color, contrast and sharpness.
        interpolation: "nearest" or "bilinear".
        fill: value outside the image: one number, or one per channel. None gives zeros, into
            which the border is blended.

    >>> recipe = AugMix(mixture_width=1, chain_depth=1)
    >>> recipe.draw(np.array([[0.25, 0.5, 0.9, 0.33, 0.9, 0.9]]), np.array([[375, 500]])).numbers
    array([[0.25      , 0.75      , 5.        , 6.66666651]])
    """

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int = -1,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: Interpolation = "bilinear",
        fill: Fill = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.severity = operator.index(severity)
        self.mixture_width = operator.index(mixture_width)
        self.chain_depth = operator.index(chain_depth)
        self.alpha = checked_alpha(alpha)
        self.all_ops = bool(all_ops)
        if not 1 <= self.severity <= _NUM_BINS:
            raise ValueError(f"{severity = } must be from 1 to {_NUM_BINS}")
        if self.mixture_width < 1:
            raise ValueError(f"{mixture_width = } must be at least 1")
        self._deepest = self.chain_depth if self.chain_depth > 0 else _MOST_DEEP
        self._num_weights = 1 + self.mixture_width
        self.num_draws = 1 + 2 * self.mixture_width + 3 * self.mixture_width * self._deepest
        chains = range(1, self.mixture_width + 1)
        self.number_names = (
            *(f"weight_{i}" for i in range(self._num_weights)),
            *(
                f"{name}_{chain}_{place}"
                for chain in chains
                for place in range(1, self._deepest + 1)
                for name in ("operation", "magnitude")
            ),
        )

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        n, width, deepest = len(sizes), self.mixture_width, self._deepest
        weights = np.array([self._weights(row) for row in uniforms[:, : 1 + width].tolist()])
        depths = np.full((n, width), deepest)
        if self.chain_depth <= 0:
            depths = np.floor(uniforms[:, 1 + width : 1 + 2 * width] * _MOST_DEEP) + 1
        chosen, levels, signs = np.moveaxis(
            uniforms[:, 1 + 2 * width :].reshape(n, width, deepest, 3), -1, 0
        )
        space = _SPACE if self.all_ops else _SPACE[:_NUM_PARTIAL]
        steps = np.zeros((n, width, deepest, 2))
        for chain in range(width):
            for place in range(deepest):
                operations = space[np.floor(chosen[:, chain, place] * len(space)).astype(np.int64)]
                bins = np.floor(levels[:, chain, place] * self.severity).astype(np.int64)
                values = magnitudes_for_sizes(operations, bins, _NUM_BINS, sizes, 1.0 / 3.0)
                # Four bits fewer than in the other policies.
                values = np.where(operations == Operation.POSTERIZE, values - 4.0, values)
                values = with_signs(operations, values, signs[:, chain, place])
                acts = place < depths[:, chain]
                steps[acts, chain, place, 0] = operations[acts]
                steps[acts, chain, place, 1] = values[acts]
        weights = weights.reshape(n, self._num_weights)
        flat = steps.reshape(n, 2 * width * deepest)
        return Draw(np.concatenate((weights, flat), axis=1), sizes)

    def _weights(self, uniforms: list[float]) -> list[float]:
        """Return weights of the image and of the chains, with a sum of 1."""
        own = beta_share(self.alpha, uniforms[0])
        logs = [log_gamma_quantile(self.alpha, uniform) for uniform in uniforms[1:]]
        parts = [math.exp(log - max(logs)) for log in logs]
        rest = (1.0 - own) / math.fsum(parts)
        return [own, *(round(part * rest * _RESOLUTION) / _RESOLUTION for part in parts)]

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return self.apply_batch(image.unsqueeze(0), np.array([numbers])).squeeze(0)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        n, dtype = len(images), torch.promote_types(images.dtype, torch.float32)
        weights = on_device(numbers[:, : self._num_weights], images.device).to(dtype)
        steps = numbers[:, self._num_weights :].reshape(n, self.mixture_width, self._deepest, 2)
        mixed = images.to(dtype) * weights[:, 0].view(n, 1, 1, 1)
        for chain in range(self.mixture_width):
            made = images
            for place in range(self._deepest):
                operations = steps[:, chain, place, 0].astype(np.int64)
                magnitudes = steps[:, chain, place, 1].astype(np.float64)
                made = augment_batch(made, operations, magnitudes, self._sampling)
            mixed = mixed.add_(made.to(dtype) * weights[:, 1 + chain].view(n, 1, 1, 1))
        return mixed.to(images.dtype)


_MOST_STEPS = 200
_SMALLEST = 2.0**-60


def log_gamma_quantile(alpha: float, uniform: float) -> float:
    """Return the log of the x at which the distribution function of Gamma(alpha, 1) is ``uniform``.

    Newton's method on logarithms starts at the left: log P(alpha, x) is concave in log x, so no
    step passes the solution. P(alpha, x) is a sum of positive terms (DLMF 8.11.4), so nothing
    cancels. The error is below 1e-8 up to a uniform of 0.999.

    Args:
        alpha: 1e-3 to 1e4.
        uniform: 0 <= uniform < 1; values below 2**-60 count as 2**-60.

    >>> round(log_gamma_quantile(1.0, 0.5), 9), round(log_gamma_quantile(2.5, 0.9), 9)
    (-0.366512921, 1.530000352)
    """
    uniform = max(uniform, _SMALLEST)
    if alpha == 1.0:
        return math.log(-math.log1p(-uniform))
    target = math.log(uniform) + math.lgamma(alpha + 1.0)
    log_x = target / alpha
    for _ in range(_MOST_STEPS):
        x = math.exp(log_x)
        total = term = 1.0
        k = 1
        while term > 1e-17 * total:
            term *= x / (alpha + k)
            total += term
            k += 1
        step = (target - (alpha * log_x - x + math.log(total))) * total / alpha
        log_x += step
        if step <= 1e-12 * max(1.0, abs(log_x)):
            break
    return log_x
