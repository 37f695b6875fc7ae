"""Checks of all promises of sources and sharded datasets, one helper for each.

:mod:`tests.conformance` compares the stream with an uninterrupted run, pixels included.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

from stateful_gpu_loader import ShardedDataset, StatefulGPULoader, StateMismatch
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import EncodedShards, Source
from tests.conformance import (
    assert_exact_resume,
    assert_same_rest,
    same,
    through_json,
    uninterrupted,
)
from tests.datasets.storage.processes import in_a_fork
from tests.lost_workers import with_kills

BATCH_SIZE = 3
THREADS = {"num_workers": 2, "worker_type": "thread"}
FORKED = {"num_workers": 2, "worker_type": "process", "multiprocessing_context": "fork"}
APART = {"num_workers": 2, "worker_type": "process", "multiprocessing_context": "forkserver"}


def assert_source_conforms(
    make_source: Callable[[], Source],
    *,
    changed: Callable[[], Source],
    collate_fn: Callable[[Any], Any] | None = None,
) -> None:
    """Check all promises of a source.

    Args:
        make_source: builds the source, of about 7 to 20 images.
        changed: builds it over different content, with the same number of samples.
        collate_fn: collates targets that torch's default cannot collate.
    """
    assert_source_conforms_in_threads(make_source, changed=changed, collate_fn=collate_fn)
    assert_source_conforms_in_processes(make_source, collate_fn=collate_fn)


def assert_source_conforms_in_threads(
    make_source: Callable[[], Source],
    *,
    changed: Callable[[], Source],
    collate_fn: Callable[[Any], Any] | None = None,
) -> None:
    """Check the promises that need no worker processes. One forked child reads the source."""
    source = make_source()
    expected = read_all(source)
    assert len(expected) > BATCH_SIZE, "too few samples to say anything"
    _assert_indices(source)
    _assert_memory_of_its_own(source, expected[0])
    _assert_read_from_many_threads(source, expected)
    assert make_source().fingerprint() == source.fingerprint()
    assert changed().fingerprint() != source.fingerprint(), "another content, the same id"
    _assert_travels(make_source, source, expected)
    make = partial(_make_loader, lambda: source, collate_fn=collate_fn)
    assert_exact_resume(make, epochs=2, other=(THREADS,))
    _assert_another_is_refused(make, partial(_make_loader, changed, collate_fn=collate_fn))


def assert_source_conforms_in_processes(
    make_source: Callable[[], Source], *, collate_fn: Callable[[Any], Any] | None = None
) -> None:
    """Check that worker processes of any kind deliver a source's samples, also after kills."""
    source = make_source()
    # The source is read here before each fork, so that a shared handle shows.
    _assert_processes_deliver(partial(_make_loader, lambda: source, collate_fn=collate_fn))


def assert_shards_conform(
    make_dataset: Callable[[], ShardedDataset], *, changed: Callable[[], ShardedDataset]
) -> None:
    """Check all promises of a sharded dataset: every cursor, and the loader's stream."""
    dataset = make_dataset()
    num_samples = len(assert_every_cursor(dataset))
    assert num_samples > 2 * BATCH_SIZE, "too few samples to say anything"
    assert make_dataset().fingerprint() == dataset.fingerprint()
    assert changed().fingerprint() != dataset.fingerprint(), "another content, the same id"
    threads = (THREADS,) if isinstance(dataset, EncodedShards) else ()
    for shuffle in (False, True):
        make = partial(_make_loader, make_dataset, shuffle=shuffle)
        assert sum(len(batch) for batch in make(collate_fn=list)) == num_samples
        assert_exact_resume(make, epochs=1 + shuffle, other=threads if shuffle else ())
    _assert_processes_deliver(make)
    _assert_another_is_refused(make, partial(_make_loader, changed))


def assert_every_cursor(dataset: ShardedDataset) -> list[Any]:
    """Check the rest from every cursor of every shard; return all samples, in plain form.

    Also checks a pickled copy, which a spawned worker has.
    """
    samples, copied = [], pickle.loads(pickle.dumps(dataset))
    assert list(copied.shards()) == list(dataset.shards())
    for shard in dataset.shards():
        found = [(_plain(sample), cursor) for sample, cursor in dataset.read_shard(shard, 0)]
        samples += [sample for sample, _ in found]
        assert dataset.num_samples(shard) in (None, len(found))
        for number, (_, cursor) in enumerate(found, start=1):
            rest = [(_plain(sample), behind) for sample, behind in copied.read_shard(shard, cursor)]
            assert same(rest, found[number:])
    return samples


