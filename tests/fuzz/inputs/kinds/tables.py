"""Parquet files and LMDBs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from stateful_gpu_loader import Caffe2LMDBSource, CaffeLMDBSource, ParquetShards, ParquetSource
from tests.datasets.lmdb.lmdb_files import encoded_datum, tensor, tensors, write_lmdb
from tests.fuzz.inputs.kind import MIB, Kind

_TARGETS = {"label": "label", "text": "text", "numbers": "numbers", "when": "when", "deep": "s.x"}


def _table() -> Any:
    return pyarrow.table(
        {
            "image": [b"first", b"second" * 20, b""],
            "label": [1, 2, 3],
            "text": ["a", "é", "ccc"],
            "numbers": [[1.0, 2.0], [], [3.0]],
            "when": pyarrow.array([1, 2, 3], type=pyarrow.timestamp("s")),
            "s": [{"x": 1, "y": "b"}, {"x": 2, "y": None}, {"x": 3, "y": "d"}],
        }
    )


class ParquetFiles(Kind):
    """Read by row group, as a stream, and as whole records."""

    name = "Parquet"
    share = 0.6
    # A damaged file may claim more memory than a child may take.
    refusals = (ValueError, OSError, MemoryError)
    memory = 512 * MIB

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "a.parquet"
        options: tuple[dict[str, Any], ...] = (
            {"row_group_size": 2},
            {"compression": "none", "use_dictionary": False, "write_page_checksum": True},
            {"compression": "zstd", "data_page_version": "2.0"},
        )
        self.examples = []
        for each in options:
            buffer = io.BytesIO()
            pyarrow.parquet.write_table(_table(), buffer, **each)
            self.examples.append(buffer.getvalue())

    def read(self, content: bytes, example: int) -> None:
        self._path.write_bytes(content)
        refused = None
        try:
            shards: Any = ParquetShards(self._path, target=_TARGETS)
            for sample, _ in shards.read_shard("a.parquet", 0):
                if isinstance(sample, ValueError):
                    raise sample
        except ValueError as error:
            refused = error
        source = ParquetSource(self._path, target=_TARGETS)
        for index in range(min(len(source), 20)):
            source.read(index)
            source.record(index)
        if refused is not None:
            raise refused


class Lmdbs(Kind):
    """Whole environments with Caffe's and Caffe2's records."""

    name = "LMDB"
    share = 1
    refusals = (ValueError, OSError)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        records = [encoded_datum(b"image" * (1 + 900 * (i == 2)), i) for i in range(4)]
        protos = [tensors(tensor("string", b"image"), tensor("int32", [i])) for i in range(300)]
        self.examples = [_lmdb(folder / "caffe", records), _lmdb(folder / "caffe2", protos)]
        self._count = 0

    def read(self, content: bytes, example: int) -> None:
        # Another name each time: facts about a file are cached by its inode.
        self._count += 1
        path = self.folder / f"{self._count}.mdb"
        path.write_bytes(content)
        try:
            source: Any = (CaffeLMDBSource, Caffe2LMDBSource)[example](path)
            for index in range(min(len(source), 20)):
                source.read(index)
            source.fingerprint()
        finally:
            path.unlink()
            Path(f"{path}-lock").unlink(missing_ok=True)


def _lmdb(path: Path, records: list[bytes]) -> bytes:
    write_lmdb(path, records, subdir=False)
    return path.read_bytes()


KINDS = (ParquetFiles, Lmdbs)
