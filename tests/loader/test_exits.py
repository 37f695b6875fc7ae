"""A script that ends with a live iterator writes nothing and leaves no process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine import plan
from stateful_gpu_loader.engine.workers import worker_pool
from tests.device_loaders import make as make_on_device
from tests.device_loaders import photos
from tests.fake_gpu import FakeDecoder, FakePlace
from tests.patience import seconds
from tests.prepared_processes import run_until_exit

__all__ = ["photos"]

KINDS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "threads": {"num_workers": 2, "worker_type": "thread"},
    "processes": {"num_workers": 2, "worker_type": "process"},
    "persistent": {"num_workers": 2, "worker_type": "process", "persistent_workers": True},
    "threads of processes": {"num_workers": 4, "threads_per_process": 2},
    "device": {"device": "cuda", "num_workers": 2, "worker_type": "thread"},
}

WAYS = {
    "at module level": "batches = iter(loader); next(batches)",
    "held by a hook that outlives most modules": """
import sys
batches = iter(loader); next(batches)
sys.excepthook = lambda *error: batches
""",
    "exception in a loop": """
for batch in loader:
    raise ValueError("of the user's")
""",
    "sys.exit in a loop": """
import sys
def train():
    for batch in loader:
        sys.exit(3)
train()
""",
    "os._exit in a loop": """
import os
for batch in loader:
    os._exit(3)
""",
    "Ctrl-C in a loop": """
import os, signal
for number, batch in enumerate(loader):
    if number == 3:  # every worker has made a batch
        os.killpg(0, signal.SIGINT)
        signal.pause()
""",
}
"""Ways for a script with a ``loader`` to end."""

ODDER_WAYS = {
    "after its loader": "batches = iter(loader); next(batches); del loader",
    "in a cycle": """
class Holder: pass
holder = Holder(); holder.itself = holder
holder.batches = iter(loader); next(holder.batches)
def later(): return holder
""",
    "in a generator": """
def stream():
    for batch in loader:
        yield batch
batches = stream(); next(batches)
""",
    "held by a module that is taken apart late": """
import os
os.batches = iter(loader); next(os.batches)
""",
    "two iterators": "first, second = iter(loader), iter(loader); next(first); next(second)",
    "in a thread": """
import threading
batches, started = iter(loader), threading.Event()
def work():
    next(batches)
    started.set()
    threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
started.wait()
""",
    "exception beside an iterator": """
batches = iter(loader); next(batches)
raise ValueError("of the user's")
""",
    "os._exit beside an iterator": """
import os
batches = iter(loader); next(batches)
os._exit(3)
""",
    "Ctrl-C beside an iterator": """
import os, signal
batches = iter(loader)
for _ in range(4): next(batches)
os.killpg(0, signal.SIGINT)
signal.pause()
""",
    "in a function of atexit": """
