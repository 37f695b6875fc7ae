"""DALI's dynamic mode, saved within an epoch and resumed: labels, angles and pixels.

Based on DALI's notebook "Dynamic mode checkpointing". As there, a reader with shuffle (seed 1234)
and an RNG (seed 42) are registered in a checkpoint. Three batches of eight photographs are decoded
and rotated by angles from -30 to 30 degrees, and the checkpoint is saved. The fourth batch of the
run is compared with the first of a restored run. Without a GPU, DALI runs on the CPU.

Safer here:
- The restored epoch has only its remainder. DALI's own has the full length again: it continues into
  data of the next epoch.
- A reader of other files, or with another order, buffer, shard or batch size, is refused by name.
  DALI restores it silently.
- The file has a checksum and is written completely or not at all; of several files, the newest
  valid one is loaded. DALI takes the newest, and waits forever for a reader with a damaged state.
- The reader counts delivered samples, so the state is right after a `break`, after an epoch's last
  batch, and after an error.

Loaders, samplers and generators of this package can be registered in DALI's `Checkpoint`, too.
DALI's threads stay in a process that has used dynamic mode, and a forked child would wait for them
forever. The worker processes of this package are then started by a fork server.

    python -m examples.dali_dynamic [--folder FOLDER] [--output FOLDER]

writes dali_original.png and dali_restored.png. The folder holds class folders of JPEG files;
without it, a small one is written. Needs `pip install 'stateful_gpu_loader[dali,demo]'`.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
import torch
from matplotlib.figure import Figure

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import Checkpoint
from stateful_gpu_loader.integrations.dali_dynamic import StatefulReader

BATCH_SIZE = 8
DEVICE = "gpu" if torch.cuda.is_available() else "cpu"
Batch = tuple[list[Any], list[int], list[float]]


def augment(jpegs: Any, labels: Any, rng: Any) -> Batch:
    """Return randomly rotated images, each uint8 [height, width, 3], their labels and angles."""
    images = ndd.decoders.image(jpegs, device=DEVICE)
    angles = ndd.random.uniform(batch_size=BATCH_SIZE, range=(-30.0, 30.0), rng=rng)
    rotated = ndd.rotate(images, angle=angles, fill_value=0)
    return (
        arrays(rotated),
        [int(label.item()) for label in arrays(labels)],
        [float(angle.item()) for angle in arrays(angles)],
    )


def arrays(batch: Any) -> list[Any]:
    return [np.array(sample) for sample in batch.cpu().tensors]


def main(folder: Path, checkpoints: Path, output: Path) -> None:
    pattern = str(checkpoints / "ndd_checkpoint_{seq:04d}.json")
    reader = StatefulReader(ndd.readers.File, file_root=str(folder), random_shuffle=True, seed=1234)
    rng = ndd.random.RNG(seed=42)
    checkpoint = Checkpoint()
    checkpoint.register(reader, "reader")
    checkpoint.register(rng, "rng")
    epoch = reader.next_epoch(batch_size=BATCH_SIZE)
    for _ in range(3):
        augment(*next(epoch), rng)
    checkpoint.collect()
    print("Saved checkpoint to", Path(checkpoint.save(pattern)).name)
    original = [augment(jpegs, labels, rng) for jpegs, labels in epoch]

    reader = StatefulReader(ndd.readers.File, file_root=str(folder), random_shuffle=True)
    rng = ndd.random.RNG()
    checkpoint = Checkpoint()
    checkpoint.load(pattern)
    checkpoint.register(reader, "reader")
    checkpoint.register(rng, "rng")
    restored = [
        augment(jpegs, labels, rng) for jpegs, labels in reader.next_epoch(batch_size=BATCH_SIZE)
    ]

    for name, (images, labels, angles) in {
        "original": original[0],
        "restored": restored[0],
    }.items():
        print(f"labels ({name}):  {labels}")
        print(f"angles ({name}):  {[f'{angle:.4f}' for angle in angles]}")
        show(images, labels, angles, output / f"dali_{name}.png")
    print("rest of the epoch:", len(original), "and", len(restored), "batches")
    for number, (one, other) in enumerate(zip(original, restored, strict=True), 4):
        is_same = one[1:] == other[1:] and all(map(np.array_equal, one[0], other[0]))
        print(f"batch {number}: labels, angles and pixels", "the same" if is_same else "ANOTHER")


def show(images: list[Any], labels: list[int], angles: list[float], path: Path) -> None:
    """Draw a batch in four columns, each image under its label and angle."""
    figure = Figure(figsize=(16, 8), layout="constrained")
    for axes, image, label, angle in zip(
        figure.subplots(2, 4).flat, images, labels, angles, strict=True
    ):
        axes.imshow(image)
        axes.set_title(f"label={label}, angle={angle:.2f}")
        axes.axis("off")
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A reader of dynamic mode, and a resume.")
    parser.add_argument("--folder", type=Path, help="class folders of JPEG files")
    parser.add_argument("--output", type=Path, default=Path(), help="for the pictures")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        if given.folder is None:
            write_photographs(photographs := Path(temporary, "photographs"), files_per_class=6)
        main(given.folder or photographs, Path(temporary), given.output)
