"""Tars and Parquet files by index through the loader, compared with the uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader.datasets.parquet.source import ParquetSource
from stateful_gpu_loader.datasets.tar.source import TarSource
from tests.conformance import assert_exact_resume, assert_same_rest, uninterrupted
from tests.datasets.image_loaders import EXECUTIONS, make_loader
from tests.datasets.parquet.parquet_files import write_photos
from tests.datasets.tar.tar_files import write_photo_tars

MakeSource = Callable[..., Any]


def tar(folder: Path, **arguments: Any) -> TarSource:
    return TarSource(write_photo_tars(folder), **arguments)


def parquet(folder: Path, **arguments: Any) -> ParquetSource:
    return ParquetSource(write_photos(folder), **arguments)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("make_source", "target"),
    [
        *(
            (tar, target)
            for target in ("cls", None, ("cls", "txt"), {"y": "cls", "key": "__key__"})
        ),
        *((parquet, target) for target in ("label", None, {"y": "label"})),
    ],
)
def test_inline_resume_at_every_batch(make_source: MakeSource, target: Any, tmp_path: Path) -> None:
    assert_exact_resume(partial(make_loader, make_source(tmp_path, target=target)))


@pytest.mark.processes
@pytest.mark.parametrize("make_source", [tar, partial(parquet, cache_bytes=0)])
def test_resume_in_threads_and_in_forked_processes(make_source: MakeSource, tmp_path: Path) -> None:
    """The source is read here before each fork, so that a shared handle would show."""
    source = make_source(tmp_path)
    source.read(0)
    assert_exact_resume(partial(make_loader, source, num_workers=2), other=EXECUTIONS)


@pytest.mark.parametrize("make_source", [tar, parquet])
def test_resume_in_processes_that_inherit_nothing(make_source: MakeSource, tmp_path: Path) -> None:
    """The source travels without what it has open, or has read."""
    source = make_source(tmp_path)
    source.read(0)
    expected, states = uninterrupted(make_loader(source), 1)
    resumed = make_loader(
        source, num_workers=1, worker_type="process", multiprocessing_context="forkserver"
    )
    resumed.load_state_dict(states[0, 2])
    assert_same_rest(resumed, expected, (0, 2), 1)
