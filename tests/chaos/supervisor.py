"""Starts one job after another, disturbs it at random moments, and kills it.

The seed decides the disturbances and their times. The place in the job where a signal lands differs
between runs.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar

import psutil

from tests.chaos.job import KEEP, Job
from tests.chaos.streams import TIMEOUT, drawn_execution
from tests.chaos.verdict import SLACK

_HUNG = 120.0
"""Seconds without a batch after which a job counts as hung."""


class Fault(Exception):
    """The job failed, hung, or left processes running, without a disturbance."""


class Supervisor:
    """Plays the lives of the job of one stream.

    Args:
        stream: a name of ``STREAMS``.
        folder: the prepared files; checkpoints and logs are written beside them.
        rng: decides the disturbances.
    """

    lives: ClassVar[tuple[float, ...]] = (3.0, 8.0, 15.0, 40.0)
    """Seconds that a job lives after its first batch."""
    between: ClassVar[float] = 0.7
    """Mean seconds between two disturbances."""
    slack: ClassVar[Mapping[str, int]] = SLACK
    """Allowed growth of each resource until the end of a life."""

    def __init__(self, stream: str, folder: Path, rng: random.Random) -> None:
        self.stream, self.folder, self.rng = stream, folder, rng
        self.logs: list[Path] = []
        self.done: Counter[str] = Counter()
        """Number of disturbances by kind."""
        self.fault: str | None = None
        self._orphans: list[psutil.Process] = []
        self._pids: set[str] = set()
        """Process ids of all jobs and workers seen so far. Names of shared memory contain them."""

    def play(self, seconds: float) -> None:
        """Play one life after another for some seconds, or until a fault."""
        ends = time.monotonic() + seconds
        try:
            while time.monotonic() < ends:
                self._live(ends)
            _, alive = psutil.wait_procs(self._orphans, timeout=_HUNG)
            if alive:
                send(alive, signal.SIGKILL)
                raise Fault(f"workers outlived their killed job: {alive}")
            left = [name for name in os.listdir("/dev/shm") if self._pids & set(name.split("_"))]
            for name in left:
                os.unlink(f"/dev/shm/{name}")
            self.done["shared memory file left"] += len(left)
            # Torch removes the name at once; a kill of all between its two calls leaves one.
            if len(left) > len(self.logs):
                raise Fault(f"shared memory outlived its processes: {left}")
            files = list(Path(self.folder, "checkpoints").glob(f"*{self.stream}_*"))
            if len(files) > KEEP + 2:  # a killed save leaves two, which the next removes
                raise Fault(f"more than {KEEP} checkpoints are kept: {files}")
        except Fault as fault:
            self.fault = f"{self.stream}: {fault}"

    def _live(self, ends: float) -> None:
        rng = self.rng
        execution = self.drawn_execution()
        log = self.folder / f"{self.stream}_{len(self.logs):04d}.log"
        log.touch()
        self.logs.append(log)
        job = Job(self.stream, str(self.folder), execution, rng.getrandbits(32), str(log))
        errors = log.with_suffix(".errors")
        with errors.open("w") as file:
            life = Life(job, file)
        try:
            if rng.random() < 0.15:
                life.watch(rng.uniform(0, 8))
                self.done["job killed while it started"] += 1  # also counted below
                return
            life.watch_until_it_delivers()
            ends = min(ends, time.monotonic() + rng.choice(self.lives))
            while time.monotonic() < ends:
                life.watch(rng.expovariate(1 / self.between))
                self.disturb(life)
        except Fault as fault:
            raise Fault(f"{fault}; {job}\n{errors.read_text()[-6000:]}") from None
        finally:
            self._kill(life)

    def drawn_execution(self) -> dict[str, Any]:
        """Return the execution of the next life."""
        return drawn_execution(self.stream, self.rng)

    def workers_of(self, life: Life) -> list[psutil.Process]:
        return life.workers()

    def disturb(self, life: Life) -> None:
        """Disturb a job or its workers."""
        rng, workers = self.rng, self.workers_of(life)
        self._pids.update(str(process.pid) for process in [life.process, *workers])
        if not workers or rng.random() < 0.15:
            everyone = rng.random() < 0.5
            stopped = [life.process, *workers] if everyone else [life.process]
            self.done["job stopped for a while"] += 1
            # at times longer than a loader waits for its workers
            stop(stopped, TIMEOUT + 1 if rng.random() < 0.1 else rng.uniform(0.1, 1))
        elif rng.random() < 0.6:
            victims = workers if rng.random() < 0.2 else [rng.choice(workers)]
            self.done["workers killed"] += len(victims)
            send(victims, signal.SIGKILL)
        elif life.job.execution["timeout"] and rng.random() < 0.5:
            self.done["worker stopped for good"] += 1
            send([rng.choice(workers)], signal.SIGSTOP)
        else:
            self.done["worker stopped for a while"] += 1
            stop([rng.choice(workers)], rng.uniform(0.1, 1))

    def _kill(self, life: Life) -> None:
        """SIGKILL the whole group, or the job alone, whose workers must then end by themselves."""
        workers = self.workers_of(life)
        everyone = self.rng.random() < 0.5
        self.done["job killed with its workers" if everyone else "job killed alone"] += 1
        if everyone:
            with suppress(ProcessLookupError):
                os.killpg(life.process.pid, signal.SIGKILL)
        else:
            send([life.process], signal.SIGKILL)
            send(workers, signal.SIGCONT)
        self._orphans += workers
        life.process.wait()


class Life:
    """A process of the job, and its log."""

    def __init__(self, job: Job, errors: IO[str]) -> None:
        self.job = job
        command = [sys.executable, "-m", "tests.chaos.job", job.to_text()]
        # a killed job's temporary files go with the whole folder
        folder = {"TMPDIR": job.folder}
        self.process = psutil.Popen(
            command,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, **folder},
        )
        self._command = command
        self._size, self._changed = 0, time.monotonic()

    def workers(self) -> list[psutil.Process]:
        """Return the job's worker processes. They are forked, so they have its command line."""
        found = []
        with suppress(psutil.NoSuchProcess):  # the job has ended
            for child in self.process.children():
                with suppress(psutil.NoSuchProcess):
                    if child.cmdline() == self._command:
                        found.append(child)
        return found

    def watch(self, seconds: float) -> None:
        """Watch the job for so many seconds.

        Raises:
            Fault: the job has ended by itself, or has logged nothing for too long.
        """
        with suppress(psutil.TimeoutExpired):
            raise Fault(f"the job ended by itself, status {self.process.wait(seconds)}")
        size = os.path.getsize(self.job.log)
        if size > self._size:
            self._size, self._changed = size, time.monotonic()
        elif time.monotonic() - self._changed > _HUNG:
            self.process.send_signal(signal.SIGUSR1)  # prints where its threads are
            with suppress(psutil.TimeoutExpired):
                self.process.wait(2)
            raise Fault(f"no batch for {_HUNG:.0f} s")

    def watch_until_it_delivers(self) -> None:
        while '"batch"' not in Path(self.job.log).read_text():
            self.watch(0.1)


def stop(processes: list[psutil.Process], seconds: float) -> None:
    """Stop the processes for some seconds."""
    send(processes, signal.SIGSTOP)
    time.sleep(seconds)
    send(processes, signal.SIGCONT)


def send(processes: list[psutil.Process], number: int) -> None:
    """Send a signal to the processes."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
