"""Worker processes that cannot start: one attempt, a reason and a remedy."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import LoaderError, StatefulGPULoader, WorkerLost, start_workers
from tests.map_datasets import Indices
from tests.patience import seconds
from tests.prepared_processes import run_script

SCRIPT = """
import os
from stateful_gpu_loader import StatefulGPULoader

with open({starts!r}, "a") as file:
    file.write("imported\\n")

class Dataset:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index

loader = StatefulGPULoader(
    Dataset(), batch_size=2, num_workers=1, multiprocessing_context={method!r}
)
print([batch.tolist() for batch in loader])
"""


def run(arguments: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=seconds(60),
    )


def as_file(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return run([str(folder / "train.py")])


def as_stdin(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    return run(["-"], script)


def as_command(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    return run(["-c", script])


def as_notebook(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script like a notebook: a kernel executes it in a ``__main__`` without a file."""
    (folder / "cell.txt").write_text(script)
    kernel = (
        "import sys, __main__\n"
        "__main__.__spec__ = None\n"
        f"exec(open({str(folder / 'cell.txt')!r}).read(), vars(__main__))\n"
    )
    return run(["-c", kernel])


WAYS = {
    "file": (as_file, '`if __name__ == "__main__":`'),
    "stdin": (as_stdin, "keep the main script in a file"),
    "command": (as_command, "in a module that worker processes can import"),
    "notebook": (as_notebook, "in a module that worker processes can import"),
}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("way", "method"),
    [
        ("file", "spawn"),
        ("stdin", "forkserver"),
        ("command", "spawn"),
        ("notebook", "forkserver"),
    ],
)
def test_a_script_that_workers_cannot_import(way: str, method: str, tmp_path: Path) -> None:
    """G8: one start, and an error that names the remedy."""
    start, remedy = WAYS[way]
    starts = tmp_path / "starts"
    done = start(tmp_path, SCRIPT.format(starts=str(starts), method=method))
    assert done.returncode == 1
    assert done.stdout == ""
    error = done.stderr.splitlines()[-1]
    assert error.startswith(
        "stateful_gpu_loader.errors.WorkerLost: worker 0 was lost: DataLoader worker"
    )
    assert remedy in error
    assert "the stream goes on" not in done.stderr
    imported = len(starts.read_text().splitlines())
    assert imported == (2 if way == "file" else 1)


def test_a_process_that_imports_the_main_script_starts_no_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G8: like a worker whose script has no guard."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    loader: StatefulGPULoader[Any] = StatefulGPULoader(Indices(8), num_workers=1)
    with pytest.raises(LoaderError, match="__main__"):
        next(iter(loader))


class Aborts(Indices):
    """Unpickling it ends the process."""

    def __setstate__(self, state: Any) -> None:
        signal.raise_signal(signal.SIGKILL)


class MissingModule(Indices):
    """Its module is missing in the worker."""

    def __reduce__(self) -> Any:
        return __import__, ("stateful_gpu_loader_is_not_here",)


class Unreadable(Indices):
    def __setstate__(self, state: Any) -> None:
        raise LookupError("no such state")


def leaves(worker: int) -> None:
    os._exit(3)


def leaves_by_exception(worker: int) -> None:
    raise SystemExit(4)


def is_killed(worker: int) -> None:
    signal.raise_signal(signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("dataset", "worker_init_fn", "method", "expected"),
    [
        (Indices, leaves, "fork", "exit code 3. It ended in worker_init_fn"),
        (Indices, leaves_by_exception, "fork", "exit code 4. It ended in worker_init_fn"),
        (Indices, is_killed, "fork", "Killed. It ended in worker_init_fn"),
        (Aborts, None, "spawn", "Killed. It ended while it unpickled the loader's dataset"),
        (
            MissingModule,
            None,
            "spawn",
            "ModuleNotFoundError: No module named 'stateful_gpu_loader_is",
        ),
        (Unreadable, None, "forkserver", "LookupError: no such state"),
    ],
)
def test_a_worker_that_ends_while_it_starts(
    dataset: type[Indices],
    worker_init_fn: Callable[[int], None] | None,
    method: str,
    expected: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """G8: reported at the first batch, also for workers started ahead; one start each."""
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        dataset(8),
        batch_size=2,
        num_workers=2 if method == "fork" else 1,
        worker_init_fn=worker_init_fn,
        multiprocessing_context=method,
    )
    with pytest.raises(WorkerLost) as lost:
        next(iter(loader))
    assert expected in str(lost.value)
    assert "Remedy: " in str(lost.value)
    assert "max_worker_restarts" not in str(lost.value)
    assert loader.worker_restarts == 0
    assert loader.state_dict()["position"] == 0

    def start_ahead() -> None:
        start_workers(loader)
        next(iter(loader))

    with pytest.raises(WorkerLost) as lost:
        start_ahead()
    assert expected in str(lost.value)
    assert loader.worker_restarts == 0
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_was_interrupted_while_it_started_is_replaced() -> None:
    """Ctrl-C reaches all processes of a terminal, and does not show that workers cannot start."""
    reader, writer = os.pipe()
    os.write(writer, b"1")
    os.set_blocking(reader, False)

    def interrupted_once(worker: int) -> None:
        try:
            os.read(reader, 1)
        except BlockingIOError:
            return
        raise KeyboardInterrupt

    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        Indices(8),
        batch_size=2,
        num_workers=1,
        worker_init_fn=interrupted_once,
        multiprocessing_context="fork",
    )
    with pytest.warns(RuntimeWarning, match="Another worker is started in its place"):
        assert len(list(loader)) == 4
    assert loader.worker_restarts == 1


