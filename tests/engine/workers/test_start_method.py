"""Workers are not forked while DALI is live; tested in scripts, because DALI's threads stay."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers import processes, worker_start
from stateful_gpu_loader.engine.workers.processes import ProcessCluster
from stateful_gpu_loader.engine.workers.worker_main import WorkerAdapter
from stateful_gpu_loader.engine.workers.worker_start import default_context, method_of
from stateful_gpu_loader.transforms.geometry.resize import resizes_bytes
from tests.images import write_photo_folder
from tests.patience import seconds

NEEDS_DALI = pytest.mark.skipif(
    not sys.platform.startswith("linux") or "fork" not in multiprocessing.get_all_start_methods(),
    reason="needs a system that forks by default",
)

STATES = f"""
import multiprocessing, runpy
default_context = runpy.run_path({worker_start.__file__!r})["default_context"]

def report(state):
    print(state, default_context())

report("nothing")
import nvidia.dali.fn
import nvidia.dali.experimental.dynamic as ndd
report("imported")
rng = ndd.random.RNG(seed=1)
rng()
report("generator")
pipeline = nvidia.dali.Pipeline(batch_size=1, num_threads=1, device_id=None)
with pipeline:
    pipeline.set_outputs(nvidia.dali.fn.random.coin_flip())
report("pipeline")
pipeline.run()
report("run")
del pipeline
report("gone")
numbers = ndd.random.uniform(batch_size=2, range=(0, 1), rng=rng, device="cpu").evaluate()
report("dynamic")
del numbers
report("dynamic-gone")
multiprocessing.set_start_method("spawn")
report("spawn")
"""


def run(script: str, folder: Path) -> list[str]:
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=seconds(12),
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": ""},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.dali
@NEEDS_DALI
def test_only_threads_of_dali_rule_out_a_fork(tmp_path: Path) -> None:
    """The check does not fix the start method, which can still be set."""
    pytest.importorskip("nvidia.dali")
    assert run(STATES, tmp_path) == [
        "nothing None",
        "imported None",
        "generator None",
        "pipeline None",
        "run forkserver",
        "gone None",
        "dynamic forkserver",
        "dynamic-gone forkserver",
        "spawn None",
    ]


LOADERS = """
import multiprocessing, os, signal
import torch
from stateful_gpu_loader import StatefulGPULoader, start_workers
from stateful_gpu_loader.errors import LoaderError


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index * index


class Unpicklable(Squares):
    def __init__(self):
        self.function = lambda number: number


def kinds():
    return sorted({type(child).__name__ for child in multiprocessing.active_children()})


def started(dataset=None, **how):
    loader = StatefulGPULoader(dataset or Squares(), num_workers=1, **how)
    batches = iter(loader)
    print(int(next(batches)), *kinds())
    return loader, batches


def use_dali():
    import nvidia.dali.experimental.dynamic as ndd

    rng = ndd.random.RNG(seed=1)
    ndd.random.uniform(batch_size=2, range=(0, 1), rng=rng, device="cpu").evaluate()


def claim_cuda(claimed):
    torch.cuda.is_initialized = lambda: claimed


if __name__ == "__main__":
    waiting = StatefulGPULoader(Unpicklable(), num_workers=1)
    claim_cuda(True)
    try:
        start_workers(waiting)
    except LoaderError as error:
        print("refused", "multiprocessing_context" in str(error))
    claim_cuda(False)
    start_workers(waiting)
    loader, killed = started()
    use_dali()
    print("waited", *map(int, waiting))
    (worker,) = killed._workers
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    print("restarted", *map(int, killed), loader.worker_restarts)
    claim_cuda(True)
    unforked = StatefulGPULoader(Squares(), num_workers=1)
    start_workers(unforked)
    print(*kinds())
    print("not forked", *map(int, unforked))
    try:
        started(Unpicklable())
    except LoaderError as error:
        print("not picklable", "multiprocessing_context='fork'" in str(error))
    print(*map(int, started(Unpicklable(), multiprocessing_context="fork")[1]))
"""


@pytest.mark.dali
@NEEDS_DALI
def test_workers_start_as_torch_does_until_dali_is_used(tmp_path: Path) -> None:
    """start_workers refuses a fork after CUDA was used, and nothing else."""
    pytest.importorskip("nvidia.dali")
    assert run(LOADERS, tmp_path) == [
        "refused True",
        "0 ForkProcess",
        "waited 0 1 4 9",
        "restarted 1 4 9 1",
        "ForkServerProcess",
        "not forked 0 1 4 9",
        "not picklable True",
        "0 ForkProcess",
        "1 4 9",
    ]


@pytest.mark.parametrize("live", [False, True])
def test_the_users_start_method_is_used(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_start, "dali_is_live", lambda: live)
    contexts: list[Any] = ["fork", "spawn", "forkserver"]
    contexts += [multiprocessing.get_context(method) for method in contexts]
    assert [method_of(context) for context in contexts] == ["fork", "spawn", "forkserver"] * 2


@pytest.mark.parametrize("default", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("live", [False, True])
def test_only_a_fork_is_avoided(live: bool, default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_start, "dali_is_live", lambda: live)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: None)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [default, "other"])
    assert default_context() == ("forkserver" if live and default == "fork" else None)
    assert method_of(None) == ("forkserver" if live and default == "fork" else default)


def test_an_avoided_fork_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers lack everything that the main script has set since."""
    monkeypatch.setattr(processes, "default_context", lambda: "forkserver")
    arguments: Any = {"num_workers": 1, "threads": 1, "base_seed": 0, "tally": Tally()}
    with pytest.warns(RuntimeWarning, match="main script"):
        ProcessCluster(WorkerAdapter(None, (), None), multiprocessing_context=None, **arguments)
    ProcessCluster(WorkerAdapter(None, (), None), multiprocessing_context="spawn", **arguments)


SPAWNED = """
import dataclasses, sys
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T

class PrintsImports(FolderSource):
    def read(self, index):
        found = int("torchvision" in sys.modules)
        return dataclasses.replace(super().read(index), target=found)

if __name__ == "__main__":
    loader = StatefulGPULoader(
        PrintsImports("photos"),
        batch_size=2,
        transform=[T.RandomResizedCrop(24), T.Normalize([0.5] * 3, [0.25] * 3)],
        decoder=DECODER,
        num_workers=1,
        worker_type="process",
        multiprocessing_context="spawn",
    )
    found = [each for _, targets in loader for each in targets.tolist()]
    print(found[0], found[-1])
"""


@pytest.mark.processes
@pytest.mark.parametrize("decoder", ["nvimgcodec", "torchcodec"])
def test_a_worker_that_is_spawned_begins_without_torchvision(tmp_path: Path, decoder: str) -> None:
    """Importing torchvision takes as long as importing torch, and only shows how it resizes."""
    pytest.importorskip({"nvimgcodec": "nvidia.nvimgcodec"}.get(decoder, decoder))
    write_photo_folder(tmp_path / "photos", num_classes=1, per_class=4)
    script = SPAWNED.replace('"photos"', repr(str(tmp_path / "photos")))
    script = script.replace("DECODER", repr(decoder))
    assert run(script, tmp_path) == [f"0 {int(not resizes_bytes())}"]
