"""``python -m tests.chaos.job '{...}'``: iterate a stream for ever, and save checkpoints.

The job resumes from the newest checkpoint of its folder. Delivered batches and the job's own faults
are appended to a log, one JSON object a line, before a checkpoint covers them.
"""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from stateful_gpu_loader import Checkpoint, CheckpointError, CheckpointNotFound, StatefulGPULoader
from tests.chaos.streams import STREAMS, end_epoch
from tests.fuzz.records import record_of

SAVE_EVERY = 5
KEEP = 3
DRAWN_TWICE = "a number drawn twice beside the loop"
_TRAINING_STEP = 0.003
"""Seconds of a training step, so that workers get ahead."""


@dataclass(frozen=True)
class Job:
    """Arguments of one life of the job."""

    stream: str
    folder: str
    execution: dict[str, Any]
    seed: int
    log: str

    def to_text(self) -> str:
        return json.dumps(asdict(self))


class Counter:
    """Number of delivered batches, saved beside the loader."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def told_of(step: int, loader: StatefulGPULoader[Any], batch: Any) -> list[Any]:
    """Return a batch as it is logged: its number, the loader's record of it, and its digest."""
    digest = hashlib.sha256(repr(record_of(batch)).encode()).hexdigest()
    return [step, loader.epoch, loader.batches_done, digest]


def pattern_of(folder: str, stream: str) -> str:
    return f"{folder}/checkpoints/{stream}_{{seq:06d}}.json"


class Training:
    """One life of the job."""

    def __init__(self, job: Job) -> None:
        self.job, self.rng, self.counter = job, random.Random(job.seed), Counter()
        self.pattern = pattern_of(job.folder, job.stream)
        self.log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.loader = self.build()
        self.newest: str | None = None
        checkpoint = Checkpoint()
        with suppress(CheckpointNotFound):
            self.newest = checkpoint.load(self.pattern)
        self.register(checkpoint)
        self.tell("resumed", self.counter.step)

    def build(self) -> StatefulGPULoader[Any]:
        return STREAMS[self.job.stream](Path(self.job.folder), **self.job.execution)

    def register(self, checkpoint: Checkpoint) -> Checkpoint:
        checkpoint.register(self.counter, "counter")
        checkpoint.register(self.loader, "loader")
        return checkpoint

    def tell(self, kind: str, value: Any = None) -> None:
        os.write(self.log, json.dumps({kind: value}).encode() + b"\n")

    def run(self) -> None:
        while True:
            if (state := self.iterate()) is None:
                end_epoch(self.loader)
                self.tell("used", used())
                continue
            is_rebuilt = self.rng.random() < 0.5
            if is_rebuilt:
                self.loader = self.build()
            self.loader.load_state_dict(state)
            self.tell("rebuilt" if is_rebuilt else "broken off")

    def iterate(self) -> dict[str, Any] | None:
        """Iterate one pass; return the state to resume from, or None at the end of the epoch."""
        batches = iter(self.loader)
        while True:
            before = self.loader.state_dict()
            try:
                batch = self.next_of(batches)
            except StopIteration:
                return None
            except Interrupted:
                if self.loader.state_dict() != before:
                    self.tell("interrupted at the return")  # it delivers a batch to no one
                    return before
                self.tell("interrupted")
                continue
            self.tell("batch", told_of(self.counter.step, self.loader, batch))
            self.counter.step += 1
            time.sleep(_TRAINING_STEP)
            if self.counter.step % SAVE_EVERY == 0 or self.newest is None:
                self.save()
            if self.rng.random() < 0.02:
                return self.loader.state_dict()

    def next_of(self, batches: Iterator[Any]) -> Any:
        """Return the next batch; at times an alarm interrupts the call.

        Raises:
            Interrupted: the alarm rang during the call.
            StopIteration: the epoch is over.
        """
        if threading.current_thread() is not threading.main_thread() or self.rng.random() > 0.1:
            return next(batches)
        with alarm(10 ** self.rng.uniform(-5, -2)):
            return next(batches)

    def save(self) -> None:
        """Save a checkpoint. At times the disk is full; the earlier one must stay whole."""
        checkpoint = self.register(Checkpoint())
        checkpoint.collect()
        if self.newest is None or self.rng.random() > 0.1:
            self.newest = checkpoint.save(self.pattern, keep=KEEP)
            return
        try:
            with full_disk(self.rng.randrange(os.path.getsize(self.newest) // 2)):
                written = checkpoint.save(self.pattern, keep=KEEP)
        except CheckpointError:
            self.tell("full disk")
        else:
            raise RuntimeError(f"{written} was written to a full disk")
        found = Checkpoint().load(self.pattern)
        if found != self.newest:
            raise RuntimeError(f"after a full disk, {found} is loaded, not {self.newest}")


class Interrupted(KeyboardInterrupt):
    """An alarm rang."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise :class:`Interrupted` after some seconds, wherever the block is."""
    is_inside = True

    def ring(*_: Any) -> None:
        nonlocal is_inside
        if is_inside:
            is_inside = False
            raise Interrupted

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        is_inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_beside_draws(training: Training) -> None:
    """Run the training in a thread, while this thread draws from the global generators."""
    earlier: list[tuple[float, ...]] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(training.run)
        while not running.done():
            drawn = [
                (
                    random.random(),
                    float(np.random.rand()),
                    float(torch.rand((), dtype=torch.double)),
                )
                for _ in range(500)
            ]
            if any(len(set(each)) < len(each) for each in zip(*(earlier + drawn), strict=True)):
                training.tell(DRAWN_TWICE)
            earlier = drawn
            time.sleep(0.001)
        running.result()


@contextmanager
def full_disk(left: int) -> Iterator[None]:
    """Limit the size of this process's files, in bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def used() -> dict[str, int]:
    """Return the resources that this process holds between two epochs, after garbage collection."""
    gc.collect()  # the traceback of an interrupt may be part of a cycle
    me = psutil.Process()
    maps = Path("/proc/self/maps").read_text()
    return {
        "file descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "processes": len(me.children(recursive=True)),
        "shared memory segments": maps.count("/dev/shm/") + maps.count("/memfd:"),
        "resident MiB": me.memory_info().rss >> 20,
    }


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    training = Training(Job(**json.loads(sys.argv[1])))
    is_inline = not training.loader.num_workers
    # A worker that is forked while another thread draws may wait for that thread's lock.
    if training.job.stream == "quiet" and is_inline:
        run_beside_draws(training)
    training.run()


if __name__ == "__main__":
    main()
