"""CutMix: paste a box of another image of the batch into each, and mix their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from stateful_gpu_loader.transforms.mixing.batch_mixing import BatchMixing
from stateful_gpu_loader.transforms.mixing.batch_recipe import Numbers
from stateful_gpu_loader.transforms.mixing.beta import beta_share
from stateful_gpu_loader.transforms.recipe import FloatArray


class CutMix(BatchMixing):
    """Paste a box of the image before each into it, as ``torchvision.transforms.v2.CutMix``.

    Yun, Han, Oh, Chun, Choe and Yoo, "CutMix: Regularization Strategy to Train Strong Classifiers
    with Localizable Features", ICCV 2019.

    Numbers: the box, one for the whole batch, as left, top, right and bottom in pixels; and the
    share of each image's own pixels.

    Args:
        alpha: the share, before the box is cut at the image's border, is drawn from
            Beta(alpha, alpha); 0.001 to 10000.
        num_classes: length of the mixed labels; may be None for labels [n, num_classes].
        labels_getter: "default"; v2's functions are not supported.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range.

    >>> import numpy as np
    >>> CutMix(num_classes=10).draw(np.array([0.75, 0.5, 0.9]), 64, (100, 200))
    (50.0, 65.0, 150.0, 100.0, 0.825)
    """

    num_draws = 3

    def draw(self, uniforms: FloatArray, num_samples: int, size: tuple[int, int]) -> Numbers:
        height, width = size
        share = beta_share(self.alpha, float(uniforms[0]))
        middle_x, middle_y = int(uniforms[1] * width), int(uniforms[2] * height)
        # Sums, products, quotients and roots: all rounded the same everywhere.
        half_side = 0.5 * math.sqrt(1.0 - share)
        half_width, half_height = int(half_side * width), int(half_side * height)
        left, right = max(middle_x - half_width, 0), min(middle_x + half_width, width)
        top, bottom = max(middle_y - half_height, 0), min(middle_y + half_height, height)
        kept = 1.0 - (right - left) * (bottom - top) / (width * height)
        return float(left), float(top), float(right), float(bottom), kept

    def apply(
        self, images: Tensor, labels: Tensor, numbers: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """Make the batch; the arguments stay as they are.

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
