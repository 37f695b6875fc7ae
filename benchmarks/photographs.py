"""A folder of JPEG files of ImageNet's size, cut from real photographs.

The photographs ship in the wheels of scikit-image and scikit-learn; nothing is downloaded.
Photographs with smooth skies or blurred backgrounds are left out, because no sharpening makes them
large enough. Small originals hold less detail than a photograph scaled down to 500x375, so their
files would be small and quick to decode. Each crop is therefore sharpened until its file is as
large as one of ImageNet's, 110 KB on average. If the photographs are not installed, pictures with
their statistics are drawn instead, and the folder's name says so.
"""

from __future__ import annotations

import io
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from benchmarks.generated_pictures import picture
from benchmarks.progress import progress_bar

FOLDER = Path(__file__).parent / "data"
"""Folder of the files; not in git."""

WIDTH, HEIGHT, QUALITY = 500, 375, 90
_SMALLEST, _LARGEST = 70_000, 130_000
_STRONGEST, _HALVINGS = 900, 8

_PHOTOGRAPHS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/motorcycle_right.png"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/ihc.png"),
    ("sklearn", "datasets/images/china.jpg"),
)


@dataclass(frozen=True)
class PhotographFolder:
    """Class folders of JPEG files, one class for each photograph."""

    root: Path
    files: tuple[Path, ...]
    """Sorted."""
    targets: tuple[int, ...]
    """Class of each file: the number of its folder in sorted order."""
    originals: str
    """Kind of originals: ``"photographs"`` or ``"generated pictures"``."""

    @property
    def mean_bytes(self) -> float:
        """Average size of a file in bytes."""
        return sum(file.stat().st_size for file in self.files) / len(self.files)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "num_files": len(self.files),
            "originals": self.originals,
            "mean_bytes": round(self.mean_bytes),
            "width": WIDTH,
            "height": HEIGHT,
            "quality": QUALITY,
        }


def photograph_folder(num_images: int, parent: Path = FOLDER) -> PhotographFolder:
    """Build the folder of ``num_images`` files, or return an existing one.

    The same number gives the same bytes with the same Pillow.
    """
    originals = "photographs" if _are_installed() else "generated pictures"
    root = parent / f"{originals.replace(' ', '-')}-{num_images}"
    if not root.is_dir():
        _build(root, num_images, installed_photographs() if _are_installed() else _generated())
    files = tuple(sorted(root.glob("*/*.jpg")))
    classes = sorted({file.parent.name for file in files})
    targets = tuple(classes.index(file.parent.name) for file in files)
    return PhotographFolder(root, files, targets, originals)


def _build(root: Path, num_images: int, originals: dict[str, Image.Image]) -> None:
    half_built = root.with_name(f"{root.name}.half-built")
    shutil.rmtree(half_built, ignore_errors=True)
    names = list(originals)
    for name in names:
        (half_built / name).mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        generator = np.random.default_rng(number)
        name = names[number % len(names)]
        target = generator.triangular(_SMALLEST, _LARGEST, _LARGEST)
        content = _of_size(_crop(originals[name], generator), target)
        (half_built / name / f"{number:05d}.jpg").write_bytes(content)

    progress = progress_bar("photographs", num_images, unit="file")
    with ThreadPoolExecutor(os.cpu_count()) as pool, progress:
        for _ in pool.map(write, range(num_images)):
            progress.update()
    half_built.rename(root)


def _are_installed() -> bool:
    """Whether all are installed: another mixture would be another measurement."""
    try:
        return all(
            resources.files(package).joinpath(path).is_file() for package, path in _PHOTOGRAPHS
        )
    except ModuleNotFoundError:
        return False


def installed_photographs() -> dict[str, Image.Image]:
    """Return the photographs by name, as RGB pictures of 500x375 pixels or more."""
    return {Path(path).stem: _open(package, path) for package, path in _PHOTOGRAPHS}


def _generated() -> dict[str, Image.Image]:
    return {
        f"generated_{number}": picture(2 * WIDTH, 2 * HEIGHT, seed=number)
        for number in range(len(_PHOTOGRAPHS))
    }


def _open(package: str, path: str) -> Image.Image:
    """Return an RGB photograph, at least as large as the crops."""
    with resources.files(package).joinpath(path).open("rb") as file:
        image = Image.open(file).convert("RGB")
    scale = max(WIDTH / image.width, HEIGHT / image.height, 1)
    size = max(WIDTH, round(image.width * scale)), max(HEIGHT, round(image.height * scale))
    return image.resize(size, Image.Resampling.LANCZOS)


def _crop(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    left = int(generator.integers(image.width - WIDTH + 1))
    top = int(generator.integers(image.height - HEIGHT + 1))
    return image.crop((left, top, left + WIDTH, top + HEIGHT))


def _of_size(image: Image.Image, num_bytes: float) -> bytes:
    """Return the JPEG file of an image, sharpened to the given size by bisection."""
    weak, strong = 0.0, float(_STRONGEST)
    for _ in range(_HALVINGS):
        strength = (weak + strong) / 2
        sharpened = image.filter(ImageFilter.UnsharpMask(1.0, int(strength), 0))
        file = io.BytesIO()
        sharpened.save(file, "JPEG", quality=QUALITY)
        if file.tell() < num_bytes:
            weak = strength
        else:
            strong = strength
    return file.getvalue()