import atexit
batches = iter(loader); next(batches)
atexit.register(lambda: next(batches))
""",
    "after a pass": "for batch in loader: pass",
}

OWN = {"exception": "ValueError: of the user's", "Ctrl-C": "KeyboardInterrupt"}
"""Last line that the script itself writes, by the first words of its way to end."""


def loader_of(kind: str, root: str) -> StatefulGPULoader[Any]:
    """Return a loader of 20 pictures in batches of 2; a device is simulated by the CPU."""
    decoder = FakeDecoder()
    vars(worker_pool)["CudaPlace"] = FakePlace
    vars(plan)["make_batch_decoder"] = lambda *given, **named: decoder
    return make_on_device(Path(root), **{"batch_size": 2, "device": None, **KINDS[kind]})


def assert_exits_quietly(way: str, kind: str, root: Path) -> None:
    rest = {**WAYS, **ODDER_WAYS}[way]
    script = (
        "from tests.loader.test_exits import loader_of\n"
        f"loader = loader_of({kind!r}, {str(root)!r})\n{rest}"
    )
    check_exit(way, *run_until_exit(script))


def check_exit(way: str, code: int, written: str) -> None:
    """Check the exit code and the output of a script that ended in one of these ways."""
    own = next((line for name, line in OWN.items() if way.startswith(name)), None)
    if own is None:
        assert written == "", way
        assert code == (3 if "exit in" in way or "exit beside" in way else 0), way
    else:
        assert written.startswith("Traceback")
        assert written.endswith(f"{own}\n")
        assert written.count("Traceback") == code == 1, written


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_exit(way: str, photos: Path) -> None:
    """With persistent worker processes."""
    assert_exits_quietly(way, "persistent", photos)


@pytest.mark.processes
@pytest.mark.parametrize("way", ODDER_WAYS)
def test_rare_ways_to_exit(way: str, photos: Path) -> None:
    assert_exits_quietly(way, "persistent", photos)


OTHERS = [kind for kind in KINDS if kind != "persistent"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("way", "kind"), [(way, OTHERS[(i + j) % 5]) for i, way in enumerate(WAYS) for j in (0, 2)]
)
def test_ways_to_exit_with_every_kind(way: str, kind: str, photos: Path) -> None:
    """Each way with two kinds, each kind in two ways."""
    assert_exits_quietly(way, kind, photos)


@pytest.mark.processes
def test_a_daemon_thread_that_waits_for_workers_ends_without_a_traceback() -> None:
    """Torch may still abort the process, as with its own DataLoader."""
    statements = """
import threading
from stateful_gpu_loader import StatefulGPULoader
class Hangs:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index >= 4:
            threading.Event().wait()
        return index
started = threading.Event()
def work():
    for batch in StatefulGPULoader(Hangs(), num_workers=2, multiprocessing_context="fork"):
        started.set()
threading.Thread(target=work, daemon=True).start()
started.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", statements], capture_output=True, text=True, timeout=seconds(60)
    )
    assert done.stderr.replace("terminate called without an active exception\n", "") == ""


@pytest.mark.processes
@pytest.mark.parametrize(("method", "num_workers"), [("fork", 3), ("spawn", 1), ("forkserver", 3)])
def test_workers_end_when_their_process_executes_another_program(
    method: str, num_workers: int, photos: Path
) -> None:
    """The process keeps its pid, and forked workers remain its children."""
    waits = """
import os, select, sys
for pid in map(int, sys.argv[1:]):
    try:
        worker = os.pidfd_open(pid)
    except ProcessLookupError:
        continue
    select.select([worker], [], [])
"""
    statements = f"""
import os, sys
from tests.loader.test_exits import make_on_device
loader = make_on_device(
    {str(photos)!r}, device=None, num_workers={num_workers}, worker_type="process",
    multiprocessing_context={method!r},
)
batches = iter(loader)
next(batches)
pids = [str(worker.pid) for worker in batches._workers]
os.execv(sys.executable, [sys.executable, "-c", {waits!r}, *pids])
"""
    assert run_until_exit(statements) == (0, "")


@pytest.mark.processes
@pytest.mark.parametrize("imports", ["import torch", "from stateful_gpu_loader import *"])
def test_a_new_interpreter_exits_quietly(imports: str, photos: Path) -> None:
    """Importing the package in another order, and doing nothing else, is safe."""
    statements = f"""
{imports}
from stateful_gpu_loader import FolderSource, StatefulGPULoader
loader = StatefulGPULoader(FolderSource({str(photos)!r}), num_workers=2, worker_type="process")
{WAYS["held by a hook that outlives most modules"]}"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", statements],
        capture_output=True,
        text=True,
        timeout=seconds(60),
        check=True,
    )
    assert done.stderr == ""


@pytest.mark.processes
def test_workers_of_a_forkserver_end_with_a_process_that_is_killed(photos: Path) -> None:
    """Their parent is the server, which lives as long as the workers do."""
    statements = f"""
import os, signal
from tests.loader.test_exits import make_on_device
loader = make_on_device(
    {str(photos)!r}, device=None, num_workers=2, worker_type="process",
    multiprocessing_context="forkserver",
)
for batch in loader:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_until_exit(statements) == (-signal.SIGKILL, "")
