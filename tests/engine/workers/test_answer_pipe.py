"""Reading of multiprocessing's messages, whole, in pieces, and never finished."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import pytest

from stateful_gpu_loader.engine.workers import answer_pipe
from stateful_gpu_loader.engine.workers.answer_pipe import AnswerPipe, WritersLost

Ends = tuple[Any, Any, Any, Any]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A pipe, and the alarm."""
    reader, writer = Pipe(duplex=False)
    alarm, ring = Pipe(duplex=False)
    yield reader, writer, alarm, ring
    for end in (reader, writer, alarm, ring):
        end.close()


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 1 << 22])
def test_messages_arrive_whole(ends: Ends, size: int) -> None:
    reader, writer, alarm, _ = ends
    messages = [os.urandom(size), b"second"]
    sender = threading.Thread(target=lambda: [writer.send_bytes(one) for one in messages])
    sender.start()
    pipe = AnswerPipe(reader, alarm)
    assert [bytes(pipe.receive()) for _ in messages] == messages
    sender.join()


def test_the_head_of_a_huge_message_is_understood(ends: Ends) -> None:
    reader, writer, alarm, _ = ends
    os.write(writer.fileno(), b"\xff\xff\xff\xff" + (3).to_bytes(8, "big") + b"abc")
    assert bytes(AnswerPipe(reader, alarm).receive()) == b"abc"


def test_what_was_written_before_the_alarm_is_read(ends: Ends) -> None:
    reader, writer, alarm, ring = ends
    writer.send_bytes(b"last words")
    ring.send_bytes(b"!")
    pipe = AnswerPipe(reader, alarm)
    pipe.wait()
    assert bytes(pipe.receive()) == b"last words"
    with pytest.raises(WritersLost):
        pipe.wait()


@pytest.mark.parametrize("how", ["alarm", "end"])
def test_half_a_message_is_given_up(ends: Ends, how: str) -> None:
    """At the alarm even if some process still has the pipe open."""
    reader, writer, alarm, ring = ends
    os.write(writer.fileno(), b"\x00\x00\x00\x09half")
    if how == "alarm":
        ring.send_bytes(b"!")
    else:
        writer.close()
    with pytest.raises(WritersLost):
        AnswerPipe(reader, alarm).receive()


def test_its_format_is_that_of_this_python(ends: Ends) -> None:
    """The head is multiprocessing's own affair: if Python changes it, this shows it first."""
    reader, writer, _, _ = ends
    writer.send_bytes(b"abc")
    assert os.read(reader.fileno(), 100) == answer_pipe._SIZE.pack(3) + b"abc"
