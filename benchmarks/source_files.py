"""The same samples in files of every format, written once and kept next to the photographs.

:func:`photograph_files` holds photographs of ImageNet's size, each several times, to measure rates.
:func:`small_files` holds very many small records, to measure costs that depend on their number.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.format_writers import (
    CAFFE,
    CAFFE2,
    FOLDER,
    PARQUET,
    RECORDIO,
    SUFFIXES,
    TAR,
    TFRECORD,
    Encoded,
    write,
)
from benchmarks.photographs import photograph_folder
from benchmarks.progress import progress_bar

FORMATS = {
    FOLDER: "folder",
    TAR: "tar",
    CAFFE: "Caffe LMDB",
    CAFFE2: "Caffe2 LMDB",
    TFRECORD: "TFRecord",
    RECORDIO: "RecordIO",
    PARQUET: "Parquet",
}
"""All formats, with displayed names."""
SMALL_FORMATS = (TAR, CAFFE, TFRECORD, RECORDIO, PARQUET)

ROWS = 64
"""Number of photographs in a tar and in a row group, about 7 MB."""
SMALL_BYTES = 100
"""Size of a small record's image, which is not a real image."""

_SMALL_ROWS, _SMALL_CLASSES = 4096, 1000


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """Files of each format; all hold the same samples, in the same order except for folders."""

    root: Path
    num_samples: int
    num_bytes: int
    """Size of all images together."""

    def paths(self, name: str) -> list[str]:
        return [str(path) for path in sorted((self.root / name).glob(f"part-*{SUFFIXES[name]}"))]

    def index_paths(self, name: str) -> list[str]:
        """Return the indices of TFRecord and RecordIO, as from ``tfrecord2idx`` and ``rec2idx``."""
        return [f"{path}.idx" for path in self.paths(name)]


def photograph_files(num_samples: int, num_images: int, parent: Path) -> SourceFiles:
    """Return files of samples from ``num_images`` different photographs, in many tars and few
    others.

    Args:
        num_samples: a multiple of ``num_images``.
        num_images: not a multiple of 7.
        parent: folder of all files of benchmarks.
    """
    folder = photograph_folder(num_images, parent)
    contents = [file.read_bytes() for file in folder.files]

    def samples() -> Iterator[Encoded]:
        for number in range(num_samples):
            place = 7 * number % num_images  # not sorted by class
            yield contents[place], folder.targets[place]

    root = parent / f"sources-{num_samples}-of-{folder.root.name}"
    num_files = {TAR: -(-num_samples // ROWS), TFRECORD: 4, PARQUET: 4}
    _build(root, tuple(FORMATS), samples, num_samples, num_files, ROWS)
    size = sum(map(len, contents)) * num_samples // num_images
    return SourceFiles(root=root, num_samples=num_samples, num_bytes=size)


def small_files(num_samples: int, parent: Path) -> SourceFiles:
    """Return files of ``num_samples`` records of 100 bytes, one file for each format."""

    def samples() -> Iterator[Encoded]:
        for number in range(num_samples):
            yield number.to_bytes(SMALL_BYTES, "little"), number % _SMALL_CLASSES

    root = parent / f"small-records-{num_samples}"
    _build(root, SMALL_FORMATS, samples, num_samples, {}, _SMALL_ROWS)
    return SourceFiles(root=root, num_samples=num_samples, num_bytes=num_samples * SMALL_BYTES)


def _build(
    root: Path,
    formats: tuple[str, ...],
    samples: Callable[[], Iterator[Encoded]],
    count: int,
    num_files: Mapping[str, int],
    rows: int,
) -> None:
    if root.is_dir():
        return
    half_built = root.with_name(f"{root.name}.half-built")
    shutil.rmtree(half_built, ignore_errors=True)
    with progress_bar(f"files of {root.name}", len(formats) * count, unit="sample") as progress:

        def counted() -> Iterator[Encoded]:
            for sample in samples():
                yield sample
                progress.update()

        for name in formats:
            write(
                name,
                half_built / name,
                itertools.islice(counted(), count),
                count=count,
                num_files=num_files.get(name, 1),
                rows=rows,
            )
    half_built.rename(root)


def under_more_names(paths: Sequence[str], folder: Path, times: int) -> list[str]:
    """Link each file under several names: a larger data set without more disk space."""
    names = []
    for turn in range(times):
        for path in paths:
            name = folder / f"{turn:03d}-{Path(path).name}"
            name.symlink_to(Path(path).resolve())
            names.append(str(name))
    return names
