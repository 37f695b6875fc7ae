"""The demo's data set: JPEG files cut from photographs that ship inside two packages."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stateful_gpu_loader.errors import LoaderError, MissingDependency

SMALLEST_SIDE, LARGEST_SIDE = 200, 400
"""Limits of a file's width and height, in pixels."""
_PHOTOGRAPH_SIDE = 480
"""Larger photographs are first reduced to this size, so that a piece shows the subject."""

CREDITS = (
    "Photographs: scikit-image (public domain and CC0); scikit-learn: "
    "danielbuechele and vultilion (CC BY 2.0)"
)


@dataclass(frozen=True, slots=True)
class Photograph:
    """One photograph, which becomes one class."""

    label: str
    package: str
    """Importable package that contains the photograph."""
    file: str
    """Path within the package."""


PHOTOGRAPHS = (
    Photograph("astronaut", "skimage", "data/astronaut.png"),
    Photograph("cat", "skimage", "data/chelsea.png"),
    Photograph("coffee", "skimage", "data/coffee.png"),
    Photograph("flower", "sklearn", "datasets/images/flower.jpg"),
    Photograph("galaxies", "skimage", "data/hubble_deep_field.jpg"),
    Photograph("motorcycle", "skimage", "data/motorcycle_left.png"),
    Photograph("retina", "skimage", "data/retina.jpg"),
    Photograph("rocket", "skimage", "data/rocket.jpg"),
    Photograph("temple", "sklearn", "datasets/images/china.jpg"),
)

_DISTRIBUTIONS = {"skimage": "scikit-image", "sklearn": "scikit-learn", "PIL": "pillow"}
_TRIED = {"skimage": "0.26", "sklearn": "1.9"}


def write_photographs(root: Path, *, files_per_class: int, seed: int = 0) -> int:
    """Cut each photograph into JPEG files of varied size, shape, quality and kind.

    Writes ``root/<label>/000.jpg`` and so on, with the same bytes for the same arguments (and the
    same Pillow). Nothing is downloaded.

    Args:
        root: a folder; created if missing.
        files_per_class: number of files cut from each photograph.
        seed: seed of places, sizes and qualities.

    Returns:
        Number of files.

    Raises:
        MissingDependency: Pillow, scikit-image or scikit-learn is not installed.
        LoaderError: a package is installed, but lacks the photograph.
    """
    for photograph in PHOTOGRAPHS:
        folder = root / photograph.label
        folder.mkdir(parents=True, exist_ok=True)
        picture = _open(photograph)
        chance = random.Random(f"{seed} {photograph.label}")
        for number in range(files_per_class):
            _write_piece(picture, folder / f"{number:03d}.jpg", number, chance)
    return files_per_class * len(PHOTOGRAPHS)


def _open(photograph: Photograph) -> Any:
    path = _folder_of(photograph.package) / photograph.file
    if not path.is_file():
        distribution = _DISTRIBUTIONS[photograph.package]
        raise LoaderError(
            f"{distribution} {version(distribution)} has no file {photograph.file!r}. "
            f"Remedy: install a version of {distribution} that ships it, such as "
            f"{_TRIED[photograph.package]}"
        )
    with _pillow().open(path) as file:
        image = file.convert("RGB")
    scale = _PHOTOGRAPH_SIDE / max(image.size)
    if scale < 1:
        return image.resize([round(side * scale) for side in image.size])
    return image


def _write_piece(picture: Any, path: Path, number: int, chance: random.Random) -> None:
    """Write one piece; every eighth file is progressive, every sixteenth grey."""
    width, height = (
        chance.randint(SMALLEST_SIDE, min(side, LARGEST_SIDE)) for side in picture.size
    )
    left = chance.randint(0, picture.width - width)
    top = chance.randint(0, picture.height - height)
    piece = picture.crop((left, top, left + width, top + height))
    piece.convert("L" if number % 16 == 5 else "RGB").save(
        path, quality=chance.randint(60, 95), progressive=number % 8 == 3
    )


def _folder_of(package: str) -> Path:
    """Return the folder of a package without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise _missing(package)
    return Path(found.origin).parent


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise _missing("PIL") from error
    return Image


def _missing(package: str) -> LoaderError:
    return MissingDependency(
        _DISTRIBUTIONS[package], needed_for="the demo's photographs", extra="demo"
    )
