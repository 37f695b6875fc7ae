"""Files and loaders of the GPU tests, and their expected batches, made one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders import probe
from stateful_gpu_loader.decoders.decoder import Image
from stateful_gpu_loader.randomness.permutation import Permutation
from tests.images import encode, photograph, write_photo_folder

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

RECIPES = [T.RandomResizedCrop(48), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)]
"""The most common recipes: one launch on the GPU."""

COLORFUL = [
    T.RandomResizedCrop(48),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomRotation(20),
    T.RandomGrayscale(),
    T.Normalize(MEAN, STD),
    T.ToDtype(torch.bfloat16),
]

SEED = 42


def make_loader(root: Path, **changes: Any) -> StatefulGPULoader[Any]:
    """Return a loader of shuffled batches of 6 on the GPU; ``changes`` are arguments."""
    arguments: dict[str, Any] = {
        "batch_size": 6,
        "shuffle": True,
        "seed": SEED,
        "device": "cuda",
        "transform": RECIPES,
        **changes,
    }
    return StatefulGPULoader(FolderSource(root), **arguments)


def expected_batches(
    root: Path,
    decoder: Any,
    *,
    device: torch.device,
    batch_size: int = 6,
    epoch: int = 0,
    recipes: list[T.Recipe] | None = None,
) -> list[list[torch.Tensor]]:
    """Return the expected batches of an epoch of :func:`make_loader`, made one after the other.

    The host waits for the device before and after every step, so that neither the order of streams
    nor reused memory can be wrong.

    Args:
        decoder: a BatchDecoder, or for the CPU a Decoder.
    """
    source, steps = FolderSource(root), T.Compose(recipes or RECIPES)
    n = len(source)
    order = Permutation(n, seed=SEED, epoch=epoch)(np.arange(n)).tolist()
    batches = []
    for start in range(0, n, batch_size):
        samples = [source.read(index) for index in order[start : start + batch_size]]
        headers = [probe(sample.data) for sample in samples]
        sizes = np.array([(header.height, header.width) for header in headers])
        positions = np.arange(start, start + len(samples))
        drawn = steps.draw(SEED, epoch, positions, sizes)
        images = _decode(decoder, [sample.data for sample in samples], headers, device)
        _wait(device)
        batch = steps.apply_batch(images, drawn)
        _wait(device)
        batches.append([batch, torch.tensor([sample.target for sample in samples]).to(device)])
    return batches


def _decode(
    decoder: Any, data: list[torch.Tensor], headers: list[Any], device: torch.device
) -> list[Image]:
    if device.type == "cpu":
        return [decoder.decode(*pair) for pair in zip(data, headers, strict=True)]
    images: list[Image] = []
    for one, header in zip(data, headers, strict=True):
        _wait(device)
        found = decoder.decode_batch([one], [header])[0] if decoder.takes(header, one) else None
        _wait(device)
        if found is None or isinstance(found, ValueError):
            found = decoder.cpu.decode(one, header).to(device)
        images.append(found)
    return images


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def write_mixed_folder(root: Path) -> None:
    """Write two classes of ten images: some that nvJPEG decodes and some that it does not."""
    write_photo_folder(root, num_classes=2, per_class=6)
    china = photograph("china").resize((160, 120))
    variants = {
        "cmyk.jpg": encode(china.convert("CMYK"), "JPEG"),
        "full.jpg": encode(china, "JPEG", subsampling="4:4:4"),
        "picture.png": encode(china, "PNG"),
        "picture.webp": encode(china, "WEBP"),
    }
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        for name, data in variants.items():
            (folder / name).write_bytes(data.numpy().tobytes())
