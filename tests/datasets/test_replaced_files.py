"""A file that takes another's place after it was indexed is noticed, whoever reads."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import CaffeLMDBSource, RecordIOSource, StatefulGPULoader, TFRecordSource
from stateful_gpu_loader import transforms as T
from tests.datasets.lmdb.lmdb_files import encoded_datum, photo_files, write_lmdb
from tests.datasets.record_files import photos
from tests.datasets.record_kinds import RECORDIO, TFRECORD, Kind


def write_database(path: Path, label: int) -> Path:
    files = photo_files(path.parent / "photos", per_class=3)
    return write_lmdb(path, [encoded_datum(data, label) for data, _ in files])


def test_a_source_made_anew_reads_the_database_that_is_there_now(tmp_path: Path) -> None:
    """Even while one over the database before it is still held."""
    path = write_database(tmp_path / "lmdb", 1)
    first = CaffeLMDBSource(path)
    assert first[0][1] == 1
    shutil.rmtree(path)
    write_database(path, 2)
    assert CaffeLMDBSource(path)[0][1] == 2
    assert first[0][1] == 1, "it holds the file that it has indexed"
    pickled = pickle.dumps(first)
    del first
    with pytest.raises(OSError, match="another database took its place"):
        pickle.loads(pickled).read(0)


@pytest.mark.parametrize(("kind", "make"), [(TFRECORD, TFRecordSource), (RECORDIO, RecordIOSource)])
@pytest.mark.parametrize("on_bad_sample", ["raise", "replace", "drop"])
def test_a_replaced_file_of_records_is_no_bad_sample(
    tmp_path: Path, kind: Kind, make: Any, on_bad_sample: str
) -> None:
    """Nor does it give other images of as many bytes, read by a worker that opens it."""
    path, images = tmp_path / "a.records", photos(tmp_path / "photos", 6)
    kind.write(path, images)
    source = make(path)
    kind.write(tmp_path / "other", images[::-1])
    os.replace(tmp_path / "other", path)
    loader = StatefulGPULoader(
        source, batch_size=2, on_bad_sample=on_bad_sample, transform=[T.Resize((8, 8))]
    )
    with pytest.raises(OSError, match="another file took its place since it was indexed"):
        next(iter(loader))
    assert loader.bad_samples.total == 0
