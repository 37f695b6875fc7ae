"""Base classes of recipes, which draw numbers for a whole batch and apply them to images.

The numbers depend only on the samples' keys (of a batch recipe, on the batch's key), so CPU and GPU
use the same numbers.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_probability
from stateful_gpu_loader.transforms.batches.device import on_device
from stateful_gpu_loader.transforms.batches.placement import Placement, Pointwise
from stateful_gpu_loader.transforms.cut import Cut
from stateful_gpu_loader.transforms.motion import at_rest

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Draw:
    """Numbers that one recipe drew for the n samples of a batch.

    Raises:
        ValueError: an array has a wrong shape or dtype.

    >>> Draw(numbers=np.array([[1], [0]]), sizes=np.array([[375, 500], [480, 640]]))
    Draw(numbers=int64 [2, 1], sizes=int64 [2, 2])
    """

    numbers: IndexArray | FloatArray
    """[n, k]: one row per image for ``apply``; int64 if all numbers are whole."""
    sizes: IndexArray
    """int64 [n, 2]: height and width after the recipe, in pixels."""

    def __post_init__(self) -> None:
        numbers, sizes = self.numbers, self.sizes
        if (
            numbers.ndim != 2
            or numbers.dtype not in (np.int64, np.float64)
            or sizes.shape != (len(numbers), 2)
            or sizes.dtype != np.int64
        ):
            raise ValueError(
                f"a recipe drew numbers of {_described(numbers)} and sizes of {_described(sizes)}. "
                "Remedy: return int64 or float64 [n, k] and int64 [n, 2] for the n sizes given"
            )

    def __repr__(self) -> str:
        return f"Draw(numbers={_described(self.numbers)}, sizes={_described(self.sizes)})"


def _place_of(cls: type, name: str) -> int:
    """Return the position in the MRO of the class that defines an attribute."""
    return next(place for place, base in enumerate(cls.__mro__) if name in vars(base))


class Recipe(ABC):
    """One augmentation step, with its random numbers separate from its pixels.

    Every constructor argument is a public attribute of the same name, in canonical form, which
    :meth:`fingerprint` reads. A subclass defines :attr:`num_draws`, :meth:`draw` and :meth:`apply`.
    """

    num_draws: int = 0
    """Number of uniforms per sample, 0 if nothing is random."""
    number_names: tuple[str, ...] = ()
    """Names of the columns of :attr:`Draw.numbers`, or () for unnamed columns."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Drop inherited methods that a subclass has made invalid.

        If a subclass overrides :meth:`apply`, the other methods would make its parent's pixels;
        likewise :meth:`draw` and :attr:`number_names`.
        """
        super().__init_subclass__(**arguments)
        for name in (
            "apply_into",
            "apply_batch",
            "apply_to_cut",
            "cut",
            "place",
            "pointwise",
            "motion",
        ):
            # A mixin may also override apply().
            if _place_of(cls, "apply") < _place_of(cls, name):
                setattr(cls, name, getattr(Recipe, name))
        if "draw" in vars(cls) and "number_names" not in vars(cls):
            cls.number_names = ()

    @abstractmethod
    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        """Draw for a whole batch; row i depends on row i of the arguments alone.

        Args:
            uniforms: float64 [n, num_draws] in [0, 1).
            sizes: int64 [n, 2]: height and width of the images, in pixels.
        """

    @abstractmethod
    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        """Make the pixels: a pure function that does not change ``image``.

        The result may be a view of ``image``, and does not depend on the number of threads.

        Args:
            image: [C, H, W], uint8 or float; it need not be contiguous.
            numbers: k numbers, one row of :attr:`Draw.numbers` as a list.
        """

    def apply_into(self, image: Tensor, numbers: Sequence[float], out: Tensor) -> None:
        """Write the result of :meth:`apply` into ``out``, a row of the batch, [C, H, W].

        Raises:
            ValueError: the result has another shape or dtype than ``out``.
        """
        copy_into(self.apply(image, numbers), out)

    def cut(self, cut: Cut, numbers: Sequence[float]) -> Cut | None:
        """Fold a recipe that keeps a part of an image's bytes, or resizes them, into a cut.

        Only that part is decoded, and goes through :meth:`apply_to_cut`.

        Args:
            cut: the part that earlier recipes keep, without a resize.
            numbers: as for :meth:`apply`.

        Returns:
            The cut after the recipe, or None if the recipe needs the whole image.
        """
        return None

    def apply_to_cut(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        """Return the result of :meth:`apply` for the part of an image that :meth:`cut` keeps.

        Args:
            image: uint8 [C, H, W]; smaller than the cut if it was decoded at a smaller scale.
        """
        return self.apply(image, numbers)

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        """Apply the recipe to n images of one size at once, on any device.

        Row i of the result depends on image i and row i of the numbers alone, and equals the result
        of ``apply``, bit for bit on one device.

        Args:
            images: [n, C, H, W], uint8 or float, of any strides; they are not changed.
            numbers: [n, k], as :attr:`Draw.numbers`; all rows must give one size.
        """
        rows = zip(images.unbind(0), numbers.tolist(), strict=True)
        return torch.stack([self.apply(image, row) for image, row in rows])

    def apply_batch_into(
        self, images: Tensor, numbers: IndexArray | FloatArray, out: Tensor
    ) -> None:
        """Write the result of :meth:`apply_batch` into ``out``, rows of the batch, [n, C, H, W].

        Raises:
            ValueError: the result has another shape or dtype than ``out``.
        """
        copy_into(self.apply_batch(images, numbers), out)

    def place(self, placement: Placement, numbers: IndexArray | FloatArray) -> Placement | None:
        """Fold a recipe that only moves pixels, or resizes bytes bilinearly, into a placement.

        Several recipes then become one pass over a batch's pixels. The result equals
        :meth:`apply`'s, except that a resize may round differently on another device.

        Args:
            placement: origin of the pixels of n images so far.
            numbers: [n, k], as :attr:`Draw.numbers`.

        Returns:
            The placement after the recipe, or None if the recipe cannot be folded.
        """
        return None

    def pointwise(self, before: Pointwise) -> Pointwise | None:
        """Fold a recipe that changes each value by itself; None if it cannot be folded.

        Args:
            before: operations on each value so far.
        """
        return None

    def motion(self, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray | None:
        """Return how the recipe moves points, for boxes and masks of the image.

        Args:
            numbers: [n, k], as :attr:`Draw.numbers`.
            sizes: int64 [n, 2]: height and width before the recipe, in pixels.

        Returns:
            float64 [n, 2, 3], see :mod:`stateful_gpu_loader.transforms.motion`; None if the motion
            is unknown, in which case images with boxes or masks are refused.
        """
        return None

    def immovable(self) -> Recipe | None:
        """Return the recipe if its motion of points is unknown, otherwise None."""
        return self if type(self).motion is Recipe.motion else None

    def dtype_after(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of the result for an image of ``dtype``."""
        return dtype

    def named(self, drawn: Draw) -> dict[str, Any]:
        """Return the draw by name: ``"recipe"``, and an array [n] for each number.

        Numbers without names are one array ``"numbers"`` [n, k].
        """
        columns = drawn.numbers.T
        if len(self.number_names) != len(columns):
            return {"recipe": type(self).__name__, "numbers": drawn.numbers}
        named = dict(zip(self.number_names, columns, strict=True))
        return {"recipe": type(self).__name__, **named}

    def fingerprint(self) -> str:
        """Return the recipe and its arguments as text: equal texts give equal pixels."""
        return fingerprint_of(self)

    def __repr__(self) -> str:
        return self.fingerprint()

    def __call__(self, image: Tensor) -> Tensor:
        """Draw from torch's default generator and apply, as a torchvision transform does.

        Args:
            image: [C, H, W], uint8 or float; a ``tv_tensors.Image`` stays one.

        Raises:
            TypeError: the image is not a tensor image.
            ValueError: the image does not have three dimensions.
        """
        from torchvision import tv_tensors

        pixels = _checked_image(image)
        uniforms = torch.rand(1, self.num_draws, dtype=torch.float64).numpy()
        drawn = self.draw(uniforms, np.array([pixels.shape[1:]], dtype=np.int64))
        result = self.apply(pixels, drawn.numbers[0].tolist())
        if isinstance(image, tv_tensors.Image):
            wrapped: Tensor = tv_tensors.wrap(result, like=image)
            return wrapped
        return result


