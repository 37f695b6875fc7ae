"""Looks at the coming batches: what is delivered, from which part of which original, and why."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import DataLoader

from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.peek import twin_of
from stateful_gpu_loader.engine.run import Run
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.randomness.global_generators import caller_generators_restored
from stateful_gpu_loader.tools.batch_images import (
    label_of,
    named_classes,
    objects_of,
    setting_of,
    split_batch,
)
from stateful_gpu_loader.tools.origins import origins_of
from stateful_gpu_loader.tools.pixels import Pixels
from stateful_gpu_loader.tools.previewed import PreviewedSample


class NoPreview(LoaderError):
    """There is nothing to be seen: no next batch, or no images in it."""


def preview(loader: DataLoader[Any], num_batches: int = 1) -> list[PreviewedSample]:
    """Return the samples of the batches that the loader would deliver next.

    A copy of the loader makes the batches, so nothing of the loader changes: see
    ``StatefulGPULoader.peek``, whose limits apply.

    Args:
        loader: a StatefulGPULoader; if a pass is under way, it is the rest of that pass.
        num_batches: number of batches to look at; fewer are returned at the end of the epoch.

    Raises:
        NoPreview: it is another loader, no batch is left, or a batch has no images.

    >>> import torch
    >>> loader = StatefulGPULoader([(torch.zeros(3, 8, 8), 7)], batch_size=1)
    >>> [sample] = preview(loader)
    >>> sample.title, sample.label, sample.image.shape
    ('index 0, position 0, 8x8', '7', torch.Size([3, 8, 8]))
    """
    if not isinstance(loader, StatefulGPULoader):
        raise NoPreview(
            f"preview needs a StatefulGPULoader, and this is {type(loader).__name__}, whose next "
            "batch cannot be seen without taking it. Remedy: build the loader as StatefulGPULoader "
            "with the same arguments"
        )
    loader._engine.take_requested_epoch()
    twin = twin_of(loader._engine)
    samples: list[PreviewedSample] = []
    with caller_generators_restored(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*iterable dataset are read again")
        run = Run(twin, loader.__len__)
        for number in range(num_batches):
            batch = next(run, None)
            if batch is None:
                break
            samples += _samples(twin, batch, number)
        del run  # which ends its workers
    if not samples:
        raise NoPreview("the epoch has no batch left. Remedy: look before its end, or at the next")
    return samples


def _samples(engine: Engine, batch: Any, number: int) -> list[PreviewedSample]:
    plan = engine.plan
    dataset = plan.config.dataset
    split = split_batch(batch, batched=plan.config.collation[1])
    if split is None:
        raise NoPreview(
            f"the batch, {type(batch).__name__}, holds no images: no uint8 or float tensor "
            "[n, C, H, W] and no list of tensors [C, H, W], with C of 1 or 3"
        )
    images, targets = split
    pixels = Pixels.of(images, [plan.transform, plan.batch_transform, dataset])
    notes = [*pixels.notes]
    if plan.batch_transform is not None:
        notes.append(f"After batch_transform: {plan.batch_transform.fingerprint()}.")
    origins, note = origins_of(engine, len(images))
    notes += [note] * bool(note)
    names = named_classes(dataset)
    box_format = setting_of(dataset, "box_format") or "xyxy"
    in_parts = bool(setting_of(dataset, "ratio"))
    samples = []
    for image, target, origin in zip(images, targets, origins, strict=True):
        shown, original = pixels.shown(image), origin.image
        samples.append(
            PreviewedSample(
                batch=number,
                place=origin.place,
                label=label_of(target, names),
                image=shown,
                objects=objects_of(target, shown, names, box_format, in_parts),
                original=original,
                original_objects=None
                if original is None
                else objects_of(origin.target, original, names, box_format, in_parts),
                region=origin.region,
                parameters=origin.parameters,
                notes=(*notes, *origin.notes),
            )
        )
    return samples
