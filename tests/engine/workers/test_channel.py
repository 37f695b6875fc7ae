"""Messages arrive whole, in parts, with files, without room for files, and from dead processes."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import resource_sharer
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader.engine.workers.channel import (
    _HEAD,
    MAX_FILES,
    Channel,
    Message,
    OpenFile,
    Sender,
    close_all,
    pickled,
    received,
    spawning_process,
)
from tests.engine.workers.fakes import fds
from tests.interrupts import interrupt_at, places_of
from tests.patience import seconds

LARGE = 4 << 20
"""More bytes than a socket takes at once."""


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = map(Channel, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def a_file(content: bytes) -> int:
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    return reader


def contents(message: Message) -> tuple[bytes, list[bytes] | None]:
    """Return a message's bytes and the contents of its files, and close the files."""
    files = message.files
    read = None if files is None else [os.read(file, 100) for file in files]
    close_all(files or [])
    return bytes(message.head) + bytes(message.body), read


def all_of(channel: Channel, count: int) -> list[tuple[bytes, list[bytes] | None]]:
    found: list[Message] = []
    while len(found) < count and not channel.has_ended:
        found += channel.receive()
    return [contents(message) for message in found]


def test_messages_of_all_sizes_arrive_in_order(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    sizes = [0, 1, 15, 1 << 16, (1 << 16) + 1, 1 << 18, LARGE, 3]
    wanted = [bytes([number]) * size for number, size in enumerate(sizes)]
    are_sent = [ours.send(message[:5], message[5:]) for message in wanted]
    assert are_sent[0]
    assert not are_sent[-1]
    found: list[bytes] = []
    while len(found) < len(wanted):
        ours.flush()
        found += [contents(message)[0] for message in theirs.receive()]
    assert found == wanted
    assert ours.flush()


@pytest.mark.parametrize("size", [3, 1 << 17])
def test_files_arrive_with_their_messages(ends: tuple[Channel, Channel], size: int) -> None:
    ours, theirs = ends
    before = fds()
    ours.send(b"0", bytes(size))
    ours.send(b"1", bytes(size), [a_file(b"a"), a_file(b"b")])
    ours.send(b"2", bytes(size))
    ours.send(b"3", bytes(size), [a_file(b"c")])
    found = []
    while len(found) < 4:
        ours.flush()
        found += [contents(message) for message in theirs.receive()]
    assert [files for _, files in found] == [[], [b"a", b"b"], [], [b"c"]]
    assert [content[:1] for content, _ in found] == [b"0", b"1", b"2", b"3"]
    assert fds() == before


def test_files_that_find_no_descriptor_free_cost_their_message_alone(
    ends: tuple[Channel, Channel],
) -> None:
    ours, theirs = ends
    ours.send(b"many", files=[a_file(b"a") for _ in range(8)])
    ours.send(b"none")
    before, limits = fds(), resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(len(before) + 100) if str(number) not in before]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[3], limits[1]))
    try:
        messages = theirs.receive(rest=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [contents(message) for message in messages] == [(b"many", None), (b"none", [])]
    assert fds() == before


HALF_A_BODY = _HEAD.pack(4, LARGE, 0) + bytes(100_000)


@pytest.mark.parametrize("rest", [bytes(_HEAD.size // 2), HALF_A_BODY])
def test_what_a_dead_sender_has_left_is_read_to_the_last_whole_message(
    ends: tuple[Channel, Channel], rest: bytes
) -> None:
    ours, theirs = ends
    ours.send(b"whole", files=[a_file(b"a")])
    ours._socket.sendall(rest)
    ours.close()
    messages = theirs.receive(rest=True)
    assert [contents(message) for message in messages] == [(b"whole", [b"a"])]
    assert theirs.has_ended
    with pytest.raises(EOFError):
        theirs.next()


def test_a_closed_channel_leaves_no_file_open() -> None:
    """Neither files that were not sent, nor files that were not received."""
    before = fds()
    ours, theirs = map(Channel, socket.socketpair())
    ours.send(b"", bytes(LARGE))
    ours.send(b"unsent", files=[a_file(b"a")])
    theirs.send(b"taken by nobody", files=[a_file(b"b")])
    ours._receive()
    ours.close()
    assert theirs.send(b"to nobody", files=[a_file(b"c")])
    theirs.close()
    assert fds() == before


def test_a_message_to_the_dead_does_not_end_the_process() -> None:
    """A program may have reset SIGPIPE to its default action."""
    ours, theirs = map(Channel, socket.socketpair())
    theirs.close()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os._exit(0 if ours.send(b"to nobody") else 1)
    _, status = os.waitpid(child, 0)
    ours.close()
    assert os.waitstatus_to_exitcode(status) == 0


class Crowded(socket.socket):
    """Takes no files at first, like a system with too many files in flight."""

    refusals = 3

    def sendmsg(self, *arguments: Any) -> int:
        if arguments[1] and self.refusals:
            self.refusals -= 1
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        return super().sendmsg(*arguments)


def test_files_wait_until_fewer_are_on_their_way() -> None:
    before = fds()
    one, other = socket.socketpair()
    crowded = Crowded(fileno=one.detach())
    ours, theirs = Channel(crowded), Channel(other)
    sender = Sender(ours)
    sender.send(b"first")
    sender.send(b"second", files=[a_file(b"a")])
    sender.send(b"third", files=[a_file(b"b")])
    found = [contents(theirs.next()) for _ in range(3)]
    assert found == [(b"first", []), (b"second", [b"a"]), (b"third", [b"b"])]
    assert crowded.refusals == 0
    ours.close()
    theirs.close()
    assert fds() == before


def test_a_large_message_is_not_copied(ends: tuple[Channel, Channel]) -> None:
    ours, _ = ends
    large = bytes(LARGE)
    tracemalloc.start()
    try:
        ours.send(large)
        ours.send(large, b"")
        ours.send(b"", large)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LARGE / 2


# Files attached to a pickle.


def opened(path: Path) -> OpenFile:
    path.write_bytes(path.name.encode())
    return OpenFile(os.open(path, os.O_RDONLY))


def read(file: Any) -> bytes:
    descriptor = file.detach()
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def test_files_are_taken_by_number(tmp_path: Path) -> None:
    before = fds()
    sent = [opened(tmp_path / name) for name in ("one", "other")]
    content, files = pickled({"again": [*sent, sent[0]]})
    with received(files):
        found = pickle.loads(content)["again"]
        assert [read(file) for file in found[:2]] == [b"one", b"other"]
        assert found[2] is found[0]
    del sent, found
    assert fds() == before


def test_files_that_are_not_taken_are_closed(tmp_path: Path) -> None:
    before = fds()
    content, files = pickled([opened(tmp_path / name) for name in "ab"])
    with received(files):
        assert read(pickle.loads(content)[1]) == b"b"
    assert files == []
    assert fds() == before


def test_what_cannot_be_pickled_leaves_no_file_open(tmp_path: Path) -> None:
    before, popen = fds(), get_spawning_popen()
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickled([opened(tmp_path / "a"), lambda: 0])
    assert fds() == before
    assert get_spawning_popen() is popen


def test_an_interrupt_leaves_no_message_in_the_place_of_a_process() -> None:
    """Objects pickled afterwards are not meant for a process."""
    places = places_of(partial(pickled, 1), by="line").items()
    (number,) = {number for place, number in places if place.source.endswith("popen(before)")}
    with interrupt_at(number, by="line"), suppress(KeyboardInterrupt):
        pickled(1)
    assert get_spawning_popen() is not None
    assert spawning_process() is None
    pickled(1)
    assert get_spawning_popen() is None


def test_messages_within_one_another_keep_their_own_files(tmp_path: Path) -> None:
    outer, files = pickled(opened(tmp_path / "outer"))
    inner, inner_files = pickled(opened(tmp_path / "inner"))
    with received(files):
        with received(inner_files):
            assert read(pickle.loads(inner)) == b"inner"
        assert read(pickle.loads(outer)) == b"outer"


def test_shared_tensors_travel_beside_the_pickle() -> None:
    tensor = torch.arange(6).share_memory_()
    content, files = pickled(tensor)
    assert len(files) == 1
    with received(files):
        found = pickle.loads(content)
    found[0] = 7
    assert tensor[0] == 7


def test_more_files_than_a_message_carries_are_asked_for() -> None:
    sent = [OpenFile(os.dup(0)) for _ in range(MAX_FILES + 2)]
    try:
        content, files = pickled(sent)
    finally:
        resource_sharer.stop(timeout=seconds(5))
    assert len(files) == MAX_FILES
    close_all(files)
    assert bytes(content).count(b"resource_sharer") == 1
