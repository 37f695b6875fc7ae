"""Sources by URL: the stream of local files, in fewer requests and exactly resumed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from torch.utils.data import ConcatDataset, Subset

from stateful_gpu_loader import ShuffledSampler, StatefulGPULoader, TarShards, TarSource
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.samplers import Blocks
from tests.conformance import assert_same_rest, loaded, same, uninterrupted
from tests.datasets.tar.tar_files import write_photo_tars

RECIPES = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
LENGTHS = (8, 8, 8, 8)


class CountedStorage(MemoryFileSystem):  # type: ignore[misc]
    """Object storage that counts its requests, and fails on command."""

    protocol = "counted"
    cachable = False
    async_impl = True
    lock = threading.Lock()
    requests: ClassVar[list[tuple[int, int]]] = []
    to_fail = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("counted://", "memory://")))

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        with CountedStorage.lock:
            CountedStorage.requests.append((start, end))
            CountedStorage.to_fail -= 1
            if CountedStorage.to_fail >= 0:
                raise OSError("the connection was lost")
        return bytes(super().cat_file(path, start, end))


@pytest.fixture
def tars(tmp_path: Path) -> list[Path]:
    return write_photo_tars(tmp_path / "tars", LENGTHS)


@pytest.fixture
def urls(tars: list[Path]) -> Iterator[list[str]]:
    fsspec.register_implementation("counted", CountedStorage, clobber=True)
    for path in tars:
        MemoryFileSystem().pipe(f"/counted/{path.name}", path.read_bytes())
    CountedStorage.requests, CountedStorage.to_fail = [], 0
    yield [f"counted://counted/{path.name}" for path in tars]
    MemoryFileSystem().rm("/counted", recursive=True)
    CountedStorage.to_fail = 0


def make(paths: list[Any], tmp_path: Path, order: str, **arguments: Any) -> StatefulGPULoader[Any]:
    given: dict[str, Any] = {"batch_size": 3, "seed": 5, "transform": RECIPES, **arguments}
    if order == "shards":
        return StatefulGPULoader(TarShards(paths), shuffle=True, **given)
    source = TarSource(paths, cache_dir=tmp_path / "indices")
    if order == "blocks":
        blocks = Blocks.of(source, window=2)
        return StatefulGPULoader(source, sampler=ShuffledSampler(source, locality=blocks), **given)
    if order == "of the user":
        return StatefulGPULoader(source, sampler=list(range(0, 32, 3)), **given)
    return StatefulGPULoader(source, shuffle=order == "shuffled", **given)


@pytest.mark.parametrize("order", ["in order", "shuffled", "blocks", "of the user", "shards"])
def test_the_stream_is_that_of_local_files(
    tars: list[Path], urls: list[str], tmp_path: Path, order: str
) -> None:
    wanted, states = uninterrupted(make(tars, tmp_path, order), 2)
    for num_workers in (0, 2):
        found, of_found = uninterrupted(make(urls, tmp_path, order, num_workers=num_workers), 2)
        assert same(found, wanted), num_workers
        assert of_found == states
        resumed = loaded(make(urls, tmp_path, order, num_workers=num_workers), states[0, 2])
        assert_same_rest(resumed, wanted, (0, 2), 2)


@pytest.mark.processes
@pytest.mark.parametrize("order", ["shuffled", "blocks"])
def test_worker_processes_read_the_same(tars: list[Path], tmp_path: Path, order: str) -> None:
    wanted, _ = uninterrupted(make(tars, tmp_path, order), 2)
    local = [f"file://{path}" for path in tars]
    processes = {"num_workers": 2, "worker_type": "process"}
    found, _ = uninterrupted(make(local, tmp_path, order, **processes), 2)
    assert same(found, wanted)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_blocks_are_read_whole_and_once(urls: list[str], tmp_path: Path, num_workers: int) -> None:
    """One request for each tar, in each of two epochs."""
    loader = make(urls, tmp_path, "blocks", num_workers=num_workers)
    CountedStorage.requests.clear()
    for _ in range(2):
        assert len(list(loader)) == 11
    assert len(CountedStorage.requests) == 2 * len(LENGTHS)
    sizes = [end - start for start, end in CountedStorage.requests]
    assert min(sizes) > 8 * 1000


def test_the_next_window_is_requested_while_one_is_read(urls: list[str], tmp_path: Path) -> None:
    loader = make(urls, tmp_path, "blocks", num_workers=0)
    source: Any = loader.dataset
    expected: list[int] = []
    expect = type(source).expect

    def noted(indices: Any, **options: Any) -> None:
        expected.append(len(indices))
        expect(source, indices, **options)

    source.expect = noted
    batches = iter(loader)
    next(batches)
    assert expected[:3] == [0, 16, 16]
    for _ in itertools.islice(batches, 4):
        pass
    assert expected.count(16) == 2
    next(batches)
    assert expected.count(16) == 2, "no window follows the last"


def test_samples_in_order_share_requests(urls: list[str], tmp_path: Path) -> None:
    """Neighbours in a batch share a request, and the next batch is requested as well."""
    loader = make(urls, tmp_path, "in order", batch_size=8)
    CountedStorage.requests.clear()
    assert len(list(loader)) == 4
    assert len(CountedStorage.requests) == 4


def test_several_ranks_read_their_own_samples_alone(urls: list[str], tmp_path: Path) -> None:
    """Otherwise every rank would read whole blocks."""
    for rank in range(2):
        CountedStorage.requests.clear()
        loader = make(urls, tmp_path, "blocks", rank=rank, num_replicas=2)
        CountedStorage.requests.clear()
        list(loader)
        read = sum(end - start for start, end in CountedStorage.requests)
        whole = sum(MemoryFileSystem().size(f"/counted/photos-{i:03d}.tar") for i in range(4))
        assert 0.3 * whole < read < 0.8 * whole


def test_hints_of_a_broken_pass_are_dropped_by_the_next(urls: list[str], tmp_path: Path) -> None:
    loader = make(urls, tmp_path, "blocks", num_workers=2)
    source: Any = loader.dataset
    kept: list[int] = []
    expect = type(source).expect

    def noted(indices: Any, *, anew: bool = False) -> None:
        expect(source, indices, anew=anew)
        if anew:
            kept.append(source._files._ahead.num_bytes)

    source.expect = noted
    for _ in range(3):
        for _ in loader:
            break
        assert source._files._ahead.num_bytes > 0
    assert kept == [0, 0, 0]


def test_prefetch_hints_reach_each_of_several_sources(urls: list[str], tmp_path: Path) -> None:
    """Parts of a subset, a concatenation and a mixture."""
    first, second = (TarSource(half, cache_dir=tmp_path / "i") for half in (urls[:2], urls[2:]))
    whole = ConcatDataset([Subset(first, range(2, 16)), second])
    loader = StatefulGPULoader(whole, 6, transform=RECIPES, seed=1)
    CountedStorage.requests.clear()
    assert len(list(loader)) == 5
    assert len(CountedStorage.requests) < 15
    assert first._files._ahead.num_bytes == second._files._ahead.num_bytes == 0


@pytest.mark.parametrize("order", ["shuffled", "blocks", "shards"])
def test_a_failure_is_retried_and_then_raised(
    tars: list[Path], urls: list[str], tmp_path: Path, order: str
) -> None:
    """Also a failed request made ahead. A bad sample depends on its bytes alone."""
    wanted, _ = uninterrupted(make(tars, tmp_path, order), 1)
    loader = make(urls, tmp_path, order, on_bad_sample="replace" if order != "shards" else "drop")
    CountedStorage.to_fail = 2
    assert same([list(loader)], wanted)
    assert loader.bad_samples.total == 0
    CountedStorage.to_fail = 10**6
    loader = make(urls, tmp_path, order, num_workers=2)
    with pytest.raises(OSError, match="the connection was lost"):
        list(loader)
