"""Photographs that this package alone rotates at random, saved within an epoch and resumed.

This is DALI's notebook "Dynamic mode checkpointing" without DALI: a shuffled folder, batches of
eight, angles from -30 to 30 degrees, and a checkpoint after the third batch. The fourth batch of
the run is shown next to the first of a restored run. The loader draws its order and its angles from
its seed, and `loader.draws()` returns those of a batch. The training loop's own draws, here a
brightness for each image, come from an `RNG`.
examples/dali_dynamic.py does the same with DALI's reader and generator.

Safer here:
- One state covers reader, order and rotations. It is a place, not a snapshot: the loader seeks, on
  another number of workers, and restores the pixels bit for bit.
- The restored epoch has only its remainder. DALI's own has the full length again.
- Other files, another order or another transform are refused by name. DALI restores a changed
  reader silently.
- The file has a checksum and is written completely or not at all; of several files, the newest
  valid one is loaded.
- A killed worker is replaced, and the stream is unchanged.

The photographs are first resized to 256 x 256 pixels to form one tensor.

    python -m examples.rotation [--folder FOLDER] [--output FOLDER]

writes rotation_original.png and rotation_restored.png. The folder holds class folders of JPEG
files; without it, a small one is written. Needs `pip install 'stateful_gpu_loader[demo]'`.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from matplotlib.figure import Figure

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import RNG, Checkpoint, FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T

BATCH_SIZE = 8
Loader = StatefulGPULoader[list[torch.Tensor]]
Batch = tuple[torch.Tensor, list[int], list[float], list[float]]


def build(folder: Path, num_workers: int) -> Loader:
    return StatefulGPULoader(
        FolderSource(folder),
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=1234,
        num_workers=num_workers,
        device="cuda" if torch.cuda.is_available() else None,
        transform=[T.Resize(256), T.CenterCrop(256), T.RandomRotation(30)],
    )


def brightened(loader: Loader, images: torch.Tensor, labels: torch.Tensor, rng: RNG) -> Batch:
    """Return images, uint8 [n, 3, 256, 256], with their labels, angles and brightness factors."""
    angles = loader.draws()[-1]["angle"].round(4)
    factors = rng.uniform(0.7, 1.3, size=len(images)).round(4)
    scale = torch.tensor(factors, dtype=torch.float32, device=images.device)[:, None, None, None]
    images = (images * scale).clamp(0, 255).to(torch.uint8)
    return images, labels.tolist(), angles.tolist(), factors.tolist()


def main(folder: Path, checkpoints: Path, output: Path) -> None:
    pattern = str(checkpoints / "checkpoint_{seq:04d}.json")
    loader, rng, checkpoint = build(folder, num_workers=2), RNG(42), Checkpoint()
    checkpoint.register(loader, "loader")
    checkpoint.register(rng, "rng")
    batches = iter(loader)
    for _ in range(3):
        brightened(loader, *next(batches), rng)
    checkpoint.collect()
    print("Saved checkpoint to", Path(checkpoint.save(pattern)).name)
    original = [brightened(loader, images, labels, rng) for images, labels in batches]

    loader, rng, checkpoint = build(folder, num_workers=3), RNG(), Checkpoint()
    checkpoint.load(pattern)
    checkpoint.register(loader, "loader")
    checkpoint.register(rng, "rng")
    restored = [brightened(loader, images, labels, rng) for images, labels in loader]

    for name, (images, labels, angles, factors) in {
        "original": original[0],
        "restored": restored[0],
    }.items():
        print(f"labels ({name}):  {labels}")
        print(f"angles ({name}):  {angles}")
        print(f"brightness ({name}):  {factors}")
        show(images, labels, angles, output / f"rotation_{name}.png")
    print("rest of the epoch:", len(original), "and", len(restored), "batches")
    for number, (one, other) in enumerate(zip(original, restored, strict=True), 4):
        is_same = one[1:] == other[1:] and torch.equal(one[0], other[0])
        verdict = "the same" if is_same else "ANOTHER"
        print(f"batch {number}: labels, angles, brightness and pixels", verdict)


def show(images: torch.Tensor, labels: list[int], angles: list[float], path: Path) -> None:
    """Draw a batch in four columns, each image under its label and angle."""
    figure = Figure(figsize=(16, 8), layout="constrained")
    for axes, image, label, angle in zip(
        figure.subplots(2, 4).flat, images, labels, angles, strict=True
    ):
        axes.imshow(image.permute(1, 2, 0).numpy(force=True))
        axes.set_title(f"label={label}, angle={angle:.2f}")
        axes.axis("off")
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Photographs turned at random, and a resume.")
    parser.add_argument("--folder", type=Path, help="class folders of JPEG files")
    parser.add_argument("--output", type=Path, default=Path(), help="for the pictures")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        if given.folder is None:
            write_photographs(photographs := Path(temporary, "photographs"), files_per_class=6)
        main(given.folder or photographs, Path(temporary), given.output)
