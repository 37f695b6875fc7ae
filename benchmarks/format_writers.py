"""Writers of image files and labels in every format that a source reads."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.record_encoding import datum, example, recordio, tensors, tfrecord

FOLDER, TAR, CAFFE, CAFFE2 = "folder", "tar", "caffe", "caffe2"
TFRECORD, RECORDIO, PARQUET = "tfrecord", "recordio", "parquet"

SUFFIXES = {
    FOLDER: "",
    TAR: ".tar",
    CAFFE: "",
    CAFFE2: "",
    TFRECORD: ".tfrecord",
    RECORDIO: ".rec",
    PARQUET: ".parquet",
}

Encoded = tuple[bytes, int]
"""An image file and its label."""

_LARGEST_LMDB = 1 << 34


def write(
    name: str, folder: Path, samples: Iterator[Encoded], *, count: int, num_files: int, rows: int
) -> None:
    """Write ``part-00000``, ``part-00001`` and so on, with indices if DALI needs them.

    Args:
        name: name of the format.
        folder: a folder that does not exist yet.
        samples: ``count`` samples.
        count: number of samples, divided over the files; the last file may have fewer.
        num_files: number of files; LMDB and folders have one.
        rows: number of rows in a Parquet file's row groups.
    """
    folder.mkdir(parents=True)
    share = -(-count // num_files)
    for number in range(num_files):
        path = folder / f"part-{number:05d}{SUFFIXES[name]}"
        part = itertools.islice(samples, share)
        if name == PARQUET:
            _write_parquet(path, part, rows)
        else:
            _WRITERS[name](path, part)


def _write_folder(path: Path, samples: Iterator[Encoded]) -> None:
    for number, (data, label) in enumerate(samples):
        file = path / f"class-{label:03d}" / f"{number:07d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _write_tar(path: Path, samples: Iterator[Encoded]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, (data, label) in enumerate(samples):
            for extension, content in (("jpg", data), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:07d}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
                held: Any = tar
                held.members.clear()  # there may be a million


def _write_lmdb(path: Path, records: Iterator[bytes]) -> None:
    import lmdb

    with lmdb.open(str(path), map_size=_LARGEST_LMDB) as database:
        numbered = enumerate(records)
        while block := list(itertools.islice(numbered, 1000)):
            with database.begin(write=True) as transaction:
                for number, record in block:
                    transaction.put(f"{number:08d}".encode(), record, append=True)


def _write_caffe(path: Path, samples: Iterator[Encoded]) -> None:
    _write_lmdb(path, itertools.starmap(datum, samples))


def _write_caffe2(path: Path, samples: Iterator[Encoded]) -> None:
    _write_lmdb(path, itertools.starmap(tensors, samples))


def _write_tfrecord(path: Path, samples: Iterator[Encoded]) -> None:
    lines, at = [], 0
    with open(path, "wb") as file:
        for data, label in samples:
            size = file.write(tfrecord(example(data, label)))
            lines.append(f"{at} {size}\n")
            at += size
    Path(f"{path}.idx").write_text("".join(lines), encoding="ascii")


def _write_recordio(path: Path, samples: Iterator[Encoded]) -> None:
    lines, at = [], 0
    with open(path, "wb") as file:
        for number, (data, label) in enumerate(samples):
            lines.append(f"{number}\t{at}\n")
            at += file.write(recordio(data, label, number))
    Path(f"{path}.idx").write_text("".join(lines), encoding="ascii")


def _write_parquet(path: Path, samples: Iterator[Encoded], rows: int) -> None:
    import pyarrow
    import pyarrow.parquet

    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema([("image", image), ("label", pyarrow.int64())])
    # The Hugging Face hub stores images like this; JPEG files do not compress further.
    with pyarrow.parquet.ParquetWriter(path, schema, compression="none") as writer:
        while block := list(itertools.islice(samples, rows)):
            columns: dict[str, Any] = {
                "image": [{"bytes": data, "path": None} for data, _ in block],
                "label": [label for _, label in block],
            }
            writer.write_table(pyarrow.table(columns, schema), row_group_size=rows)


_WRITERS: dict[str, Callable[[Path, Iterator[Encoded]], None]] = {
    FOLDER: _write_folder,
    TAR: _write_tar,
    CAFFE: _write_caffe,
    CAFFE2: _write_caffe2,
    TFRECORD: _write_tfrecord,
    RECORDIO: _write_recordio,
}
