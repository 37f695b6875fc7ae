"""MixUp: blend each image of a batch, and its label, with another."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stateful_gpu_loader.transforms.mixing.batch_mixing import BatchMixing, mix
from stateful_gpu_loader.transforms.mixing.batch_recipe import Numbers
from stateful_gpu_loader.transforms.mixing.beta import beta_share
from stateful_gpu_loader.transforms.recipe import FloatArray


class MixUp(BatchMixing):
    """Blend each image with the one before it, as ``torchvision.transforms.v2.MixUp``.

    Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018.

    Numbers: the share of each image, one for the whole batch, a multiple of 2**-24.

    Args:
        alpha: the share is drawn from Beta(alpha, alpha); 0.001 to 10000.
        num_classes: length of the mixed labels; may be None for labels [n, num_classes].
        labels_getter: "default"; v2's functions are not supported.

    Raises:
        TypeError, ValueError: an argument is of another kind or outside its range.

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
        """Make the batch; the arguments stay as they are.

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
                f"MixUp got images of {images.dtype}, in which no blend can be held. Remedy: make "
                "them float before, as Normalize(mean, std) or ToDtype(torch.float32, scale=True) "
                "does"
            )
        (share,) = numbers
        return mix(images, share), self._mix_labels(labels, share)
