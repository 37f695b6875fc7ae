"""The cache of a source: bounded, each value made once, separate in each process."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stateful_gpu_loader.datasets.parquet.source import BoundedCache
from tests.patience import seconds


def test_what_was_used_last_is_kept() -> None:
    made: list[int] = []

    def get(key: int) -> str:
        return cache.get(key, lambda: made.append(key) or "x" * key)

    cache: BoundedCache[str] = BoundedCache(10, len)
    for key in (3, 4, 3, 5, 3, 4):
        assert get(key) == "x" * key
    assert made == [3, 4, 5, 4]
    assert cache.keys() == [3, 4]


def test_a_value_above_the_limit_is_kept_alone() -> None:
    """A row group larger than the cache is decoded once, not once for each row.

    What is dropped is made again.
    """
    cache: BoundedCache[str] = BoundedCache(10, len)
    for key in (1, 50):
        cache.get(key, lambda key=key: "x" * key)  # type: ignore[misc]
    assert cache.keys() == [50]
    cache.get(1, lambda: "old")
    assert cache.keys() == [1]
    cache.drop(1)
    cache.drop(7)
    assert cache.get(1, lambda: "new") == "new"
    cache.get(2, lambda: "x" * 7)
    assert cache.keys() == [1, 2]


def test_threads_that_ask_for_the_same_wait_for_one() -> None:
    entered, go_on, made = threading.Barrier(2), threading.Event(), []

    def make() -> str:
        made.append(1)
        entered.wait()
        go_on.wait()
        return "value"

    cache: BoundedCache[str] = BoundedCache(10, len)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(cache.get, 1, make)
        entered.wait()
        others = [pool.submit(cache.get, 1, make) for _ in range(7)]
        # Another value is made meanwhile.
        assert cache.get(2, lambda: "other") == "other"
        go_on.set()
        assert {each.result() for each in (first, *others)} == {"value"}
    assert len(made) == 1


def test_a_failure_is_raised_and_not_kept() -> None:
    """A thread that waits for a failure tries for itself."""
    entered, go_on = threading.Event(), threading.Event()

    def fail() -> str:
        entered.set()
        go_on.wait()
        raise OSError("lost")

    cache: BoundedCache[str] = BoundedCache(10, len)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, 1, fail)
        entered.wait()
        second = pool.submit(cache.get, 1, lambda: "found")
        go_on.set()
        assert isinstance(first.exception(), OSError)
        assert second.result() == "found"
    for _ in range(2):
        with pytest.raises(OSError, match="lost"):
            cache.get(2, fail)
    assert cache.get(2, lambda: "found") == "found"


def test_copies_and_forked_children_begin_with_nothing() -> None:
    """A lock that a parent's thread holds at the fork would stay locked in the child."""
    cache: BoundedCache[str] = BoundedCache(10, len)
    cache.get(1, lambda: "parent's")
    assert pickle.loads(pickle.dumps(cache)).keys() == []
    with cache._held().lock:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(
            target=lambda: sender.send(cache.get(1, lambda: "child's")), daemon=True
        )
        child.start()
        assert receiver.poll(seconds(6)), "the child waits for a lock that nobody gives back"
    assert receiver.recv() == "child's"
    child.join()
    assert cache.get(1, lambda: "new") == "parent's"
