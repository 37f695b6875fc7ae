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
from tests.prepared_processes import run_script, run_until_exit

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


def run(argument: str, text: str | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, argument], input=text, capture_output=True, text=True, timeout=seconds(60)
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def as_file(folder: Path, script: str) -> tuple[int, str]:
    (folder / "train.py").write_text(script)
    return run(str(folder / "train.py"))


def as_stdin(folder: Path, script: str) -> tuple[int, str]:
    return run("-", script)


def as_notebook(folder: Path, script: str) -> tuple[int, str]:
    """A kernel, like ``python -c``, executes it in a ``__main__`` without a file."""
    return run_until_exit(script)


WAYS = {
    "file": (as_file, '`if __name__ == "__main__":`'),
    "stdin": (as_stdin, "keep the main script in a file"),
    "notebook": (as_notebook, "in a module that worker processes can import"),
}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("way", "method"), [("file", "spawn"), ("stdin", "forkserver"), ("notebook", "spawn")]
)
def test_a_script_that_workers_cannot_import(way: str, method: str, tmp_path: Path) -> None:
    """G8: one start, and an error that names the remedy."""
    start, remedy = WAYS[way]
    starts = tmp_path / "starts"
    code, written = start(tmp_path, SCRIPT.format(starts=str(starts), method=method))
    assert code == 1
    error = written.splitlines()[-1]
    assert error.startswith(
        "stateful_gpu_loader.errors.WorkerLost: worker 0 was lost: DataLoader worker"
    )
    assert remedy in error
    assert "the stream goes on" not in written
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


def leaves(worker: int) -> None:
    os._exit(3)


def leaves_by_exception(worker: int) -> None:
    raise SystemExit(4)


def is_killed(*given: Any) -> None:
    signal.raise_signal(signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("dataset", "worker_init_fn", "method", "expected"),
    [
        (Indices, leaves, "fork", "exit code 3. It ended in worker_init_fn"),
        (Indices, leaves_by_exception, "fork", "exit code 4. It ended in worker_init_fn"),
        (Indices, is_killed, "fork", "Killed. It ended in worker_init_fn"),
        (Aborts, None, "spawn", "Killed. It ended while it unpickled the loader's dataset"),
        (MissingModule, None, "forkserver", "ModuleNotFoundError: No module named 'stateful_gpu_"),
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


def once(happens: Callable[[], Any]) -> tuple[int, Callable[..., None]]:
    """Return a function that acts in one forked process, and the descriptor of its token."""
    reader, writer = os.pipe()
    os.write(writer, b"1")
    os.close(writer)

    def act(*given: Any) -> None:
        if os.read(reader, 1):
            happens()

    return reader, act


def interrupt() -> None:
    """Act like Ctrl-C, which reaches all processes of a terminal."""
    raise KeyboardInterrupt


def assert_is_replaced(token: int, **arguments: Any) -> None:
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        Indices(8), batch_size=2, num_workers=1, multiprocessing_context="fork", **arguments
    )
    with pytest.warns(RuntimeWarning, match="Another worker is started in its place"):
        assert len(list(loader)) == 4
    assert loader.worker_restarts == 1
    os.close(token)


def test_a_worker_that_was_interrupted_while_it_started_is_replaced() -> None:
    """Ctrl-C does not show that workers cannot start."""
    token, interrupted_once = once(interrupt)
    assert_is_replaced(token, worker_init_fn=interrupted_once)


class Forked:
    """Lets a function run in each process that is forked while this object lives."""


@pytest.mark.parametrize("happens", [is_killed, interrupt])
def test_a_worker_that_is_lost_right_after_it_was_forked_is_replaced(
    happens: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch ends an interrupted worker with exit code 0."""
    token, act_once = once(happens)
    hook, main, set_num_threads = Forked(), os.getpid(), torch.set_num_threads
    if happens is is_killed:
        register_after_fork(hook, act_once)
    else:

        def interrupted_once(number: int) -> None:
            if os.getpid() != main:
                act_once()
            set_num_threads(number)

        monkeypatch.setattr(torch, "set_num_threads", interrupted_once)
    assert_is_replaced(token)


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
