"""A callable that reads one sample per call, in forked workers of two loaders.

Based on DALI's notebook "Parallel External Source - Fork": a training and a validation pipeline
with four workers each, forked before the GPU is used. Their `source` is called with the place of a
sample. As there, the first batch of each is drawn, in `training.png` (random contrast from 1 to 3)
and `validation.png` (contrast 1.5). The order is shuffled as in the second notebook of the pair.

Safer here:
- A state taken during the training pass restores the rest bit for bit, including order and
  contrasts, on another number of workers. The callable is called with the same places, and with
  none before them.
- A killed worker is replaced and, with `timeout=`, so is a hanging one; the stream is unchanged. In
  DALI a killed worker ends the run without an exit code, and DALI waits forever for a hanging one.
- An exception of the callable keeps its type, names the sample, and leaves the loader usable.
- The callable's draws from `random`, `numpy.random` and torch are keyed by the sample.

Like DALI's `start_py_workers`, `start_workers` refuses to fork once CUDA is initialised. Two things
differ. DALI's contrast is relative to the fixed level 128; here, as in torchvision, it is relative
to the mean grey of each image. And images are resized to 256 x 256 pixels to form one tensor.

    python -m examples.parallel_callable [--folder FOLDER] [--output FOLDER]

The folder holds JPEG files and file_list.txt, with a line "name label" for each; without it, a
small one is written. Needs `pip install 'stateful_gpu_loader[demo]'`.
"""

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import CallableSource, SampleInfo, StatefulGPULoader, start_workers
from stateful_gpu_loader import transforms as T

BATCH_SIZE = 4
Sample = tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], np.int32]
Loader = StatefulGPULoader[list[torch.Tensor]]


class FileList:
    """Image file and label at a place of the epoch's order; whole batches only."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "file_list.txt").read_text(encoding="utf-8").splitlines()
        self.samples = [line.rsplit(maxsplit=1) for line in lines if line]
        self.folder = folder
        self.num_whole = len(self.samples) // BATCH_SIZE * BATCH_SIZE

    def __call__(self, info: SampleInfo) -> Sample:
        if info.idx_in_epoch >= self.num_whole:
            raise StopIteration
        order = np.random.default_rng(seed=42 + info.epoch_idx).permutation(len(self.samples))
        name, label = self.samples[order[info.idx_in_epoch]]
        return np.fromfile(self.folder / name, np.uint8), np.int32(label)


def build(folder: Path, contrast: tuple[float, float], num_workers: int = 4) -> Loader:
    source = CallableSource(FileList(folder), image=0, dtype=(np.uint8, np.int32), ndim=(1, 0))
    return StatefulGPULoader(
        source,
        batch_size=BATCH_SIZE,
        seed=42,
        num_workers=num_workers,
        multiprocessing_context="fork",
        device="cuda" if torch.cuda.is_available() else None,
        transform=[T.Resize(256), T.CenterCrop(256), T.ColorJitter(contrast=contrast)],
    )


def main(folder: Path, output: Path) -> None:
    training, validation = build(folder, contrast=(1, 3)), build(folder, contrast=(1.5, 1.5))
    start_workers(training, validation)  # before anything that uses the GPU, such as a model
    for name, loader in {"training": training, "validation": validation}.items():
        images, labels = next(batches := iter(loader))
        show(images, labels, path := output / f"{name}.png")
        print(f"{name}: {tuple(images.shape)} {images.dtype} in {path.name}")
        for number, (_, labels) in enumerate(batches, 1):
            print(f"{name}: epoch 0, batch {number}, labels {labels.tolist()}")

    batches = iter(training)
    next(batches), next(batches)  # the next epoch; a training run is stopped here
    torch.save(training.state_dict(), file := io.BytesIO())
    file.seek(0)
    resumed = build(folder, contrast=(1, 3), num_workers=2)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for (images, labels), (images_again, labels_again) in zip(batches, resumed, strict=True):
        is_same = torch.equal(images, images_again) and torch.equal(labels, labels_again)
        print(f"training: epoch 1, labels {labels.tolist()}", "the same" if is_same else "ANOTHER")


def show(images: torch.Tensor, labels: torch.Tensor, path: Path) -> None:
    """Draw a batch in two columns, each image under its label."""
    figure = Figure(figsize=(8, 8.6), layout="constrained")
    for axes, image, label in zip(figure.subplots(2, 2).flat, images, labels.tolist(), strict=True):
        axes.imshow(image.permute(1, 2, 0).numpy(force=True))
        axes.set_title(label)
        axes.axis("off")
    figure.savefig(path)


def write_folder(folder: Path, files_per_class: int = 2) -> Path:
    """Write photographs that ship with scikit-image and scikit-learn, and their list."""
    write_photographs(folder, files_per_class=files_per_class)
    classes = sorted(folder.iterdir())
    lines = [
        f"{path.relative_to(folder)} {label}\n"
        for label, each in enumerate(classes)
        for path in sorted(each.iterdir())
    ]
    (folder / "file_list.txt").write_text("".join(lines), encoding="utf-8")
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Two loaders over a callable, and a resume.")
    parser.add_argument("--folder", type=Path, help="of JPEG files and file_list.txt")
    parser.add_argument("--output", type=Path, default=Path(), help="for the pictures")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        main(given.folder or write_folder(Path(folder)), given.output)
