"""Channel: whole messages, and open files with them, over one end of a socket pair.

The other end may die at any time. Each worker process has its own socket, so a dead one holds no
shared lock, and half a message blocks no other process.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import reduction, resource_sharer
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np

MAX_FILES = 200
"""Maximum number of files in a message; the system allows 253."""


class OpenFile:
    """A file descriptor, owned by this object, that can be sent in a message."""

    def __init__(self, file: int) -> None:
        self._file = file

    def detach(self) -> int:
        """Return the descriptor, which the caller closes."""
        file, self._file = self._file, -1
        return file

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (reduction.DupFd(self._file),)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def pickled(content: Any) -> tuple[memoryview, list[int]]:
    """Pickle a message; return the bytes, and the descriptors that must be sent and closed.

    Raises:
        Exception: part of it cannot be pickled.
    """
    files: list[int] = []
    collector: Any = _Collector(files)
    before = spawning_process()
    set_spawning_popen(collector)
    try:
        return ForkingPickler.dumps(content), files
    except BaseException:
        close_all(files)
        raise
    finally:
        set_spawning_popen(before)


def spawning_process() -> Any:
    """Process that this thread is about to spawn, or None."""
    process = get_spawning_popen()
    return None if isinstance(process, _Collector) else process


@contextmanager
def received(files: list[int]) -> Iterator[None]:
    """Give a message's files to the objects unpickled here; close the others."""
    before = getattr(_PRESENT, "files", None)
    try:
        _PRESENT.files = files
        yield
    finally:
        _PRESENT.files = before
        close_all(files)


def close_all(files: list[int]) -> None:
    """Close the descriptors that were not taken."""
    while files:
        file = files.pop()
        if file >= 0:
            os.close(file)


class _Collector:
    """Stands in for the process that multiprocessing gives inherited files to."""

    def __init__(self, files: list[int]) -> None:
        self._files = files

    def duplicate_for_child(self, file: int) -> int:
        return file

    def DupFd(self, file: int) -> Any:  # noqa: N802
        if len(self._files) == MAX_FILES:
            return resource_sharer.DupFd(file)
        self._files.append(os.dup(file))
        return _Numbered(len(self._files) - 1)


class _Numbered:
    """A file of the message that is being unpickled."""

    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        files: list[int] = _PRESENT.files
        file, files[self._number] = files[self._number], -1
        return file


_PRESENT = threading.local()


def _itself(file: Any) -> Any:
    return file


_HEAD = struct.Struct("=QQQ")
"""Number of bytes in the head, of bytes in the body, and of files."""
_FILES_SPACE = socket.CMSG_SPACE(MAX_FILES * array("i").itemsize)
_CHUNK = 1 << 16
"""Number of bytes read at once, except for a known longer message."""
_SOCKET_BUFFER = 1 << 20
"""Requested size; the system may give less."""
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_UNTIL_FEWER_FILES = 0.01
_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
_MAX_COPY = 1 << 16
"""Size limit of a message that is copied, to be sent in one call."""


class Message(NamedTuple):
    head: memoryview
    body: memoryview
    files: list[int] | None
    """Descriptors of its files, which the receiver closes; None if none could be opened."""


