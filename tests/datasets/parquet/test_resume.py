"""Parquet files by index through the loader, compared with the uninterrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.parquet.source import ParquetSource
from tests.conformance import assert_exact_resume, flat
from tests.datasets.parquet.parquet_files import write_photos

EXECUTIONS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 2, "worker_type": "thread"},
    {"num_workers": 2, "worker_type": "process", "multiprocessing_context": "fork"},
)


def make_loader(source: ParquetSource, **arguments: Any) -> StatefulGPULoader[Any]:
    options: dict[str, Any] = {
        "batch_size": 3,
        "shuffle": True,
        "seed": 11,
        "transform": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()],
        **arguments,
    }
    return StatefulGPULoader(source, **options)


@pytest.mark.fuzz
@pytest.mark.parametrize("target", ["label", None, {"y": "label"}])
def test_inline_resume_at_every_batch(tmp_path: Path, target: Any) -> None:
    source = ParquetSource(write_photos(tmp_path), target=target)
    assert_exact_resume(lambda **changes: make_loader(source, **changes))


@pytest.mark.processes
def test_resume_in_threads_and_in_forked_processes(tmp_path: Path) -> None:
    source = ParquetSource(write_photos(tmp_path), cache_bytes=0)
    source.read(0)
    assert_exact_resume(
        lambda **changes: make_loader(source, **{"num_workers": 2, **changes}), other=EXECUTIONS
    )


@pytest.mark.processes
def test_resume_in_processes_that_inherit_nothing(tmp_path: Path) -> None:
    """The source travels without what it has read."""
    source = ParquetSource(write_photos(tmp_path))
    source.read(0)
    apart = {"num_workers": 1, "worker_type": "process", "multiprocessing_context": "forkserver"}
    assert_exact_resume(
        lambda **changes: make_loader(source, **changes), epochs=1, other=(apart,), every=4
    )


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
