"""MixUp and CutMix: mix the samples of a batch, including their labels.

Each sample is mixed with the sample before it in the batch, and the first with the last, as in
torchvision.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from stateful_gpu_loader.transforms.recipe import BatchRecipe, FloatArray, Numbers

LOWEST_ALPHA, HIGHEST_ALPHA = 1e-3, 1e4

_RESOLUTION = 2.0**24
_MOST_STEPS = 100
_LOG_2, _LOG_4 = math.log(2.0), math.log(4.0)


def checked_alpha(alpha: float) -> float:
    """Return alpha as a float.

    Raises:
        ValueError: alpha is not within 1e-3 and 1e4.
    """
    if not LOWEST_ALPHA <= alpha <= HIGHEST_ALPHA:
        raise ValueError(
            f"{alpha = } is outside {LOWEST_ALPHA} <= alpha <= {HIGHEST_ALPHA}. Remedy: pass a "
            "number in this range, such as 1.0 for uniform shares"
        )
    return float(alpha)


def beta_quantile(alpha: float, uniform: float) -> float:
    """Return the x at which the distribution function of Beta(alpha, alpha) is ``uniform``.

    For x <= 1/2 every term of this series is positive (DLMF 8.17.7 after Pfaff's transformation):

        ``S(x) = sum over k of x**k * (2a)(2a + 1)...(2a + k - 1) / ((a + 1)(a + 2)...(a + k))``
        ``I(x; a, a) = (4 x (1 - x))**a * S(x) / (2 * S(1/2))``

    Nothing cancels, and S(1/2) replaces the gamma function, because I(1/2) is 1/2. The other half
    follows by symmetry. Newton's method solves the equation on logarithms; the error is below
    1e-13.

    Args:
        alpha: 1e-3 to 1e4. A larger alpha needs more terms: 30 us up to 3, 4 ms at 1e4.
        uniform: 0 <= uniform < 1.

    >>> round(beta_quantile(2.0, 0.104), 12), beta_quantile(1.0, 0.75), beta_quantile(0.3, 0.5)
    (0.2, 0.75, 0.5)
    """
    if uniform > 0.5:
        return 1.0 - beta_quantile(alpha, 1.0 - uniform)
    if uniform <= 0.0:
        return 0.0
    target = math.log(uniform) + _LOG_2 + math.log(_series(alpha, 0.5))
    # Monotone from this start: log I is concave in log x for alpha > 1, and convex below.
    log_x = -_LOG_2
    for _ in range(_MOST_STEPS):
        x = math.exp(log_x)
        series = _series(alpha, x)
        reached = alpha * (_LOG_4 + log_x + math.log1p(-x)) + math.log(series)
        step = (target - reached) * (1.0 - x) * series / alpha
        log_x += step
        if abs(step) <= 1e-15 * max(1.0, abs(log_x)):
            break
    return math.exp(log_x)


def beta_share(alpha: float, uniform: float) -> float:
    """Return :func:`beta_quantile`, rounded to a multiple of 2**-24.

    The result and 1 minus it are exact in float32, and C libraries agree on them.

    >>> beta_share(0.2, 0.3) * 2**24
    971075.0
    """
    return round(beta_quantile(alpha, uniform) * _RESOLUTION) / _RESOLUTION


def _series(alpha: float, x: float) -> float:
    total = term = 1.0
    k = 0
    while term > 1e-17 * total:
        term *= x * (2.0 * alpha + k) / (alpha + 1.0 + k)
        total += term
        k += 1
    return total


class BatchMixing(BatchRecipe):
    """Base of batch recipes that mix each sample with its partner.

    Args:
        alpha: the share of a sample is drawn from Beta(alpha, alpha).
        num_classes: length of the mixed labels; may be None for labels [n, num_classes].
        labels_getter: must be "default"; v2's functions are not supported.
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        num_classes: int | None = None,
        labels_getter: str = "default",
    ) -> None:
        if labels_getter != "default":
            raise ValueError(
                f"{labels_getter = } is not supported. Remedy: leave it out and pass images and "
                "labels, in this order"
            )
        self.alpha = checked_alpha(alpha)
        self.num_classes = None if num_classes is None else operator.index(num_classes)
        self.labels_getter = labels_getter
        if self.num_classes is not None and self.num_classes < 1:
            raise ValueError(f"{num_classes = } must be at least 1")

    def _mix_labels(self, labels: Tensor, share: float) -> Tensor:
        """Mix labels [n, num_classes] as floats, see :func:`mix`."""
        if labels.ndim == 1:
            labels = one_hot(labels, self.num_classes or -1)
        weights = labels if labels.is_floating_point() else labels.to(torch.float32)
        return mix(weights, share)

    def _check(self, images: Tensor, labels: Tensor) -> None:
        name = type(self).__name__
        if labels.ndim not in (1, 2):
            raise ValueError(
                f"{name} got labels of shape {list(labels.shape)}. Remedy: pass int64 [n] or "
                "[n, num_classes]"
            )
        if labels.ndim == 1 and self.num_classes is None:
            raise ValueError(
                f"{name} got labels [n] but no number of classes. Remedy: "
                f"build it as {name}(num_classes=...)"
            )
        if labels.ndim == 1 and labels.dtype is not torch.int64:
            raise TypeError(
                f"{name} got labels [n] of {labels.dtype}. Remedy: pass int64 class numbers"
            )
        if labels.ndim == 2 and self.num_classes not in (None, labels.shape[1]):
            raise ValueError(
                f"{name}(num_classes={self.num_classes}) got labels of shape "
                f"{list(labels.shape)}. Remedy: make both equal, or leave num_classes out"
            )
        if images.ndim != 4 or len(images) != len(labels):
            raise ValueError(
                f"{name} got images of shape {list(images.shape)} and {len(labels)} labels. "
                "Remedy: pass a batch of images, [n, C, H, W], and a label for each"
            )