class Channel:
    """Sends and receives messages; no method waits, except :meth:`next`.

    >>> ours, theirs = map(Channel, socket.socketpair())
    >>> ours.send(b"one"), ours.send(b"other", bytes(2))
    (True, True)
    >>> bytes(theirs.next().head), [bytes(message.body) for message in theirs.receive()]
    (b'one', [b'\\x00\\x00'])
    >>> ours.close()
    >>> theirs.receive(), theirs.has_ended
    ([], True)
    >>> theirs.close()
    """

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(None)  # a program may have set another default
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        self._socket = end
        self._memory = _memory(_CHUNK)
        """Memory that messages are received into."""
        self._num_received = 0
        """Number of its bytes that hold an incomplete message."""
        self._files: deque[list[int] | None] = deque()
        """Files of the messages with files, in order."""
        self._messages: deque[Message] = deque()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self.has_ended = False
        """Whether nothing more will arrive."""
        self.has_too_many_files = False
        """Whether files in transit prevent sending more files."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let multiprocessing hand this end to a process that it starts."""
        return Channel, (self._socket,)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, head: bytes, body: bytes | memoryview = b"", files: Sequence[int] = ()) -> bool:
        """Send a message; return whether it, and all earlier messages, are completely sent.

        Args:
            body: its larger part, which is not copied and must not change.
            files: descriptors that are sent with it and then closed; at most MAX_FILES.
        """
        sizes = _HEAD.pack(len(head), len(body), len(files))
        if len(head) + len(body) <= _MAX_COPY:
            self._unsent.append((memoryview(sizes + head + body), list(files)))
        else:
            self._unsent.append((memoryview(sizes), list(files)))
            self._unsent += ((memoryview(part), []) for part in (head, body) if part)
        return self.flush()

    def flush(self) -> bool:
        """Send what the socket takes of the rest; return whether it took all."""
        self.has_too_many_files = False
        while self._unsent:
            part, files = self._unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
            try:
                num_sent = self._socket.sendmsg([part], rights, _FLAGS)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    self.has_too_many_files = True
                    return False
                for _, files in self._unsent:  # the other end no longer reads
                    close_all(files)
                self._unsent.clear()
                return True
            close_all(files)
            if num_sent < len(part):
                self._unsent[0] = part[num_sent:], []
            else:
                self._unsent.popleft()
        return True

    def receive(self, *, rest: bool = False) -> list[Message]:
        """Return the messages that have arrived.

        Args:
            rest: read everything that a dead sender has left.
        """
        while not self.has_ended:
            try:
                has_filled = self._receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                has_filled, self.has_ended = False, True
            if not has_filled and not rest:
                break
        messages, self._messages = list(self._messages), deque()
        return messages

    def next(self) -> Message:
        """Wait for a message.

        Raises:
            EOFError: none will come.
        """
        while not self._messages:
            if self.has_ended:
                raise EOFError
            try:
                self._receive()
            except ConnectionError:
                self.has_ended = True
        return self._messages.popleft()

    def end(self) -> None:
        """Signal the end, even if others hold this end."""
        with suppress(OSError):  # it is closed there
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        for files in [*self._files, *(message.files for message in self._messages)]:
            close_all(files or [])
        for _, unsent in self._unsent:
            close_all(unsent)

    def _receive(self, flags: int = 0) -> bool:
        """Receive what comes at once; return whether it has filled the memory."""
        room = self._memory[self._num_received :]
        flags |= socket.MSG_CMSG_CLOEXEC
        num_bytes, rights, flags_received, _ = self._socket.recvmsg_into(
            [room], _FILES_SPACE, flags
        )
        if rights or flags_received & socket.MSG_CTRUNC:
            files = array("i")
            for _, _, data in rights:
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
            if flags_received & socket.MSG_CTRUNC:  # too many files are open
                close_all(files.tolist())
                self._files.append(None)
            else:
                self._files.append(files.tolist())
        self._num_received += num_bytes
        self.has_ended = not num_bytes
        self._take_messages()
        return num_bytes == len(room)

    def _take_messages(self) -> None:
        """Take the complete messages, and make room for the next one."""
        arrived, begin, end = self._memory[: self._num_received], 0, 0
        while len(arrived) - begin >= _HEAD.size:
            head_size, body_size, num_files = _HEAD.unpack_from(arrived, begin)
            head = begin + _HEAD.size
            body = head + head_size
            end = body + body_size
            if end > len(arrived):
                break
            files = self._files.popleft() if num_files else []
            self._messages.append(Message(arrived[head:body], arrived[body:end], files))
            begin = end
        if begin or end > len(self._memory):
            rest = arrived[begin:]
            self._memory = _memory(max(end - begin, _CHUNK))
            self._memory[: len(rest)] = rest
            self._num_received = len(rest)


def _memory(num_bytes: int) -> memoryview:
    return np.empty(num_bytes, np.uint8).data  # unlike a bytearray it is not cleared


class Sender:
    """Sends over a channel, with a thread for what the socket does not take at once."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, head: bytes, body: bytes | memoryview = b"", files: Sequence[int] = ()) -> None:
        """Send a message, as :meth:`Channel.send` does; it does not wait."""
        with self._lock:
            if not self._channel.send(head, body, files) and self._thread is None:
                name = "stateful_gpu_loader sender"
                self._thread = threading.Thread(target=self._send_rest, name=name, daemon=True)
                self._thread.start()

    def _send_rest(self) -> None:
        poll = select.poll()
        poll.register(self._channel, select.POLLOUT)
        while True:
            poll.poll(_SECONDS_BETWEEN_LOOKS * 1000)
            with self._lock:
                if self._channel.flush():
                    self._thread = None
                    return
            if self._channel.has_too_many_files:  # though the socket has room
                time.sleep(_SECONDS_UNTIL_FEWER_FILES)
