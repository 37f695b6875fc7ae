"""Loaders of the throughput benchmark: same files, same batches.

Each function starts one pass over the files and returns its batches: float32
[batch_size, 3, 224, 224], a random crop of each image, resized, flipped with probability 1/2 and
normalised; and int64 [batch_size], the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.transforms import v2

from benchmarks.photographs import PhotographFolder
from stateful_gpu_loader import FolderSource, PreparedSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Task of every contestant."""

    folder: PhotographFolder
    batch_size: int
    num_batches: int
    num_workers: int
    """Number of processes or threads."""

    @property
    def files(self) -> list[str]:
        """One path for each image of the pass: the folder, repeated."""
        return self._over_and_over([str(file) for file in self.folder.files])

    @property
    def targets(self) -> list[int]:
        return self._over_and_over(list(self.folder.targets))

    def _over_and_over(self, values: list[Any]) -> list[Any]:
        num_images = self.batch_size * self.num_batches
        return (values * (num_images // len(values) + 1))[:num_images]


def torch_with_pillow(work: Pass) -> Iterator[Any]:
    """Start torch's DataLoader as in most code: Pillow decodes and crops, v2 does the rest."""
    steps = [*crop_and_flip(), v2.ToImage(), *to_float()]
    dataset = Photographs(work.files, work.targets, read_with_pillow, v2.Compose(steps))
    return iter(DataLoader(dataset, work.batch_size, shuffle=True, num_workers=work.num_workers))


def torch_with_torchvision(work: Pass, *, pin_memory: bool) -> Iterator[Any]:
    """Start torch's DataLoader with torchvision's fastest decoding and cropping."""
    return iter(
        DataLoader(
            _torchvision_photographs(work),
            work.batch_size,
            shuffle=True,
            num_workers=work.num_workers,
            pin_memory=pin_memory,
        )
    )


def torchdata_with_torchvision(work: Pass) -> Iterator[Any]:
    """Start StatefulDataLoader with torchvision's fastest decoding and cropping."""
    dataset = _torchvision_photographs(work)
    return iter(
        StatefulDataLoader(dataset, work.batch_size, shuffle=True, num_workers=work.num_workers)
    )


def _torchvision_photographs(work: Pass) -> Photographs:
    transform = v2.Compose([*crop_and_flip(), *to_float()])
    return Photographs(work.files, work.targets, read_with_torchvision, transform)


def dali(work: Pass, *, on_gpu: bool = False) -> Iterator[Any]:
    """Start DALI's pipeline, as in its ImageNet example, in its default execution mode."""
    pipeline = dali_pipeline(
        work.files, work.targets, work.batch_size, work.num_workers, on_gpu=on_gpu
    )
    for images, targets in dali_batches(dali_iterator(pipeline)):
        yield [images, targets]


def dali_pipeline(
    files: list[str],
    targets: list[int],
    batch_size: int,
    num_threads: int,
    *,
    on_gpu: bool = False,
    **options: Any,
) -> Any:
    """Return the pipeline of :func:`dali`, with more of ``pipeline_def``'s options.

    On a GPU it decodes there and returns float16, because DALI has no bfloat16.
    """
    from nvidia.dali import fn, pipeline_def, types

    def graph() -> Any:
        encoded, labels = fn.readers.file(
            files=files, labels=targets, random_shuffle=True, name="reader"
        )
        images = fn.decoders.image_random_crop(
            encoded,
            device="mixed" if on_gpu else "cpu",
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
        )
        images = fn.resize(images, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR)
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT16 if on_gpu else types.FLOAT,
            output_layout="CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=fn.random.coin_flip(probability=0.5),
        )
        return images, labels.gpu() if on_gpu else labels

    return pipeline_def(graph)(
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=0 if on_gpu else None,
        seed=1,
        **options,
    )


def dali_batches(iterator: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield images and labels of a ``DALIGenericIterator`` over this pipeline."""
    for (batch,) in iterator:
        yield batch["images"], batch["targets"].squeeze(1).long()


def dali_iterator(pipeline: Any) -> Any:
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    return DALIGenericIterator(pipeline, ["images", "targets"], reader_name="reader")


def ours(work: Pass, *, decoder: str, worker_type: str = "auto") -> Iterator[Any]:
    """Start this package's loader."""
    return ours_of(source_of(work), work, decoder=decoder, worker_type=worker_type)


def ours_prepared(work: Pass, folder: Path) -> Iterator[Any]:
    """Start the same over images kept in a folder, which the first pass fills."""
    return ours_of(PreparedSource(source_of(work), folder), work)


def source_of(work: Pass) -> FolderSource:
    return FolderSource.from_paths(work.files, work.targets, work.folder.root)


def folder_source(folder: PhotographFolder) -> FolderSource:
    """Return a source with each file once."""
    return FolderSource.from_paths(
        [str(file) for file in folder.files], list(folder.targets), folder.root
    )


def ours_of(source: Source, work: Pass, *, head: Sequence[Any] = (), **more: Any) -> Iterator[Any]:
    """Start this package's loader over a source of the images, with the recipes ``head`` first."""
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        source,
        batch_size=work.batch_size,
        shuffle=True,
        num_workers=work.num_workers,
        seed=42,
        transform=[*head, *recipes()],
        **more,
    )
    return iter(loader)


def recipes() -> list[T.Recipe]:
    """Return the recipes that this package's loaders apply to every photograph."""
    return [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)]


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """Dataset as a user of torch's loaders writes it for a list of files."""

    def __init__(
        self,
        files: list[str],
        targets: list[int],
        read: Callable[[str], Any],
        transform: Callable[[Any], torch.Tensor],
    ) -> None:
        self._files = files
        self._targets = targets
        self._read = read
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._transform(self._read(self._files[index])), self._targets[index]


def read_with_pillow(file: str) -> Image.Image:
    """Read a file like ``torchvision.datasets.ImageFolder``."""
    with open(file, "rb") as opened:
        return Image.open(opened).convert("RGB")


def read_with_torchvision(file: str) -> torch.Tensor:
    decoded: torch.Tensor = torchvision.io.decode_jpeg(
        torchvision.io.read_file(file), torchvision.io.ImageReadMode.RGB
    )
    return decoded


def crop_and_flip() -> list[Any]:
    return [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()]


def to_float() -> list[Any]:
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
