"""A DALI pipeline that is saved after three batches and resumed in a new pipeline.

Based on DALI's notebook "Pipeline checkpointing": `fn.readers.file` with `random_shuffle`, decoded
and rotated by a random angle in (-30, 30), batches of 8, seed 12. As there, the state is saved
after three batches. The labels and angles of the next batch are printed, from the original and
from a new pipeline; both batches are drawn, in `pipeline_original.png` and `pipeline_restored.png`.
Images are resized to 256 x 256 pixels to form one tensor. Without a GPU the pipeline runs on the
CPU.

Safer here:
- The state is a `state_dict()`, next to those of the model and the optimizer. It knows its epoch:
  the resumed epoch has only its remainder, and then the next one begins.
- Another batch size, shuffle, shard, crop, operator or folder of files is refused by name. DALI
  silently continues in most of these cases.
- An external source that DALI cannot resume is refused by name, where DALI warns and starts again.
- The file has a checksum and is written completely or not at all.

    python -m examples.dali_pipeline [--folder FOLDER] [--output FOLDER]

The folder holds one folder of JPEG files for each class; without it, a small one is written. Needs
`pip install 'stateful_gpu_loader[dali,demo]'`.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from nvidia.dali import fn, pipeline_def

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import Checkpoint
from stateful_gpu_loader.integrations.dali import DALILoader

BATCH_SIZE = 8
HAS_GPU = torch.cuda.is_available()


@pipeline_def(batch_size=BATCH_SIZE, num_threads=4, device_id=0 if HAS_GPU else None, seed=12)
def rotated(folder: Path) -> Any:
    jpegs, labels = fn.readers.file(file_root=str(folder), random_shuffle=True, name="files")
    images = fn.decoders.image(jpegs, device="mixed" if HAS_GPU else "cpu")
    angles = fn.random.uniform(range=(-30.0, 30.0))
    images = fn.rotate(images, angle=angles, fill_value=0, keep_size=True)
    return fn.resize(images, size=(256, 256)), labels, angles


def build(folder: Path) -> DALILoader:
    return DALILoader(partial(rotated, folder), ["images", "labels", "angles"])


def main(folder: Path, output: Path) -> None:
    loader = build(folder)
    checkpoint = Checkpoint()
    checkpoint.register(loader, "loader")
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    with tempfile.TemporaryDirectory() as saved:
        pattern = f"{saved}/pipeline_{{seq:04d}}.json"
        checkpoint.collect()
        print(f"Saved checkpoint to {Path(checkpoint.save(pattern)).name}")
        restored, loader_again = Checkpoint(), build(folder)
        restored.load(pattern)
        restored.register(loader_again, "loader")

    # The original continues as if it had not been stopped.
    original, resumed = list(batches), list(loader_again)
    for name in ("labels", "angles"):
        for of, batch in (("original", original[0]), ("restored", resumed[0])):
            numbers = [round(number, 4) for number in batch[name].flatten().tolist()]
            print(f"{name} ({of}):  {numbers}")
    show(original[0], output / "pipeline_original.png")
    show(resumed[0], output / "pipeline_restored.png")
    print(f"rest of the epoch: {len(original)} and {len(resumed)} batches of {len(loader)}")
    for number, (batch, again) in enumerate(zip(original, resumed, strict=True), 4):
        is_same = all(torch.equal(batch[name], again[name]) for name in batch)
        print(f"batch {number}: labels, angles and pixels", "the same" if is_same else "ANOTHER")


def show(batch: dict[str, torch.Tensor], path: Path) -> None:
    """Draw a batch, each image under its label and angle."""
    figure = Figure(figsize=(16, 8.6), layout="constrained")
    rows = zip(*(batch[name] for name in ("images", "labels", "angles")), strict=True)
    for axes, (image, label, angle) in zip(figure.subplots(2, 4).flat, rows, strict=True):
        axes.imshow(image.numpy(force=True))
        axes.set_title(f"label={label.item()}, angle={angle.item():.2f}")
        axes.axis("off")
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path, default=Path())
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.folder is None:
            arguments.folder = Path(temporary)
            write_photographs(arguments.folder, files_per_class=6)
        main(arguments.folder, arguments.output)
