"""Images a second of common datasets: unchanged, and read by this package's sources.

There are three datasets: torchvision's ImageFolder, a Hugging Face Dataset in an Arrow file, and
torchvision's class for CIFAR-10, filled with photographs of 32x32 pixels. torch's DataLoader reads
each with torchvision's usual transforms. This package's loader reads each unchanged, and then
converted: the same files, rows or pixels as a source, and recipes of the same names. All make
shuffled, normalised float32 batches with two workers. The clock runs in the middle of a long pass.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import v2

from benchmarks.arguments import Arguments, parse
from benchmarks.harness import Contestant, measured, quieten_peers, seconds_a_batch
from benchmarks.markdown import Content, aims_table, as_table, medians_of
from benchmarks.photograph_loaders import (
    MEAN,
    SIZE,
    STD,
    check_batch,
    crop_and_flip,
    recipes,
    to_float,
    usual_pass,
)
from benchmarks.photographs import PhotographFolder
from benchmarks.results import aims_at_least, compared
from stateful_gpu_loader import ArraySource, FolderSource, HuggingFaceSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T

NUM_WORKERS = 2
SMALL = 32

TORCH, AS_IT_IS, CONVERTED = "torch", "as_it_is", "converted"
LOADERS = {
    TORCH: "torch DataLoader",
    AS_IT_IS: "StatefulGPULoader, unchanged",
    CONVERTED: "StatefulGPULoader, converted",
}
DATASETS = {
    "image_folder": "ImageFolder",
    "hugging_face": "Hugging Face Dataset",
    "array": "CIFAR-10's class",
}
AIMS = {"image_folder": 1.9, "hugging_face": 1.9, "array": 5.0}


class RowTransform:
    """Transforms rows of a Hugging Face Dataset, as its documentation shows it."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self._transform = v2.Compose(list(steps))

    def __call__(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        images = [self._transform(image.convert("RGB")) for image in rows["image"]]
        return {"image": images, "label": rows["label"]}


class Work:
    """The datasets of a run, and the loaders over them.

    Args:
        arguments: of the command line.
    """

    def __init__(self, arguments: Arguments) -> None:
        usual = self._usual = usual_pass(arguments)
        self.timed = dict.fromkeys(DATASETS, usual.timed) | {"array": 10 * usual.timed}
        self.batch_sizes = dict.fromkeys(DATASETS, usual.batch_size)
        self.batch_sizes["array"] *= 4
        self.folder = usual.folder
        path = arguments.data / f"hugging-face-{len(self.folder.files)}"
        self._rows = _hugging_face(self.folder, path)
        self._pixels = _small_photographs(self.folder, self._num_images("array"))

    def start(self, dataset: str, loader: str) -> Iterator[Any]:
        """Begin a pass."""
        made, transform = getattr(self, f"_{dataset}")(loader)
        if loader == TORCH:
            return iter(
                DataLoader(made, self.batch_sizes[dataset], shuffle=True, num_workers=NUM_WORKERS)
            )
        ours: StatefulGPULoader[Any] = StatefulGPULoader(
            made,
            batch_size=self.batch_sizes[dataset],
            shuffle=True,
            num_workers=NUM_WORKERS,
            seed=42,
            transform=transform,
        )
        return iter(ours)

    def _num_images(self, dataset: str) -> int:
        num_batches = self._usual.warm_up + self.timed[dataset] + self._usual.spare
        return num_batches * self.batch_sizes[dataset]

    def _indices(self, dataset: str, length: int) -> list[int]:
        """Indices of the images in a pass: all of the dataset, over and over."""
        return [i % length for i in range(self._num_images(dataset))]

    def _image_folder(self, loader: str) -> tuple[Any, Any]:
        steps = v2.Compose([*crop_and_flip(), v2.ToImage(), *to_float()])
        dataset: Any = ImageFolder(str(self.folder.root), transform=steps)
        indices = self._indices("image_folder", len(dataset))
        if loader == CONVERTED:
            return Subset(FolderSource.from_dataset(dataset), indices), recipes()
        return Subset(dataset, indices), None

    def _hugging_face(self, loader: str) -> tuple[Any, Any]:
        rows = self._rows.select(self._indices("hugging_face", len(self._rows)))
        if loader == CONVERTED:
            return HuggingFaceSource(rows), recipes()
        steps = [*crop_and_flip(), v2.ToImage(), *to_float()]
        return rows.with_transform(RowTransform(steps)), None

    def _array(self, loader: str) -> tuple[Any, Any]:
        dataset = CIFAR10.__new__(CIFAR10)  # its constructor would download the images
        dataset.data = self._pixels
        dataset.targets = [i % 10 for i in range(len(self._pixels))]
        dataset.target_transform = None
        crop = [v2.RandomCrop(SMALL, padding=4), v2.RandomHorizontalFlip()]
        dataset.transform = v2.Compose([*crop, v2.ToImage(), *to_float()])
        if loader == CONVERTED:
            own = [T.RandomCrop(SMALL, padding=4), T.RandomHorizontalFlip()]
            return ArraySource(dataset.data, dataset.targets), [*own, T.Normalize(MEAN, STD)]
        return dataset, None

    def images_a_second(self, dataset: str, loader: str) -> float:
        """Return the rate of one pass.

        Raises:
            ValueError: its first batch is not one that every contestant makes.
        """
        batches, timed = self.start(dataset, loader), self.timed[dataset]
        batch = next(batches)
        batch = batch.values() if isinstance(batch, dict) else batch
        side = SMALL if dataset == "array" else SIZE
        check_batch(f"{dataset}, {loader}", batch, self.batch_sizes[dataset], side)
        seconds = seconds_a_batch(batches, warm_up=self._usual.warm_up - 1, timed=timed)
        return self.batch_sizes[dataset] / seconds


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``converted.json``."""
    arguments = parse(__doc__, rounds=9, given=given)
    quieten_peers()
    work = Work(arguments)
    pairs = [(dataset, loader) for dataset in DATASETS for loader in LOADERS]
    measurements = measured(
        [
            Contestant(
                name_of(dataset, loader),
                f"{DATASETS[dataset]}, {LOADERS[loader]}",
                functools.partial(work.images_a_second, dataset, loader),
            )
            for dataset, loader in pairs
        ],
        arguments,
        title="converted datasets",
        unit="images/s",
    )
    comparisons = compared(
        measurements,
        [
            (name_of(dataset, CONVERTED), name_of(dataset, other))
            for dataset in DATASETS
            for other in (TORCH, AS_IT_IS)
        ],
    )
    arguments.report(
        "converted",
        settings={
            **work.folder.settings,
            "num_workers": NUM_WORKERS,
            "batch_sizes": work.batch_sizes,
            "timed_batches": work.timed,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=aims_at_least(
            comparisons,
            {
                (name_of(dataset, CONVERTED), name_of(dataset, TORCH)): (
                    f"images of torch's DataLoader, {DATASETS[dataset]}",
                    aim,
                )
                for dataset, aim in AIMS.items()
            },
        ),
    )


def name_of(dataset: str, loader: str) -> str:
    """The key of a contestant in the JSON.

    >>> name_of("array", CONVERTED)
    'array converted'
    """
    return f"{dataset} {loader}"


def converted_section(content: Content) -> str:
    """Images a second of each dataset, unchanged and converted."""
    medians, batch_sizes = medians_of(content), content["settings"]["batch_sizes"]
    rows = []
    for dataset, label in DATASETS.items():
        found = [medians[name_of(dataset, loader)] for loader in LOADERS]
        times = f"{found[-1] / found[0]:.2f}x"
        rows.append([label, *(f"{rate:,.0f}" for rate in found), times])
    introduction = (
        f"**Converted datasets**: common datasets with torchvision's transforms, compared with "
        f" `FolderSource.from_dataset`, `HuggingFaceSource` and `ArraySource` with recipes. "
        f"Photographs of {content['settings']['width']}x{content['settings']['height']} pixels: "
        f"random crop resized to {SIZE}x{SIZE}, flip, normalised float32, batches of "
        f"{batch_sizes['image_folder']}. The array: {SMALL}x{SMALL} pixels, padded random crop, "
        f"flip, normalised float32, batches of {batch_sizes['array']}. "
        f"{content['settings']['num_workers']} workers."
    )
    head = ["images/s", *LOADERS.values(), "converted against DataLoader"]
    return f"{introduction}\n\n{as_table(head, rows)}\n\n{aims_table(content)}"


def _hugging_face(folder: PhotographFolder, path: Path) -> Any:
    """The photographs as a Hugging Face Dataset, in an Arrow file that is mapped into memory."""
    import datasets

    datasets.disable_progress_bars()
    if not path.is_dir():
        rows = {
            "image": [{"bytes": file.read_bytes(), "path": None} for file in folder.files],
            "label": list(folder.targets),
        }
        features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
        datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(path))
    return datasets.load_from_disk(str(path))


def _small_photographs(folder: PhotographFolder, count: int) -> Any:
    """Parts of the photographs, uint8 [count, 32, 32, 3]."""
    images = [np.asarray(Image.open(file).convert("RGB")) for file in folder.files[:24]]
    generator = np.random.default_rng(0)
    found = np.empty((count, SMALL, SMALL, 3), dtype=np.uint8)
    for i in range(count):
        image = images[i % len(images)]
        top = int(generator.integers(image.shape[0] - SMALL))
        left = int(generator.integers(image.shape[1] - SMALL))
        found[i] = image[top : top + SMALL, left : left + SMALL]
    return found


if __name__ == "__main__":
    main()