def mix(values: Tensor, share: float) -> Tensor:
    """Mix ``share`` of each row with the rest of the row before it, in torchvision's order of
    steps.

    >>> mix(torch.tensor([[1.0], [0.0]]), 0.75)
    tensor([[0.7500],
            [0.2500]])
    """
    return values.roll(1, 0).mul_(1.0 - share).add_(values.mul(share))


class MixUp(BatchMixing):
    """Blend each image with the one before it, as ``torchvision.transforms.v2.MixUp``.

    Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018.

    Numbers: the share of each image, one for the whole batch, a multiple of 2**-24.

    Args:
        alpha: the share is drawn from Beta(alpha, alpha); 0.001 to 10000.
        num_classes: length of the mixed labels; may be None for labels [n, num_classes].
        labels_getter: must be "default"; v2's functions are not supported.

    >>> import numpy as np, torch
    >>> recipe = MixUp(num_classes=3)
    >>> numbers = recipe.draw(np.array([0.75]), 2, (1, 1))
    >>> images, labels = torch.tensor([1.0, 0.0]).view(2, 1, 1, 1), torch.tensor([0, 2])
    >>> images, labels = recipe.apply(images, labels, numbers)
    >>> images.flatten(), labels
    (tensor([0.7500, 0.2500]), tensor([[0.7500, 0.0000, 0.2500],
            [0.2500, 0.0000, 0.7500]]))
    """

    num_draws = 1

    def draw(self, uniforms: FloatArray, num_samples: int, size: tuple[int, int]) -> Numbers:
        return (beta_share(self.alpha, float(uniforms[0])),)

    def apply(
        self, images: Tensor, labels: Tensor, numbers: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """Mix the batch; the arguments are not changed.

        Args:
            images: float [n, C, H, W].
            labels: int64 [n], or [n, num_classes].
            numbers: from :meth:`draw`.

        Returns:
            Images, and float labels [n, num_classes].

        Raises:
            TypeError: the images are not float, or labels [n] not int64.
            ValueError: images and labels do not fit each other or ``num_classes``.
        """
        self._check(images, labels)
        if not images.is_floating_point():
            raise TypeError(
                f"MixUp got images of {images.dtype}, which cannot hold blended values. Remedy: "
                "convert them to float first, with Normalize(mean, std) or "
                "ToDtype(torch.float32, scale=True)"
            )
        (share,) = numbers
        return mix(images, share), self._mix_labels(labels, share)


class CutMix(BatchMixing):
    """Paste a box of the image before into each image, as ``torchvision.transforms.v2.CutMix``.

    Yun, Han, Oh, Chun, Choe and Yoo, "CutMix: Regularization Strategy to Train Strong Classifiers
    with Localizable Features", ICCV 2019.

    Numbers: one box for the whole batch, as left, top, right and bottom in pixels; then the share
    of each image's own pixels.

    Args:
        alpha: the share, before the box is clipped at the image's border, is drawn from
            Beta(alpha, alpha); 0.001 to 10000.
        num_classes: length of the mixed labels; may be None for labels [n, num_classes].
        labels_getter: must be "default"; v2's functions are not supported.

    >>> import numpy as np
    >>> CutMix(num_classes=10).draw(np.array([0.75, 0.5, 0.9]), 64, (100, 200))
    (50.0, 65.0, 150.0, 100.0, 0.825)
    """

    num_draws = 3

    def draw(self, uniforms: FloatArray, num_samples: int, size: tuple[int, int]) -> Numbers:
        height, width = size
        share = beta_share(self.alpha, float(uniforms[0]))
        middle_x, middle_y = int(uniforms[1] * width), int(uniforms[2] * height)
        # These operations are rounded the same everywhere.
        half_side = 0.5 * math.sqrt(1.0 - share)
        half_width, half_height = int(half_side * width), int(half_side * height)
        left, right = max(middle_x - half_width, 0), min(middle_x + half_width, width)
        top, bottom = max(middle_y - half_height, 0), min(middle_y + half_height, height)
        kept = 1.0 - (right - left) * (bottom - top) / (width * height)
        return float(left), float(top), float(right), float(bottom), kept

    def apply(
        self, images: Tensor, labels: Tensor, numbers: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """Mix the batch; the arguments are not changed.

        Args:
            images: [n, C, H, W] of any dtype, of the size that ``numbers`` were drawn for.
            labels: int64 [n], or [n, num_classes].
            numbers: from :meth:`draw`.

        Returns:
            Images, and float labels [n, num_classes].

        Raises:
            TypeError: labels [n] are not int64.
            ValueError: images and labels do not fit each other or ``num_classes``.
        """
        self._check(images, labels)
        left, top, right, bottom = map(int, numbers[:4])
        box = (..., slice(top, bottom), slice(left, right))
        made = images.clone()
        made[box] = images[box].roll(1, 0)
        return made, self._mix_labels(labels, numbers[4])