class Killer:
    """Kills the first process that is forked while this object lives."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        os.write(writer, b"1")
        os.close(writer)
        register_after_fork(self, Killer.kill_once)

    def kill_once(self) -> None:
        if os.read(self.reader, 1):
            signal.raise_signal(signal.SIGKILL)


def test_a_worker_that_is_killed_right_after_it_was_forked_is_replaced() -> None:
    killer = Killer()
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        Indices(8), batch_size=2, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.warns(RuntimeWarning, match="Another worker is started in its place"):
        assert len(list(loader)) == 4
    assert loader.worker_restarts == 1
    os.close(killer.reader)


def test_a_worker_that_is_interrupted_right_after_it_was_forked_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C reaches all processes of a terminal; torch ends the worker with exit code 0."""
    reader, writer = os.pipe()
    os.write(writer, b"1")
    os.close(writer)
    main, set_num_threads = os.getpid(), torch.set_num_threads

    def interrupted_once(number: int) -> None:
        if os.getpid() != main and os.read(reader, 1):
            raise KeyboardInterrupt
        set_num_threads(number)

    monkeypatch.setattr(torch, "set_num_threads", interrupted_once)
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        Indices(8), batch_size=2, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.warns(RuntimeWarning, match="Another worker is started in its place"):
        assert len(list(loader)) == 4
    assert loader.worker_restarts == 1
    os.close(reader)


class Once(Indices):
    """Its workers are killed at their start once a file exists."""

    def __init__(self, length: int, file: Path) -> None:
        super().__init__(length)
        self.file = file

    def initialise(self, worker: int) -> None:
        if self.file.exists():
            self.file.unlink()
            signal.raise_signal(signal.SIGKILL)


def test_a_replacement_that_is_killed_while_it_starts_is_replaced(tmp_path: Path) -> None:
    """The loader has delivered, so its workers can start: the kill came from outside."""
    dataset = Once(40, tmp_path / "life")
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        dataset, batch_size=2, num_workers=1, worker_init_fn=dataset.initialise
    )
    batches = iter(loader)
    delivered = [next(batches).tolist()]
    dataset.file.touch()
    batches._workers[0].kill()
    with pytest.warns(RuntimeWarning, match="killed by signal"):
        delivered += [batch.tolist() for batch in batches]
    assert delivered == [[i, i + 1] for i in range(0, 40, 2)]
    assert loader.worker_restarts == 2


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "free memory"),
    ],
)
def test_a_system_that_cannot_fork(
    number: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G8: type and errno of the error stay, and the message names the remedy."""
    calls = []

    def fork() -> int:
        calls.append(number)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fork", fork)
    loader: StatefulGPULoader[Any] = StatefulGPULoader(Indices(8), num_workers=2)
    with pytest.raises(OSError, match="worker processes cannot be started") as refused:
        next(iter(loader))
    assert refused.value.errno == number
    assert remedy in str(refused.value)
    assert calls == [number]
    assert loader.worker_restarts == 0


FILES = """
import resource
from stateful_gpu_loader import StatefulGPULoader
loader = StatefulGPULoader(range(8), num_workers=40, multiprocessing_context="fork")
import os
used = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 30, used + 30))
try:
    next(iter(loader))
except OSError as error:
    print(error.errno, error)
print(len(os.listdir("/proc/self/fd")) <= used + 2)  # multiprocessing itself leaves a pipe
"""


def test_a_process_without_free_file_descriptors(tmp_path: Path) -> None:
    """G8: with a real limit; all opened files are closed again."""
    script = tmp_path / "script.py"
    script.write_text(FILES)
    done = run_script(script, folder=tmp_path)
    first, *rest = done.stdout.splitlines()
    assert first.split()[0] == str(errno.EMFILE)
    assert "ulimit -n" in first
    assert rest == ["True"], done.stderr
