"""Loaders of the throughput benchmark: same files, same batches.

Each function starts one pass over the files and returns its batches: float32
[batch_size, 3, 224, 224], a random crop of each image, resized, flipped with probability 1/2 and
normalised; and int64 [batch_size], the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.transforms import v2

from benchmarks.arguments import Arguments
from benchmarks.harness import seconds_a_batch
from benchmarks.photographs import PhotographFolder, photograph_folder
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Task of every contestant."""

    folder: PhotographFolder
    batch_size: int
    timed: int
    """Number of batches while the clock runs, in the middle of the pass: neither the start of
    workers nor the first batches count."""
    num_workers: int = 2
    """Number of processes or threads."""
    warm_up: int = 4
    spare: int = 4
    """Number of batches at the end of the pass, so that no worker idles while the clock runs."""

    @property
    def num_batches(self) -> int:
        return self.warm_up + self.timed + self.spare

    def images_a_second(self, start: Callable[[], Iterator[Any]]) -> float:
        """Return the rate in the middle of a new pass."""
        return self.batch_size / seconds_a_batch(start(), warm_up=self.warm_up, timed=self.timed)

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


def usual_pass(arguments: Arguments) -> Pass:
    """Return 24 timed batches of 64 images of 512 files."""
    num_images, batch_size, timed = (24, 4, 4) if arguments.quick else (512, 64, 24)
    folder = photograph_folder(num_images, arguments.data)
    return Pass(folder=folder, batch_size=batch_size, timed=timed)


def check_batch(name: str, batch: Any, num_images: int, side: int = SIZE) -> None:
    """Refuse to time a contestant that makes other batches.

    Raises:
        ValueError: not float32 [num_images, 3, side, side] normalised, and int64 [num_images].
    """
    images, targets = batch
    shape = (num_images, 3, side, side)
    if tuple(images.shape) != shape or images.dtype != torch.float32 or not images.is_contiguous():
        raise ValueError(f"{name} gives {images.dtype} {list(images.shape)} instead of {shape}")
    if tuple(targets.shape) != shape[:1] or targets.dtype != torch.int64:
        raise ValueError(f"{name} gives classes of {targets.dtype} {list(targets.shape)}")
    if not (0.5 < images.std() < 2.5 and images.min() < 0 < images.max()):
        raise ValueError(f"{name} gives pixels that are not normalised: {images.std() = }")


def torch_with_pillow(
    work: Pass, read: Callable[[str], Image.Image] | None = None, head: Sequence[Any] = ()
) -> Iterator[Any]:
    """Start torch's DataLoader as in most code: Pillow decodes and crops, v2 does the rest.

    Args:
        read: replaces :func:`read_with_pillow`.
        head: transforms before the crop.
    """
    steps = v2.Compose([*head, *crop_and_flip(), v2.ToImage(), *to_float()])
    dataset = Photographs(work.files, work.targets, read or read_with_pillow, steps)
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
    given = work.files, work.targets, work.batch_size, work.num_workers
    pipeline = dali_pipeline(*given, on_gpu=on_gpu)
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


def ours(work: Pass, **more: Any) -> Iterator[Any]:
    """Start this package's loader."""
    return ours_of(source_of(work), work, **more)


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
