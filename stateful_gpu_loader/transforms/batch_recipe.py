"""A batch recipe: it draws numbers for one whole batch, and makes of it another batch.

As with recipes, drawing is apart from pixels: the numbers are plain Python floats that are made on
the CPU from uniforms of the batch's key, so that CPU and GPU mix the same samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stateful_gpu_loader.transforms.recipe import FloatArray, fingerprint_of

Numbers = tuple[float, ...]


class BatchRecipe(ABC):
    """One step on images and labels of a whole batch, its random part apart from its pixels.

    A batch recipe keeps every constructor argument, in canonical form, as a public attribute of
    the same name; :meth:`fingerprint` is made from them. A subclass gives :attr:`num_draws`,
    :meth:`draw` and :meth:`apply`.
    """

    num_draws: int = 0
    """Uniforms per batch: a fixed budget."""

    @abstractmethod
    def draw(self, uniforms: FloatArray, num_samples: int, size: tuple[int, int]) -> Numbers:
        """Decide for one batch.

        Args:
            uniforms: float64 [num_draws] in [0, 1).
            num_samples: n, the number of images.
            size: height and width of the images, in pixels.
        """

    @abstractmethod
    def apply(
        self, images: Tensor, labels: Tensor, numbers: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """Make the batch: a pure function that leaves its arguments as they are.

        Args:
            images: [n, C, H, W], on any device.
            labels: int64 [n], or [n, num_classes], on any device.
            numbers: from :meth:`draw`.

        Returns:
            Images [n, C, H, W] of the same dtype, and labels, each on its device.
        """

    def fingerprint(self) -> str:
        """The batch recipe and its arguments as text: equal texts give equal batches."""
        return fingerprint_of(self)

    def __repr__(self) -> str:
        return self.fingerprint()

    def __call__(self, *inputs: Any) -> Any:
        """Draw from torch's default generator and apply, as a torchvision transform does.

        Args:
            inputs: images and labels, or one sequence that begins with them, such as a batch from
                ``default_collate``. What comes after them is passed through. Images [n, C, H, W]
                that are a ``tv_tensors.Image`` stay one.

        Returns:
            A tuple; for one sequence, a sequence of its type.

        Raises:
            ValueError: these are no images and labels.
        """
        batch = inputs[0] if len(inputs) == 1 else inputs
        uniforms = torch.rand(self.num_draws, dtype=torch.float64).numpy()
        return self.transform(batch, uniforms)

    def transform(self, batch: Any, uniforms: FloatArray) -> Any:
        """A whole batch, from numbers that were drawn for it.

        Args:
            batch: a sequence that begins with images and labels.
            uniforms: float64 [num_draws] in [0, 1).

        Returns:
            A sequence of the batch's type.

        Raises:
            ValueError: it begins with something else.
        """
        from torchvision import tv_tensors

        images, labels, *rest = _checked_batch(batch, type(self).__name__)
        pixels = images.as_subclass(Tensor)
        height, width = pixels.shape[2:]
        numbers = self.draw(uniforms, len(pixels), (height, width))
        made, new_labels = self.apply(pixels, labels, numbers)
        if isinstance(images, tv_tensors.Image):
            made = tv_tensors.wrap(made, like=images)
        items = (made, new_labels, *rest)
        is_named = isinstance(batch, tuple) and hasattr(batch, "_fields")
        return type(batch)(*items) if is_named else type(batch)(items)


def _checked_batch(batch: Any, name: str) -> Sequence[Any]:
    from torchvision import tv_tensors

    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise ValueError(
            f"{name} got {_described(batch)}. Remedy: pass images and labels, or a list or tuple "
            "that begins with them; take them out of a dict first"
        )
    images, labels = batch[:2]
    if (
        not isinstance(images, Tensor)
        or (isinstance(images, tv_tensors.TVTensor) and not isinstance(images, tv_tensors.Image))
        or images.ndim != 4
    ):
        raise ValueError(
            f"{name} got {_described(images)} for the images. Remedy: pass a batch of images, a "
            "tensor [n, C, H, W]"
        )
    if not isinstance(labels, Tensor) or isinstance(labels, tv_tensors.TVTensor):
        raise ValueError(
            f"{name} got {_described(labels)} for the labels. Remedy: pass a tensor, int64 [n] or "
            "[n, num_classes]"
        )
    return batch


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{type(value).__name__} {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an object of type {type(value).__name__}"
