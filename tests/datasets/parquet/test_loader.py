"""Parquet files through the loader: whose state is refused, and what rows may be bad."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest

from stateful_gpu_loader import StateMismatch
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.parquet.source import ParquetSource
from tests.conformance import flat
from tests.datasets.image_loaders import make_loader
from tests.datasets.parquet.parquet_files import write_photos


def test_a_state_of_other_rows_is_refused(tmp_path: Path) -> None:
    paths = write_photos(tmp_path)
    loader = make_loader(ParquetSource(paths))
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateMismatch, match="dataset") as caught:
        make_loader(ParquetSource(paths, target=None)).load_state_dict(state)
    assert caught.value.field == "dataset"


def test_a_bad_row_is_replaced_and_a_replaced_file_is_not(tmp_path: Path) -> None:
    """A bad sample keeps its position."""
    path = write_photos(tmp_path, (7,))[0]
    table = pyarrow.parquet.read_table(path)
    rows = table.column("image").to_pylist()
    rows[4] = {"bytes": None, "path": None}
    rows[5] = {"bytes": b"no image", "path": None}
    changed = table.set_column(0, "image", pyarrow.array(rows, table.schema.field("image").type))
    pyarrow.parquet.write_table(changed, path, row_group_size=3)
    source = ParquetSource(path)
    loader = make_loader(source, on_bad_sample="replace", transform=T.Resize((8, 8)))
    assert len(list(flat([labels for _, labels in loader]))) == 7
    assert sorted(bad.index for bad in loader.bad_samples.samples) == [4, 5]
    fresh = ParquetSource(path)
    write_photos(tmp_path, (7,))
    with pytest.raises(OSError, match="another one than when it was indexed"):
        list(make_loader(fresh, on_bad_sample="replace", transform=T.Resize((8, 8))))
