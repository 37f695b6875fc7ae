"""Row groups decoded for a few of their rows: one warning, with a remedy that works."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from stateful_gpu_loader import ParquetSource, ShuffledSampler, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.parquet import source as parquet_source
from stateful_gpu_loader.datasets.parquet.source import IN_TURN
from stateful_gpu_loader.samplers import Blocks
from tests.datasets.parquet.parquet_files import write_table
from tests.images import encode, photograph

_GROUPS, _ROWS = 30, 50
_IMAGE = encode(photograph("coffee").resize((8, 8))).numpy().tobytes()
_GROUP_BYTES = _ROWS * len(_IMAGE) * 11 // 10
_ENOUGH = 4 * IN_TURN
"""Number of shuffled reads after which the warning must have come; each decodes a row group."""
_EXPECTED = r"row groups of a ParquetSource, one after the other.*Remedy.*Blocks\.of\(source"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    count = _GROUPS * _ROWS
    columns = {"image": [_IMAGE] * count, "label": list(range(count))}
    folder: Path = tmp_path_factory.mktemp("parquet")
    return write_table(folder / "a.parquet", columns, row_group_size=_ROWS)


def source_of(path: str, groups: int = 4) -> ParquetSource:
    """Return a source whose cache holds ``groups`` row groups."""
    return ParquetSource(path, cache_bytes=groups * _GROUP_BYTES)


def shuffled(source: ParquetSource, window: int | None = None, epoch: int = 0) -> list[int]:
    blocks = None if window is None else Blocks.of(source, window=window)
    sampler = ShuffledSampler(source, seed=1, locality=blocks)
    sampler.set_epoch(epoch)
    return list(sampler)


def warnings_of(source: ParquetSource, indices: Iterable[int]) -> list[int]:
    """Return the place of each read that caused the warning."""
    places: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for place, index in enumerate(indices):
            assert source.read(index).target == index
            places += [place] * (len(caught) - len(places))
    assert all("ParquetSource" in str(warning.message) for warning in caught)
    return places


def test_a_shuffle_of_everything_warns_once_with_the_remedy(path: str) -> None:
    source = source_of(path)
    order = [*shuffled(source)[:_ENOUGH], *shuffled(source, epoch=1)[:_ENOUGH]]
    with pytest.warns(UserWarning, match=_EXPECTED) as caught:
        list(map(source.read, order))
    assert len(caught) == 1
    text = str(caught[0].message)
    assert f"cache_bytes={source.cache_bytes} keeps some 4 of {_GROUPS}" in text
    assert f"has {_ROWS} rows" in text


@pytest.mark.parametrize("window", [1, 4])
def test_the_remedy_ends_it(path: str, window: int) -> None:
    """A window of blocks that fits, over two epochs with a resume between them."""
    source = source_of(path, groups=4)
    for epoch, first in ((0, 0), (1, 700)):
        assert not warnings_of(source, shuffled(source, window, epoch)[first:])


def test_a_resume_late_in_a_large_window_does_not_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows are left in each row group, and then the next window needs the space."""
    monkeypatch.setattr(parquet_source, "IN_TURN", 8)
    window, rows = 10, 50
    count = 2 * window * rows
    columns = {"image": [_IMAGE[:20]] * count, "label": list(range(count))}
    path = write_table(tmp_path / "a.parquet", columns, row_group_size=rows)
    probe = ParquetSource(path)
    window_bytes = window * probe._read_group(0).num_bytes
    order = shuffled(probe, window)
    at = window * rows * 94 // 100
    fits = ParquetSource(path, cache_bytes=window_bytes)
    assert not warnings_of(fits, order[at:])
    # A window that does not fit decodes each row group again for every few rows, and warns.
    small = ParquetSource(path, cache_bytes=window_bytes // 4)
    assert len(warnings_of(small, order[at:])) == 1


def test_an_order_that_uses_row_groups_does_not_warn(path: str) -> None:
    order = range(_GROUPS * _ROWS)
    assert not warnings_of(source_of(path, groups=0), order)
    large = source_of(path, groups=_GROUPS + 1)
    assert not warnings_of(large, [*shuffled(large), *shuffled(large, epoch=1)])
    # One of two ranks, which read every other sample.
    assert not warnings_of(source_of(path, groups=1), [*order, *order][::2])


def test_a_few_samples_are_looked_at_in_silence(path: str) -> None:
    """However far apart they are; earlier reads do not count later."""
    source = source_of(path)
    assert not warnings_of(source, shuffled(source)[: IN_TURN - 1])
    assert not warnings_of(source, range(_GROUPS * _ROWS))


def test_threads_warn_once_together(path: str) -> None:
    source = source_of(path)
    with pytest.warns(UserWarning, match=_EXPECTED) as caught, ThreadPoolExecutor(4) as pool:
        list(pool.map(source.read, shuffled(source)[:_ENOUGH]))
    assert len(caught) == 1


def test_a_copy_in_another_process_counts_for_itself(path: str) -> None:
    """The same reads warn at the same place. A copy does not repeat warnings of before."""
    source = source_of(path)
    frozen = pickle.dumps(source)
    order = shuffled(source)[:_ENOUGH]
    (place,) = warnings_of(source, order)
    assert place >= IN_TURN
    assert warnings_of(pickle.loads(frozen), order) == [place]
    assert not warnings_of(pickle.loads(pickle.dumps(source)), order)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffling_loader_warns(path: str, num_workers: int) -> None:
    loader = StatefulGPULoader(
        source_of(path),
        batch_size=16,
        shuffle=True,
        num_workers=num_workers,
        seed=1,
        transform=[T.Resize((4, 4))],
    )
    with pytest.warns(UserWarning, match=_EXPECTED) as caught:
        assert sum(len(labels) for _, labels in islice(loader, _ENOUGH // 16)) == _ENOUGH
    assert len([each for each in caught if "ParquetSource" in str(each.message)]) == 1