def between(bounds: tuple[float, float], uniforms: FloatArray) -> FloatArray:
    """Map uniforms in [0, 1) to numbers from the lowest to the highest."""
    lowest, highest = bounds
    return lowest + uniforms * (highest - lowest)


def in_place(recipe: Recipe, numbers: IndexArray | FloatArray, sizes: IndexArray) -> FloatArray:
    """Return the :meth:`Recipe.motion` of recipes that do not move points."""
    return at_rest(len(sizes))


def nothing_drawn(sizes: IndexArray) -> Draw:
    """Return the draw of a recipe that needs no numbers and keeps the sizes."""
    return Draw(np.empty((len(sizes), 0), dtype=np.int64), sizes)


def copy_into(result: Tensor, out: Tensor) -> None:
    """Copy without broadcasting or conversion.

    Raises:
        ValueError: shapes or dtypes differ.
    """
    if result.shape != out.shape or result.dtype is not out.dtype:
        raise ValueError(
            f"the recipes made {result.dtype} {list(result.shape)}, but the batch has room for "
            f"{out.dtype} {list(out.shape)}. Remedy: allocate the sizes of Compose.draw(...) and "
            "Compose.output_dtype, and decode images to the sizes in the draw"
        )
    out.copy_(result)


def _checked_image(image: Any) -> Tensor:
    from torchvision import tv_tensors

    if isinstance(image, (tuple, list, dict)):
        raise TypeError(
            f"a recipe got a whole sample, a {type(image).__name__}. A loader applies recipes to "
            "the images of a source; for any other dataset, transform gets the whole samples. "
            "Remedy: use a source, such as FolderSource(root) in place of torchvision's "
            "ImageFolder, or put the recipes in the dataset's own transform"
        )
    if not isinstance(image, Tensor):
        raise TypeError(
            f"a recipe got an object of type {type(image).__name__}. Remedy: pass a tensor "
            "[C, H, W]; put torchvision.transforms.v2.PILToTensor() first for PIL images"
        )
    if isinstance(image, tv_tensors.TVTensor) and not isinstance(image, tv_tensors.Image):
        raise TypeError(
            f"a recipe got {type(image).__name__}. Remedy: pass the image alone, because recipes "
            "cannot be called on boxes, masks or videos"
        )
    if image.ndim != 3:
        raise ValueError(
            f"a recipe got a tensor of shape {list(image.shape)}. Remedy: pass one image, [C, H, W]"
        )
    return image.as_subclass(Tensor)


