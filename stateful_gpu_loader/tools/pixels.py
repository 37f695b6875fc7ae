"""Brings delivered images back to bytes that can be looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_HOLDERS = ("recipes", "transforms", "transform", "steps", "dataset", "datasets")


@dataclass(frozen=True)
class Pixels:
    """How the values of a batch's images become bytes: ``value * scale + shift``."""

    scale: tuple[float, ...]
    """One number for each channel, or one for all."""
    shift: tuple[float, ...]
    notes: tuple[str, ...] = ()
    """What was assumed, for a person."""

    @classmethod
    def of(cls, images: Sequence[Tensor], holders: Sequence[Any]) -> Pixels:
        """Find out from the transforms, or from the values where no Normalize is found.

        Args:
            images: images of one batch, each [C, H, W].
            holders: transforms and datasets in which a Normalize may be.

        >>> Pixels.of([torch.ones(1, 2, 2)], []).scale
        (255.0,)
        """
        if all(image.dtype is torch.uint8 for image in images):
            return cls((1.0,), (0.0,))
        found = [step for holder in holders for step in _normalizers(holder, depth=6)]
        if len(found) == 1:
            mean, std = ([float(each) for each in values] for values in found[0])
            return cls(tuple(255 * each for each in std), tuple(255 * each for each in mean))
        lowest = min(float(image.min()) for image in images)
        highest = max(float(image.max()) for image in images)
        several = "Several Normalize were found" if found else "No Normalize was found"
        span = f"{lowest:.3g} to {highest:.3g}"
        if lowest >= 0 and highest <= 1:
            return cls((255.0,), (0.0,), (f"{several}: values {span} are shown as 0 to 1.",))
        if lowest >= 0 and highest <= 255:
            return cls((1.0,), (0.0,), (f"{several}: values {span} are shown as 0 to 255.",))
        scale = 255 / (highest - lowest) if highest > lowest else 1.0
        note = f"{several}: the values {span} are stretched from black to white."
        return cls((scale,), (-lowest * scale,), (note,))

    def shown(self, image: Tensor) -> Tensor:
        """Return an image to be looked at, uint8 [3, H, W] on the CPU."""
        plain = image.detach().as_subclass(Tensor).cpu()
        if plain.dtype is not torch.uint8:
            channels = plain.to(torch.float32)
            scale = torch.tensor(self.scale).view(-1, 1, 1)
            shift = torch.tensor(self.shift).view(-1, 1, 1)
            plain = (channels * scale + shift).nan_to_num(0.0).round().clamp(0, 255)
        return plain.to(torch.uint8).expand(3, -1, -1).contiguous()


def _normalizers(holder: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    """Mean and std of each Normalize in nested transforms: this package's and torchvision's."""
    if isinstance(holder, list | tuple):
        if len(holder) <= 64:
            for each in holder:
                yield from _normalizers(each, depth)
    elif (
        type(holder).__name__ == "Normalize" and hasattr(holder, "mean") and hasattr(holder, "std")
    ):
        yield holder.mean, holder.std
    elif depth and hasattr(holder, "__dict__"):
        for name in _HOLDERS:
            yield from _normalizers(vars(holder).get(name), depth - 1)
