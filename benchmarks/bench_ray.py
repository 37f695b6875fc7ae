"""Workers in a Ray cluster beside worker processes, on the same cores of one machine.

The nodes of the cluster are processes of this machine. All loaders make the same batches of the
same JPEG files, with two workers. Actors are on the node of the loader, as worker processes are, or
on another one, from which the batches come through the network stack of this machine: its cores
then do the work of both ends. Then, what a trainer can take in: batches of 224 x 224 that lie
in the object store already are unpacked by one thread, as the loader's own does, so this bounds how
many images a second any number of machines can send to one loader.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks import photograph_loaders as loaders
from benchmarks.arguments import Arguments, parse
from benchmarks.harness import Contestant, alternate, quieten_peers, seconds_a_batch
from benchmarks.photograph_loaders import MEAN, SIZE, STD, Pass
from benchmarks.photographs import photograph_folder
from benchmarks.results import Aim, Comparison, Measurement, Results, load_average
from benchmarks.summary import ratio
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.engine.makers.last_recipes import LastRecipes
from stateful_gpu_loader.engine.makers.memory import BatchMemory
from stateful_gpu_loader.engine.workers.cluster import Answered, Event
from stateful_gpu_loader.engine.workers.packing import pack_by_value, unpack_by_value
from stateful_gpu_loader.engine.workers.worker_main import WorkerAdapter
from stateful_gpu_loader.integrations.ray import RayCluster, RayWorkers

TORCH, PROCESSES, ACTORS_HERE, ACTORS = "torch", "processes", "actors here", "actors"
LABELS = {
    TORCH: "torch DataLoader, torchvision and v2",
    PROCESSES: "StatefulGPULoader, worker processes",
    ACTORS_HERE: "StatefulGPULoader, Ray actors on the same node",
    ACTORS: "StatefulGPULoader, Ray actors on another node",
}
HERE, AWAY = {"here": 1}, {"away": 1}
"""Resources that tell the node of the loader from the other one."""
FIRST = "first batch"
LOST_ACTOR, LOST_NODE = "lost actor", "lost node"
BYTES = "bytes"
INTAKE = {"uint8": "copied as uint8", "float32": "normalised to float32"}
AIM = 0.9
_WARM_UP, _SPARE = 8, 8


class _Counting(RayWorkers):
    """Counts the bytes that arrive."""

    def connect(self, adapter: WorkerAdapter, *, num_workers: int, base_seed: int) -> RayCluster:
        return _CountingCluster(self, adapter, num_workers=num_workers, base_seed=base_seed)


class _CountingCluster(RayCluster):
    num_bytes = num_answers = 0

    def receive(self) -> Event | None:
        event = super().receive()
        if isinstance(event, Answered):
            packed = event.answer
            images = 0 if packed.images is None else packed.images.nbytes
            large = sum(part.nbytes for part in packed.large)
            _CountingCluster.num_bytes += len(packed.content) + images + large
            _CountingCluster.num_answers += 1
        return event


class _Node:
    """A cluster on this machine: the loader's own node, and another one that can be lost."""

    def __init__(self) -> None:
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)
        # Where it is set, each actor would compile all modules of Ray's and of ours again.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        import ray
        from ray.cluster_utils import Cluster

        self._ray = ray
        self._given = {"num_cpus": 2, "object_store_memory": 400 << 20, "resources": {"away": 2}}
        head = {**self._given, "resources": {"here": 2}, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._node = self._cluster.add_node(**self._given)
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")

    def lose(self) -> None:
        """Lose the node with all workers; another one comes at once."""
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node = self._cluster.add_node(**self._given)

    def put(self, value: Any) -> Callable[[], Any]:
        """Put a value into the object store; return what takes it out."""
        return functools.partial(self._ray.get, self._ray.put(value))

    def end(self) -> None:
        self._ray.shutdown()
        self._cluster.shutdown()


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``ray.json``."""
    arguments = parse(__doc__, rounds=7, given=given)
    before = load_average()
    quieten_peers()
    timed, num_images, batch_size = (4, 8, 4) if arguments.quick else (16, 256, 64)
    work = Pass(
        folder=photograph_folder(num_images, arguments.data),
        batch_size=batch_size,
        num_batches=_WARM_UP + timed + _SPARE,
        num_workers=2,
    )
    node = _Node()
    starts = {
        TORCH: functools.partial(loaders.torch_with_torchvision, work, pin_memory=False),
        PROCESSES: functools.partial(_ours, work, worker_type="process"),
        ACTORS_HERE: functools.partial(_ours, work, worker_type=RayWorkers(resources=HERE)),
        ACTORS: functools.partial(_ours, work, worker_type=_Counting(resources=AWAY)),
    }
    firsts: dict[str, list[float]] = {name: [] for name in starts}

    def measure(name: str, start: Callable[[], Iterator[Any]]) -> float:
        began = time.perf_counter()
        batches = start()
        next(batches)
        firsts[name].append((time.perf_counter() - began) * 1e3)
        seconds = seconds_a_batch(batches, warm_up=_WARM_UP - 1, timed=timed)
        return work.batch_size / seconds

    rates = alternate(
        [
            Contestant(
                name=name, label=LABELS[name], measure=functools.partial(measure, name, start)
            )
            for name, start in starts.items()
        ],
        rounds=arguments.rounds,
        title="workers of a cluster",
        warm_up_rounds=arguments.warm_up_rounds,
    )
    recoveries = {
        LOST_ACTOR: [_recovery(work, _kill_actors) for _ in range(arguments.rounds)],
        LOST_NODE: [_recovery(work, node.lose) for _ in range(min(3, arguments.rounds))],
    }
    intakes = {name: _intake(node, name, 4 if arguments.quick else 64) for name in INTAKE}
    node.end()
    results = _results(arguments, work, before, rates, firsts, recoveries, intakes)
    results.write_and_tell(arguments.output)


def _ours(work: Pass, **given: Any) -> Iterator[Any]:
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        FolderSource.from_paths(work.files, work.targets, work.folder.root),
        batch_size=work.batch_size,
        shuffle=True,
        num_workers=given.pop("num_workers", work.num_workers),
        seed=42,
        transform=[T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)],
        **given,
    )
    return iter(loader)


def _recovery(work: Pass, lose: Callable[[], None]) -> float:
    """Seconds until the next batch comes of a worker that has taken the place of the only one."""
    import warnings

    batches = _ours(work, num_workers=1, worker_type=RayWorkers(max_in_flight=1, resources=AWAY))
    next(batches)
    began = time.perf_counter()
    lose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(2):  # one may have been made before
            next(batches)
    return time.perf_counter() - began


def _kill_actors() -> None:
    for process in psutil.Process().children(recursive=True):
        if "ray::RayWorker" in " ".join(process.cmdline()):
            process.kill()


def _intake(node: _Node, name: str, num_batches: int) -> list[float]:
    """Images a second that one thread takes out of the object store, into batches."""
    images = torch.randint(0, 256, (64, 3, SIZE, SIZE), dtype=torch.uint8)
    take = node.put(pack_by_value([images, torch.arange(64)], images_apart=True))
    memory = BatchMemory(keep=2)
    last = LastRecipes(T.Compose([T.Normalize(MEAN, STD)]), torch.contiguous_format)
    finish = last.on_host if name == "float32" else None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(num_batches):
            unpack_by_value(take(), allocate=memory.empty, finish=finish)
        found.append(64 * num_batches / (time.perf_counter() - began))
    torch.set_num_threads(threads)
    return found


def _results(
    arguments: Arguments,
    work: Pass,
    before: float,
    rates: dict[str, list[float]],
    firsts: dict[str, list[float]],
    recoveries: dict[str, list[float]],
    intakes: dict[str, list[float]],
) -> Results:
    measurements = [
        Measurement(name=name, label=LABELS[name], unit="images/s", values=found)
        for name, found in rates.items()
    ]
    measurements += [
        Measurement(
            name=f"{FIRST} {name}", label=f"first batch, {LABELS[name]}", unit="ms", values=found
        )
        for name, found in firsts.items()
    ]
    measurements += [
        Measurement(name=name, label=f"recovery from a {name}", unit="s", values=found)
        for name, found in recoveries.items()
    ]
    measurements += [
        Measurement(
            name=f"intake {name}", label=f"taken in, {INTAKE[name]}", unit="images/s", values=found
        )
        for name, found in intakes.items()
    ]
    counted = _CountingCluster
    an_image = counted.num_bytes / max(1, counted.num_answers) / work.batch_size
    measurements.append(
        Measurement(name=BYTES, label="bytes an image", unit="bytes", values=[an_image])
    )
    pairs = [(one, other) for one in (ACTORS_HERE, ACTORS) for other in (PROCESSES, TORCH)]
    ratios = {pair: ratio(rates[pair[0]], rates[pair[1]]) for pair in pairs}
    return Results(
        benchmark="ray",
        rounds=arguments.rounds,
        quick=arguments.quick,
        settings={
            "num_files": len(work.folder.files),
            "mean_bytes": round(work.folder.mean_bytes),
            "batch_size": work.batch_size,
            "num_workers": work.num_workers,
            "size": SIZE,
        },
        measurements=measurements,
        comparisons=[
            Comparison(of=one, to=other, ratio=found) for (one, other), found in ratios.items()
        ],
        aims=[
            *(
                Aim(
                    what=f"{where} beside worker processes",
                    aim=f">= {AIM} times",
                    reached=f"{beside.median:.2f} [{beside.low:.2f}, {beside.high:.2f}]",
                    met=beside.median >= AIM,
                )
                for where, beside in (
                    ("actors on the same node", ratios[ACTORS_HERE, PROCESSES]),
                    ("actors on another node", ratios[ACTORS, PROCESSES]),
                )
            ),
            Aim(
                what="bytes an image over the wire, beside float32",
                aim="<= 0.26",
                reached=f"{an_image / (12 * SIZE * SIZE):.3f}",
                met=an_image <= 0.26 * 12 * SIZE * SIZE,
            ),
        ],
        load_average=before,
    )


if __name__ == "__main__":
    main()
