"""Real photographs, and real image files written from them."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import io
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

_FILES = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "chelsea": ("skimage", "data/chelsea.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
}
PHOTOGRAPHS = tuple(_FILES)


@functools.cache
def photograph(name: str) -> Image.Image:
    """Return a photograph of scikit-image or scikit-learn as an RGB PIL image.

    ``name`` is one of ``PHOTOGRAPHS``; sides have 300 to 640 pixels. The image is shared: copy it
    before changing it. Its file is read directly, because importing the packages takes five
    seconds.
    """
    package, file = _FILES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed, which brings {file}")
    return Image.open(Path(spec.origin).parent / file).convert("RGB")


def small_photographs(count: int, height: int = 20, width: int = 16) -> npt.NDArray[np.uint8]:
    """Return different parts of real photographs: uint8 [count, height, width, 3]."""
    whole = _small_china()
    generator = np.random.default_rng(0)
    tops = generator.integers(160 - height, size=count)
    lefts = generator.integers(256 - width, size=count)
    corners = zip(tops, lefts, strict=True)
    return np.stack([whole[top : top + height, left : left + width] for top, left in corners])


@functools.cache
def _small_china() -> npt.NDArray[np.uint8]:
    return np.asarray(photograph("china").resize((256, 160)))


def encode(image: Image.Image, image_format: str = "JPEG", **options: Any) -> torch.Tensor:
    """Return ``image`` as Pillow encodes it: uint8 [num_bytes]."""
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def write_photo_folder(
    root: Path | str, num_classes: int = 4, per_class: int = 16, seed: int = 0
) -> list[Path]:
    """Write class folders of JPEG photographs under ``root``; return the sorted paths.

    The files are ``root/class_00/photo_000.jpg`` and so on: crops of real photographs, 64 to 256
    pixels a side, of qualities 60 to 95, some grey and some progressive. All files differ, and the
    same arguments write the same bytes.
    """
    paths = []
    for name, content in _photo_files(num_classes, per_class, seed):
        path = Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        paths.append(path)
    return sorted(paths)


@functools.cache
def _photo_files(num_classes: int, per_class: int, seed: int) -> list[tuple[str, bytes]]:
    """Return the names and contents that :func:`write_photo_folder` writes."""
    generator = np.random.default_rng(seed)
    files = []
    for label, number in itertools.product(range(num_classes), range(per_class)):
        photo = photograph(PHOTOGRAPHS[int(generator.integers(len(PHOTOGRAPHS)))])
        width, height = (int(side) for side in generator.integers(64, 257, size=2))
        left = int(generator.integers(photo.width - width + 1))
        top = int(generator.integers(photo.height - height + 1))
        crop = photo.crop((left, top, left + width, top + height))
        data = encode(
            crop.convert("L" if number % 8 == 5 else "RGB"),
            quality=int(generator.integers(60, 96)),
            progressive=number % 8 == 3,
        )
        files.append((f"class_{label:02d}/photo_{number:03d}.jpg", data.numpy().tobytes()))
    return files


@functools.cache
def kept_folder() -> Path:
    """Return a folder that tests share, and that is deleted when this process ends."""
    folder = tempfile.mkdtemp()
    # No object that cleans up when it is dropped: since Python 3.13, a forked worker drops
    # registered objects.
    atexit.register(shutil.rmtree, folder)
    return Path(folder)


@functools.cache
def kept_photos() -> Path:
    """Return a shared folder of 14 small photographs in two classes. No test may change it."""
    write_photo_folder(kept_folder() / "photographs", num_classes=2, per_class=7)
    return kept_folder() / "photographs"
