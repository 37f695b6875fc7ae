"""Files by URL: errors, forks, and missing packages."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations

from stateful_gpu_loader.datasets.storage import remote
from stateful_gpu_loader.datasets.storage.remote import open_remote, read_remote, remote_identity
from stateful_gpu_loader.datasets.storage.streams import open_stream
from stateful_gpu_loader.errors import MissingDependency
from tests.datasets.storage.processes import in_a_fork, in_a_fork_while_held


class ClientError(Exception):
    """An exception of a client of remote files that is no OSError."""


requests: list[tuple[Any, Any]] = []
"""First byte, and the byte after the last."""


class Unreliable(MemoryFileSystem):  # type: ignore[misc]
    """Raises ``failing`` while it is set."""

    protocol = "unreliable"
    cachable = False
    failing: Exception | None = None
    whole = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("unreliable://", "memory://")))

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        requests.append((start, end))
        if Unreliable.failing:
            raise Unreliable.failing
        return super().cat_file(path, *((None, None) if self.whole else (start, end)))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        if Unreliable.failing:
            raise Unreliable.failing
        return super().info(path, **options)

    def _open(self, path: str, *arguments: Any, **options: Any) -> Any:
        if Unreliable.failing:
            raise Unreliable.failing
        content = super()._open(path, *arguments, **options).getvalue()

        class File(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                if Unreliable.failing:
                    raise Unreliable.failing
                return super().read(size)

        return File(content)


@pytest.fixture
def url() -> Iterator[str]:
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    MemoryFileSystem().pipe("/a", b"0123456789" * 300_000)
    yield "unreliable://a"
    Unreliable.failing, Unreliable.whole = None, False
    remote._systems.clear()


@contextmanager
def failing(error: Exception) -> Iterator[None]:
    Unreliable.failing = error
    yield
    Unreliable.failing = None


def test_ranges_and_streams(url: str) -> None:
    """A server that gives no ranges answers with the whole file, which begins with other bytes."""
    assert read_remote(url, 3, 4) == b"3456"
    assert read_remote(url, 2_999_998, 4) == b"89"
    assert read_remote(url, 3, 0) == b""
    with open_remote(url, 13) as stream:
        assert stream.read(4) == b"3456"
        assert len(stream.read()) == 3_000_000 - 17
    assert remote_identity(url)[0] == 3_000_000
    Unreliable.whole = True
    with pytest.raises(OSError, match=r"4.*3.*3000000"):
        read_remote(url, 3, 4)


def test_streams_of_object_storage_fetch_the_next_part_ahead(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold two parts, whatever the size of the file."""
    monkeypatch.setattr(Unreliable, "async_impl", True)
    monkeypatch.setattr(remote, "_PART", 2_000_000)
    monkeypatch.setattr(remote, "_BUFFER", 1)
    whole = b"0123456789" * 300_000
    for offset in (0, 13, 1_000_000, 2_999_999, 3_000_000):
        with open_remote(url, offset) as stream:
            first = stream.read(4)
            assert first + stream.read() == whole[offset:]
    with open_remote(url, 13) as stream:
        stream.read(4)
        ahead: Any = stream
        assert ahead.raw._next.result(60) == whole[2_000_013:]
        requests.clear()
        assert stream.read() == whole[17:]
        assert requests == []


def test_a_stream_goes_on_behind_a_failure(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unreliable, "async_impl", True)
    monkeypatch.setattr(remote, "_PART", 100)
    monkeypatch.setattr(remote, "_BUFFER", 1)
    with open_remote(url, 0) as stream:
        ahead: Any = stream
        assert stream.read(10) == b"0123456789"
        ahead.raw._next.result(60)
        with failing(OSError("connection lost")):
            assert stream.read(150) == b"0123456789" * 15
            assert stream.read(40) == b"0123456789" * 4
            with pytest.raises(OSError, match="connection lost"):
                stream.read(30)
        assert stream.read(30) == b"0123456789" * 3


def test_a_file_that_is_cut_off_while_it_is_read_is_named(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unreliable, "async_impl", True)
    monkeypatch.setattr(remote, "_PART", 100)
    with open_remote(url, 0) as stream:
        stream.read(1)
        MemoryFileSystem().pipe("/a", b"0123456789" * 15)
        with pytest.raises(OSError, match=r"'unreliable://a'.*byte 150.*3000000"):
            stream.read(1000)


@pytest.mark.parametrize("error", [ClientError("connection lost"), OSError("connection lost")])
def test_what_a_client_raises_becomes_an_oserror(url: str, error: Exception) -> None:
    """The loader retries an OSError, also while a stream is read."""
    with open_stream(url) as stream, open_stream(url) as other:
        assert stream.read(3) == b"012"
        with failing(error):
            for attempt in (
                lambda: read_remote(url, 0, 3),
                lambda: open_remote(url, 0),
                lambda: remote_identity(url),
                lambda: other.read(3),
                lambda: stream.read(2_000_000),
            ):
                with pytest.raises(OSError, match=r"'unreliable://a'"):
                    attempt()


def test_files_that_are_not_there_are_named(url: str, tmp_path: Path) -> None:
    """Errors of the system keep their number."""
    for attempt in (
        lambda: read_remote("unreliable://gone", 0, 3),
        lambda: open_remote("unreliable://gone", 0),
        lambda: remote_identity("unreliable://gone"),
    ):
        with pytest.raises(FileNotFoundError, match=r"'unreliable://gone'"):
            attempt()
    with pytest.raises(FileNotFoundError) as caught:
        read_remote(f"file://{tmp_path}/gone", 0, 3)
    assert caught.value.errno == 2


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = {"class": "no_such_module.X", "err": "Install nosuchfs to access nothing"}
    monkeypatch.setitem(known_implementations, "nosuch", registry)
    with pytest.raises(MissingDependency, match=r"'nosuch://a'.*'nosuchfs'") as e:
        read_remote("nosuch://a", 0, 1)
    assert e.value.package == "nosuchfs"
    with pytest.raises(ValueError, match=r"unknown://a"):
        read_remote("unknown://a", 0, 1)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependency, match=r"'fsspec'.*stateful_gpu_loader\[remote\]"):
        read_remote("another://a", 0, 1)


def test_a_fork_makes_its_own_file_systems(url: str) -> None:
    """Also if another thread of the parent was making one at that moment."""
    assert read_remote(url, 0, 3) == b"012"
    system = remote._systems[url][0]

    def reads() -> bool:
        return read_remote(url, 0, 3) == b"012" and remote._systems[url][0] is not system

    assert in_a_fork(reads) == 0
    assert in_a_fork_while_held(remote._lock, reads) == 0
    assert remote._owner == os.getpid()
    assert remote._systems[url][0] is system