def items(source: Source) -> list[tuple[bytes, Any]]:
    """Return the bytes and the target of each sample, as a user indexes it."""
    found = [source[index] for index in range(len(source))]
    return [(data.numpy().tobytes(), target) for data, target in found]


def read_all(source: Source) -> list[Any]:
    """Return the bytes and the target of each sample."""
    return [_read(source, index) for index in range(len(source))]


def _make_loader(
    make_dataset: Callable[[], Any],
    *,
    shuffle: bool = True,
    collate_fn: Callable[[Any], Any] | None = None,
    **changes: Any,
) -> StatefulGPULoader[Any]:
    dataset = make_dataset()
    recipes = None
    if isinstance(dataset, (Source, EncodedShards)):
        recipes = [T.RandomResizedCrop(8), T.RandomHorizontalFlip()]
    return StatefulGPULoader(
        dataset,
        batch_size=BATCH_SIZE,
        shuffle=shuffle,
        seed=11,
        transform=recipes,
        collate_fn=collate_fn,
        **changes,
    )


def _read(source: Source, index: int) -> Any:
    return _plain(source.read(index))


def _plain(sample: Any) -> Any:
    data = getattr(sample, "data", None)
    if isinstance(data, torch.Tensor) and hasattr(sample, "target"):
        assert data.dtype == torch.uint8
        assert data.ndim == 1
        return [data, sample.target]
    return sample


def _assert_indices(source: Source) -> None:
    data, _ = source[-1]
    assert torch.equal(data, source.read(len(source) - 1).data)
    for index in (len(source), -len(source) - 1):
        with pytest.raises(IndexError, match="out of range"):
            source[index]


def _assert_memory_of_its_own(source: Source, expected: Any) -> None:
    """Check that a decoder or user may write to a sample, which lies on the CPU in any case."""
    with torch.device("meta"):
        data, target = _read(source, 0)
    for part in (data, *(target.values() if isinstance(target, dict) else ())):
        if isinstance(part, torch.Tensor):
            part.zero_()
    assert same(_read(source, 0), expected)


def _assert_read_from_many_threads(source: Source, expected: list[Any]) -> None:
    indices = [index for turn in range(4) for index in range(turn, len(expected))]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(partial(_read, source), indices))
    assert same(found, [expected[index] for index in indices])


def _assert_travels(make_source: Callable[[], Source], source: Source, expected: list[Any]) -> None:
    """Check that a forked child reads the source, and that a pickled copy has nothing open."""
    pickled = pickle.dumps(source)
    assert len(pickled) < len(pickle.dumps(make_source())) + 200, "more than a fingerprint"
    restored = pickle.loads(pickled)
    assert restored.fingerprint() == source.fingerprint()
    assert same(read_all(restored), expected)
    assert in_a_fork(lambda: same(read_all(source), expected)) == 0


def _assert_processes_deliver(make: Callable[..., StatefulGPULoader[Any]]) -> None:
    """Resume in forked and other processes; kill workers after two batches of each epoch."""
    expected, states = uninterrupted(make(), 2)
    place = (0, len(expected[0]) // 2)
    for execution, epochs in ((FORKED, 2), (APART, 1)):
        resumed = make(**execution)
        resumed.load_state_dict(through_json(states[place]))
        assert_same_rest(resumed, expected, place, epochs, execution)
    loader = make(**FORKED, prefetch_factor=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*worker")
        found = with_kills(loader, 2, {1: (0,), 2: (1,)})
    assert same(found, expected)
    # When the workers die, they may have made two batches, and a third was requested.
    assert loader.worker_restarts > 0 or len(expected[0]) < 4


def _assert_another_is_refused(
    make: Callable[..., StatefulGPULoader[Any]], make_other: Callable[..., StatefulGPULoader[Any]]
) -> None:
    loader = make()
    next(iter(loader))
    with pytest.raises(StateMismatch) as caught:
        make_other().load_state_dict(loader.state_dict())
    assert caught.value.field == "dataset"
