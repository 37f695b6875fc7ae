"""Images in Caffe's and Caffe2's LMDBs: a batch of each as a picture, saved and resumed.

Based on DALI's notebook "Data Loading: LMDB Database" (`fn.readers.caffe`, `fn.readers.caffe2`,
`fn.decoders.image`, `fn.crop_mirror_normalize` at random places). As there, the first batch of
each format is drawn: nine crops of 224 pixels, float32 from 0 to 255. Each image is first resized
to 256, like those of Caffe's ImageNet database, so that none is smaller than its crop.

Safer here:
- A state taken after any batch restores the rest bit for bit, including crops, on any number of
  workers. It seeks; DALI's reader skips through the records that were already read.
- A state of another database, or of one rewritten with other labels, is refused by name. DALI
  restores it silently.
- A damaged record is named with its key, or replaced or dropped (`on_bad_sample`), and the loader
  continues. In DALI it ends the pipeline permanently.
- `shuffle=True` permutes the whole database. DALI's `random_shuffle` draws from a buffer of 1024.

    python -m examples.caffe_lmdb [--databases CAFFE CAFFE2] [--output FOLDER]

writes lmdb_caffe.png and lmdb_caffe2.png; without paths, it first writes two small databases.
Needs `pip install 'stateful_gpu_loader[lmdb,demo]'`.
"""

import argparse
import io
import tempfile
from pathlib import Path

import lmdb
import torch
from matplotlib.figure import Figure

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import Caffe2LMDBSource, CaffeLMDBSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source

BATCH_SIZE = 9
Loader = StatefulGPULoader[list[torch.Tensor]]


def build(source: Source, num_workers: int) -> Loader:
    return StatefulGPULoader(
        source,
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=42,
        num_workers=num_workers,
        transform=[T.Resize(256), T.RandomCrop(224), T.ToDtype(torch.float32)],
    )


def main(caffe: Path, caffe2: Path, output: Path) -> None:
    for name, source in {
        "caffe": CaffeLMDBSource(caffe),
        "caffe2": Caffe2LMDBSource(caffe2),
    }.items():
        batches = iter(loader := build(source, num_workers=2))
        images, labels = next(batches)
        show(images, labels, path := output / f"lmdb_{name}.png")
        print(f"{name}: {len(source)} images, {tuple(images.shape)} {images.dtype} in {path.name}")
        next(batches)  # a training run is stopped here
        torch.save(loader.state_dict(), file := io.BytesIO())
        file.seek(0)
        (resumed := build(source, num_workers=3)).load_state_dict(
            torch.load(file, weights_only=True)
        )
        for (images, labels), (images_again, labels_again) in zip(batches, resumed, strict=True):
            is_same = torch.equal(images, images_again) and torch.equal(labels, labels_again)
            print(f"{name}: labels {labels.tolist()}", "the same" if is_same else "ANOTHER")


def show(images: torch.Tensor, labels: torch.Tensor, path: Path) -> None:
    """Draw a batch in three columns, each image under its label."""
    figure = Figure(figsize=(9, 9.6), layout="constrained")
    for axes, image, label in zip(figure.subplots(3, 3).flat, images, labels.tolist(), strict=True):
        axes.imshow(image.permute(1, 2, 0).numpy() / 255)
        axes.set_title(label)
        axes.axis("off")
    figure.savefig(path)


def write_databases(folder: Path, files_per_class: int = 4) -> tuple[Path, Path]:
    """Write photographs of scikit-image and scikit-learn as Caffe and Caffe2 store them."""
    write_photographs(folder / "photographs", files_per_class=files_per_class)
    classes = sorted((folder / "photographs").iterdir())
    files = [(path, label) for label, each in enumerate(classes) for path in sorted(each.iterdir())]
    caffe, caffe2 = folder / "caffe", folder / "caffe2"
    with (
        lmdb.open(str(caffe), 1 << 28) as database,
        lmdb.open(str(caffe2), 1 << 28) as database2,
        database.begin(write=True) as datums,
        database2.begin(write=True) as tensors,
    ):
        for number, (path, label) in enumerate(files):
            data = path.read_bytes()
            datums.put(f"{number:08d}_{path.name}".encode(), datum(data, label))
            tensors.put(f"{number:08d}".encode(), tensor_protos(data, label))
    return caffe, caffe2


def datum(data: bytes, label: int) -> bytes:
    """Return Caffe's Datum: field 4 is the image file, 5 its class, 7 marks it as a file."""
    return field(4, data) + field(5, label) + field(7, 1)


def tensor_protos(data: bytes, label: int) -> bytes:
    """Return Caffe2's TensorProtos: the file as strings (kind 4), the label as int32 (kind 2)."""
    image = field(2, 4) + field(6, data)
    return field(1, image) + field(1, field(2, 2) + field(4, label))


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A batch of each LMDB, and a resume.")
    parser.add_argument("--databases", type=Path, nargs=2, metavar=("CAFFE", "CAFFE2"))
    parser.add_argument("--output", type=Path, default=Path(), help="for the pictures")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        caffe, caffe2 = given.databases or write_databases(Path(folder))
        main(caffe, caffe2, given.output)
