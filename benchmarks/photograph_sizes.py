"""Folders of larger photographs: those of ImageNet's size, enlarged, with sensor noise."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from os import cpu_count
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.photographs import QUALITY, PhotographFolder, photograph_folder

NOISE = 5.0
"""Standard deviation in levels; without noise an enlarged image would decode too fast."""


def enlarged_folder(num_images: int, width: int, height: int, parent: Path) -> PhotographFolder:
    """Build the folder of ``num_images`` files of this size, or return an existing one."""
    small = photograph_folder(num_images, parent)
    root = small.root.with_name(f"{small.root.name}-{width}x{height}")
    if not root.is_dir():
        half_built = root.with_name(f"{root.name}.half-built")
        shutil.rmtree(half_built, ignore_errors=True)

        def write(number: int) -> None:
            file = small.files[number]
            path = half_built / file.relative_to(small.root)
            path.parent.mkdir(parents=True, exist_ok=True)
            _enlarged(file, width, height, seed=number).save(path, quality=QUALITY)

        with ThreadPoolExecutor(cpu_count()) as pool:
            list(pool.map(write, range(num_images)))
        half_built.rename(root)
    files = tuple(root / file.relative_to(small.root) for file in small.files)
    return replace(small, root=root, files=files)


def _enlarged(file: Path, width: int, height: int, *, seed: int) -> Image.Image:
    with Image.open(file) as image:
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    generator = np.random.default_rng(seed)
    noise = NOISE * generator.standard_normal((height, width, 1), dtype=np.float32)
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))
