"""Ranges by URL are fetched ahead, merged and in parallel, and kept until they are read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
import pytest

from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.storage.remote import (
    LARGEST_REQUEST,
    REQUESTS,
    Range,
    ReadAhead,
    in_background,
)
from tests.datasets.storage.processes import in_a_fork

_SECONDS = 60


class Server:
    """A file whose bytes are their offsets, and a record of the requests."""

    def __init__(self) -> None:
        self.requests: list[Range] = []
        self.failing = False

    def __call__(self, url: str, offset: int, size: int) -> bytes:
        self.requests.append((url, offset, offset + size))
        if self.failing:
            raise OSError("lost")
        return content(offset, size)


def content(offset: int, size: int) -> bytes:
    return bytes(place % 251 for place in range(offset, offset + size))


def test_ranges_that_lie_together_are_one_request() -> None:
    server = Server()
    ahead = ReadAhead(read=server)
    far = 10 << 20
    ranges = [("b", 0, 10), ("a", 40, 50), ("a", 0, 40), ("a", far, far + 5), ("a", 90, 100)]
    ahead.expect(ranges)
    for url, begin, end in ranges:
        taken = ahead.take(url, begin, end - begin)
        assert taken is not None
        assert bytes(taken) == content(begin, end - begin)
    assert sorted(server.requests) == [("a", 0, 100), ("a", far, far + 5), ("b", 0, 10)]
    assert ahead.num_bytes == 0


def test_no_joined_request_is_larger_than_the_limit() -> None:
    requests: list[Range] = []
    half = LARGEST_REQUEST // 2 + 1
    ahead = ReadAhead(
        read=lambda url, offset, size: requests.append((url, offset, offset + size)) or b""
    )
    ranges = [("a", half * number, half * (number + 1)) for number in range(3)]
    ahead.expect(ranges)
    for number in (2, 0, 1):
        ahead.take("a", half * number, half)
    assert sorted(requests) == ranges


def test_a_range_is_kept_until_it_is_read_once() -> None:
    server = Server()
    ahead = ReadAhead(read=server)
    ahead.expect([("a", 0, 4), ("a", 4, 8)])
    ahead.expect([("a", 4, 8)])
    assert ahead.num_bytes == 8
    assert ahead.take("a", 4, 4) is not None
    assert ahead.num_bytes == 8, "the other half of the request is still expected"
    assert ahead.take("a", 4, 4) is None
    assert ahead.take("a", 0, 3) is None, "another range"
    assert ahead.take("a", 0, 4) is not None
    assert (ahead.num_bytes, server.requests) == (0, [("a", 0, 8)])


def test_what_fails_or_is_cut_off_is_left_to_whoever_reads_it() -> None:
    failing = Server()
    failing.failing = True
    for read in (failing, lambda url, offset, size: b"abc"):
        ahead = ReadAhead(read=read)
        ahead.expect([("a", 0, 4)])
        assert ahead.take("a", 0, 4) is None
        assert ahead.num_bytes == 0


def test_the_oldest_is_forgotten_beyond_the_limit() -> None:
    """Requests of a pass that was broken off do not stay forever."""
    ahead = ReadAhead(most_bytes=100, read=Server())
    for number in range(10):
        ahead.expect([(f"{number}", 0, 30)])
        assert ahead.num_bytes <= 100
    is_gone = [ahead.take(f"{number}", 0, 30) is None for number in range(10)]
    assert is_gone == [True] * 7 + [False] * 3
    assert ahead.has_room(50)
    assert not ahead.has_room(51)


def test_requests_are_under_way_at_the_same_time() -> None:
    """Each request waits for all others, so fewer at a time would never end."""
    barrier = threading.Barrier(REQUESTS)

    def read(url: str, offset: int, size: int) -> bytes:
        barrier.wait(_SECONDS)
        return content(offset, size)

    ahead = ReadAhead(read=read)
    ranges = [(f"{number}", 5, 7) for number in range(REQUESTS)]
    ahead.expect(ranges)
    assert all(ahead.take(url, 5, 2) == content(5, 2) for url, _, _ in ranges)


def test_threads_read_what_others_expect() -> None:
    ahead = ReadAhead(read=Server())

    def work(number: int) -> bool:
        ranges = [(f"{place % 7}", 10 * place, 10 * place + 10) for place in range(number, 400, 8)]
        ahead.expect(ranges)
        return all(ahead.take(url, b, e - b) == content(b, e - b) for url, b, e in ranges)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert ahead.num_bytes == 0


def test_a_forked_child_has_threads_of_its_own() -> None:
    fsspec.filesystem("memory").pipe("memory://ahead/a", b"0123456789")
    files = OpenFiles()
    files.expect([("memory://ahead/a", 2, 5)], 3)
    assert in_background(lambda: b"x").result(_SECONDS) == b"x"

    def reads() -> bool:
        files.expect([("memory://ahead/a", 4, 9)], 5)
        expected = bytes(files.read("memory://ahead/a", 4, 5)) == b"45678"
        return expected and bytes(files.read("memory://ahead/a", 2, 3)) == b"234"

    assert in_a_fork(reads) == 0
    assert bytes(files.read("memory://ahead/a", 2, 3)) == b"234"


def test_open_files_read_what_was_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges that are too large, or local, are read without read-ahead."""
    system = fsspec.filesystem("memory")
    system.pipe("memory://ahead/b", content(0, 200))
    requests: list[Any] = []
    read = type(system).cat_file

    def noted(self: Any, path: str, start: int, end: int) -> bytes:
        requests.append((start, end))
        return bytes(read(self, path, start, end))

    monkeypatch.setattr(type(system), "cat_file", noted)
    files = OpenFiles()
    files.expect([("memory://ahead/b", 0, 100), ("memory://ahead/b", 100, 200)], 200)
    assert bytes(files.read("memory://ahead/b", 100, 100)) == content(100, 100)
    assert bytes(files.read("memory://ahead/b", 0, 100)) == content(0, 100)
    assert requests == [(0, 200)]
    files.expect([("memory://ahead/b", 0, 100)], 1 << 40)
    assert bytes(files.read("memory://ahead/b", 0, 100)) == content(0, 100)
    assert requests == [(0, 200), (0, 100)]