def _described(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"


class BatchwiseRecipe(Recipe):
    """Base of recipes that define :meth:`apply_batch` and treat an image as a batch of one."""

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return self.apply_batch(image.unsqueeze(0), np.array([numbers])).squeeze(0)

    @abstractmethod
    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor: ...


class WithProbability(Recipe):
    """Base of recipes that act with probability p; a subclass defines :meth:`_act`.

    Numbers: 1 to act, else 0.

    Args:
        p: the probability.
    """

    num_draws = 1
    number_names = ("acts",)

    def __init__(self, p: float = 0.5) -> None:
        self.p = as_probability(p)

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        return Draw((uniforms < self.p).astype(np.int64), sizes)

    @abstractmethod
    def _act(self, images: Tensor) -> Tensor:
        """Change the chosen images [..., C, H, W], without changing their size."""

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        return self._act(image) if numbers[0] else image

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        rows = np.flatnonzero(numbers[:, 0])
        if len(rows) == 0:
            return images
        chosen = on_device(rows, images.device)
        result = images.clone()
        return result.index_copy_(0, chosen, self._act(images.index_select(0, chosen)))


_PACKAGE = __name__.partition(".")[0]


def fingerprint_of(step: object) -> str:
    """Return the class and its constructor's arguments, read from attributes of the same names.

    >>> from stateful_gpu_loader.transforms.mixing import MixUp
    >>> fingerprint_of(MixUp(num_classes=10))
    "MixUp(alpha=1.0, num_classes=10, labels_getter='default')"
    """
    cls = type(step)
    # Another package may have a class of the same name.
    prefix = "" if cls.__module__.startswith(f"{_PACKAGE}.") else f"{cls.__module__}."
    arguments = inspect.signature(cls).parameters
    described = ", ".join(f"{name}={getattr(step, name)!r}" for name in arguments)
    return f"{prefix}{cls.__qualname__}({described})"


Numbers = tuple[float, ...]


class BatchRecipe(ABC):
    """One step on images and labels of a whole batch, with its random numbers separate.

    Every constructor argument is a public attribute of the same name, in canonical form, which
    :meth:`fingerprint` reads. A subclass defines :attr:`num_draws`, :meth:`draw` and :meth:`apply`.
    """

    num_draws: int = 0
    """Number of uniforms per batch."""

    @abstractmethod
    def draw(self, uniforms: FloatArray, num_samples: int, size: tuple[int, int]) -> Numbers:
        """Draw numbers for one batch.

        Args:
            uniforms: float64 [num_draws] in [0, 1).
            num_samples: n, the number of images.
            size: height and width of the images, in pixels.
        """

    @abstractmethod
    def apply(
        self, images: Tensor, labels: Tensor, numbers: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """Make the batch: a pure function that does not change its arguments.

        Args:
            images: [n, C, H, W], on any device.
            labels: int64 [n], or [n, num_classes], on any device.
            numbers: from :meth:`draw`.

        Returns:
            Images [n, C, H, W] of the same dtype, and labels, each on the device of its input.
        """

    def fingerprint(self) -> str:
        """Return the batch recipe and its arguments as text: equal texts give equal batches."""
        return fingerprint_of(self)

    def __repr__(self) -> str:
        return self.fingerprint()

    def __call__(self, *inputs: Any) -> Any:
        """Draw from torch's default generator and apply, as a torchvision transform does.

        Args:
            inputs: images and labels, or one sequence that begins with them, such as a batch from
                ``default_collate``. Further items are passed through. Images [n, C, H, W] that are
                a ``tv_tensors.Image`` stay one.

        Returns:
            A tuple; for one sequence, a sequence of its type.

        Raises:
            ValueError: the inputs do not begin with images and labels.
        """
        batch = inputs[0] if len(inputs) == 1 else inputs
        uniforms = torch.rand(self.num_draws, dtype=torch.float64).numpy()
        return self.transform(batch, uniforms)

    def transform(self, batch: Any, uniforms: FloatArray) -> Any:
        """Apply the recipe to a whole batch, with given uniforms.

        Args:
            batch: a sequence that begins with images and labels.
            uniforms: float64 [num_draws] in [0, 1).

        Returns:
            A sequence of the batch's type.

        Raises:
            ValueError: the batch does not begin with images and labels.
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
            f"{name} got {_kind_of(batch)}. Remedy: pass images and labels, or a list or tuple "
            "that begins with them; take them out of a dict first"
        )
    images, labels = batch[:2]
    if (
        not isinstance(images, Tensor)
        or (isinstance(images, tv_tensors.TVTensor) and not isinstance(images, tv_tensors.Image))
        or images.ndim != 4
    ):
        raise ValueError(
            f"{name} got {_kind_of(images)} for the images. Remedy: pass a batch of images, a "
            "tensor [n, C, H, W]"
        )
    if not isinstance(labels, Tensor) or isinstance(labels, tv_tensors.TVTensor):
        raise ValueError(
            f"{name} got {_kind_of(labels)} for the labels. Remedy: pass a tensor, int64 [n] or "
            "[n, num_classes]"
        )
    return batch


def _kind_of(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{type(value).__name__} {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an object of type {type(value).__name__}"
