"""Forks and open descriptors, for the tests of storage."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_a_fork(work: Callable[[], bool]) -> int:
    """Return a forked child's exit status: 0 if ``work`` is true, 2 if not, 1 if it raises."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if work() else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_a_fork_while_held(lock: AbstractContextManager[Any], work: Callable[[], bool]) -> int:
    """Call :func:`in_a_fork` while another thread of this process holds a lock."""
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    try:
        return in_a_fork(work)
    finally:
        let_go.set()
        holder.join()


@contextmanager
def beside_a_fork(work: Callable[[], Any]) -> Iterator[None]:
    """Run the block after a forked child has done its work, and while it lives; kill it then."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if not child:
        try:
            receiver.close()
            torch.set_num_threads(1)  # OpenMP's threads do not survive in a forked child
            work()
            sender.send_bytes(b"done")
            time.sleep(60)
        finally:
            os._exit(1)
    sender.close()
    try:
        assert receiver.recv_bytes() == b"done"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
