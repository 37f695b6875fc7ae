"""Loaders of many kinds of pictures, on a device simulated by the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import default_collate

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.engine.device.images import DeviceImages
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.encoded import EncodedMaker
from stateful_gpu_loader.records import Request
from tests.images import encode, photograph, write_photo_folder

RECIPES = [
    T.RandomResizedCrop(32),
    T.RandomHorizontalFlip(),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomRotation(20),
    T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]
Loader = StatefulGPULoader[Any]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs, some of them grey, progressive or CMYK, with PNGs and a WebP among them."""
    root = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, num_classes=2, per_class=8)
    picture = photograph("coffee").resize((90, 60))
    others = {
        "class_00/z_cmyk.jpg": encode(picture.convert("CMYK"), "JPEG"),
        "class_00/z_alpha.png": encode(picture.convert("RGBA"), "PNG"),
        "class_01/z_lossy.webp": encode(picture, "WEBP"),
        "class_01/z_palette.png": encode(picture.convert("P"), "PNG"),
    }
    for name, data in others.items():
        (root / name).write_bytes(data.numpy().tobytes())
    return root


def make(root: Path, **changes: Any) -> Loader:
    arguments: dict[str, Any] = {
        "batch_size": 6,
        "shuffle": True,
        "seed": 42,
        "device": "cuda",
        "transform": RECIPES,
        **changes,
    }
    return StatefulGPULoader(FolderSource(root), **arguments)


def steps_of(
    root: Path | Source,
    place: Any,
    decoder: Any,
    recipes: T.Compose,
    collate_fn: Any = default_collate,
) -> tuple[EncodedMaker, DeviceImages]:
    """Return the reader of a folder's batches, and the steps that complete them on a device."""
    source = root if isinstance(root, Source) else FolderSource(root)
    policy = BadSamplePolicy(mode="raise")
    maker = EncodedMaker(
        source,
        takes=decoder.takes,
        decoder=decoder.cpu,
        recipes=recipes,
        allocate=place.empty_host,
        policy=policy,
        leaves_out_exif=decoder.acts_on_exif,
    )
    steps = DeviceImages(
        source,
        decoder=decoder,
        recipes=recipes,
        collate_fn=collate_fn,
        policy=policy,
        place=place,
    )
    return maker, steps


def request_of(num_images: int) -> Request:
    return Request(0, 1, 0, 0, 1, np.arange(num_images), num_images)


EXECUTIONS = (
    {"num_workers": 0},
    {"num_workers": 1, "prefetch_factor": 1},
    {"num_workers": 2, "prefetch_factor": 2},
    {"num_workers": 3, "prefetch_factor": 4},
    {"num_workers": 1, "prefetch_factor": 3, "worker_type": "process"},
    {"num_workers": 2, "prefetch_factor": 1, "worker_type": "process"},
)
