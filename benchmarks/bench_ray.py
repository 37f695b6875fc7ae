"""Workers in a Ray cluster compared with worker processes, on the same cores of one machine.

The nodes of the cluster are processes of this machine. All loaders make the same batches of the
same JPEG files, with two workers. Actors run on the loader's node, like worker processes, or on
another node. From there batches come through this machine's network stack, so that its cores do the
work of both ends. A second part measures how much a trainer can receive: one thread, as in the
loader, unpacks batches of 224 x 224 that already lie in the object store. This limits how many
images a second any number of machines can send to one loader.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks import photograph_loaders as loaders
from benchmarks.arguments import parse
from benchmarks.harness import Contestant, measured, quieten_peers, seconds_a_batch
from benchmarks.markdown import Content, aims_table, as_table, comparisons_of, medians_of
from benchmarks.photograph_loaders import MEAN, SIZE, STD, Pass
from benchmarks.photographs import photograph_folder
from benchmarks.results import Aim, Measurement, compared
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
"""Resources that distinguish the loader's node from the other one."""
FIRST = "first batch"
LOST_ACTOR, LOST_NODE = "lost actor", "lost node"
BYTES = "bytes"
INTAKE = {"uint8": "copied as uint8", "float32": "normalised to float32"}
AIM = 0.9
BYTES_AIM = 0.26
"""Largest share of a float32 image's bytes that an image may take in transfer."""


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
        # If this is set, each actor compiles all modules of Ray and of this package again.
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
        """Lose the node with all workers; another one starts at once."""
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node = self._cluster.add_node(**self._given)

    def put(self, value: Any) -> Callable[[], Any]:
        """Put a value into the object store; return a function that takes it out."""
        return functools.partial(self._ray.get, self._ray.put(value))

    def end(self) -> None:
        self._ray.shutdown()
        self._cluster.shutdown()


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=7, given=given)
    quieten_peers()
    timed, num_images, batch_size = (4, 8, 4) if arguments.quick else (16, 256, 64)
    work = Pass(
        folder=photograph_folder(num_images, arguments.data),
        batch_size=batch_size,
        timed=timed,
        num_workers=1 if arguments.quick else 2,
        warm_up=8,
        spare=8,
    )
    node = _Node()
    starts = {
        TORCH: functools.partial(loaders.torch_with_torchvision, work, pin_memory=False),
        PROCESSES: functools.partial(loaders.ours, work, worker_type="process"),
        ACTORS_HERE: functools.partial(loaders.ours, work, worker_type=RayWorkers(resources=HERE)),
        ACTORS: functools.partial(loaders.ours, work, worker_type=_Counting(resources=AWAY)),
    }
    firsts: dict[str, list[float]] = {name: [] for name in starts}

    def measure(name: str, start: Callable[[], Iterator[Any]]) -> float:
        began = time.perf_counter()
        batches = start()
        next(batches)
        firsts[name].append((time.perf_counter() - began) * 1e3)
        seconds = seconds_a_batch(batches, warm_up=work.warm_up - 1, timed=timed)
        return work.batch_size / seconds

    measurements = measured(
        [
            Contestant(name, LABELS[name], functools.partial(measure, name, start))
            for name, start in starts.items()
        ],
        arguments,
        title="workers of a cluster",
        unit="images/s",
    )
    recoveries = {
        LOST_ACTOR: [_recovery(work, _kill_actors) for _ in range(arguments.rounds)],
        LOST_NODE: [_recovery(work, node.lose) for _ in range(min(3, arguments.rounds))],
    }
    intakes = {name: _intake(node, name, 4 if arguments.quick else 64) for name in INTAKE}
    node.end()
    pairs = [(one, other) for one in (ACTORS_HERE, ACTORS) for other in (PROCESSES, TORCH)]
    comparisons = compared(measurements, pairs)
    an_image = _CountingCluster.num_bytes / max(1, _CountingCluster.num_answers) / batch_size
    more = (
        (f"{FIRST} {{}}", "first batch, {}", "ms", LABELS, firsts),
        ("{}", "recovery from a {}", "s", {name: name for name in recoveries}, recoveries),
        ("intake {}", "taken in, {}", "images/s", INTAKE, intakes),
        ("{}", "{}", "bytes", {BYTES: "bytes an image"}, {BYTES: [an_image]}),
    )
    for key, label, unit, labels, found in more:
        measurements += [
            Measurement(key.format(name), label.format(labels[name]), unit, values)
            for name, values in found.items()
        ]
    arguments.report(
        "ray",
        settings={
            "num_files": len(work.folder.files),
            "mean_bytes": round(work.folder.mean_bytes),
            "batch_size": work.batch_size,
            "num_workers": work.num_workers,
            "size": SIZE,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=[
            *(
                Aim.at_least(f"{LABELS[found.of]} beside worker processes", found.ratio, AIM)
                for found in comparisons
                if found.to == PROCESSES
            ),
            Aim.at_most(
                "bytes an image over the wire", an_image, BYTES_AIM * 12 * SIZE * SIZE, "bytes"
            ),
        ],
    )


def _recovery(work: Pass, lose: Callable[[], None]) -> float:
    """Return the seconds from the loss of the only worker to the next batch of its replacement."""
    import warnings

    workers = RayWorkers(max_in_flight=1, resources=AWAY)
    batches = loaders.ours(dataclasses.replace(work, num_workers=1), worker_type=workers)
    next(batches)
    began = time.perf_counter()
    lose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(2):  # one batch may have been made before
            next(batches)
    return time.perf_counter() - began


def _kill_actors() -> None:
    for process in psutil.Process().children(recursive=True):
        if "ray::RayWorker" in " ".join(process.cmdline()):
            process.kill()


def _intake(node: _Node, name: str, num_batches: int) -> list[float]:
    """Return how many images a second one thread takes from the object store into batches."""
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


def ray_section(content: Content) -> str:
    """Return rates and first batches, bytes, recoveries, and the intake of one thread."""
    settings, medians = content["settings"], medians_of(content)
    ratios = {
        (of, found["to"]): f"{found['ratio']['median']:.2f}x"
        for of in (ACTORS_HERE, ACTORS)
        for found in comparisons_of(content, of)
    }
    rows = [
        [
            label,
            f"{medians[name]:,.0f}",
            *(ratios.get((of, name), "") for of in (ACTORS_HERE, ACTORS)),
            f"{medians[f'{FIRST} {name}']:,.0f}",
        ]
        for name, label in LABELS.items()
    ]
    on = ("actors on the same node against it", "on another node")
    head = ["", "images/s", *on, "ms to the first batch"]
    an_image = medians[BYTES]
    taken = " and ".join(
        f"{medians[f'intake {name}']:,.0f} {label}" for name, label in INTAKE.items()
    )
    return (
        f"{settings['num_workers']} workers on the cores of one machine, JPEG files of "
        f"{settings['mean_bytes'] / 1000:.0f} KB, cropped to {settings['size']}x{settings['size']} "
        f"and normalised, batches of {settings['batch_size']}.\n\n{as_table(head, rows)}\n\n"
        f"An image crosses as {an_image / 1000:,.0f} KB, {an_image / (12 * SIZE**2):.0%} "
        f"of float32. After the loss of a loader's only worker, the next batch came "
        f"{medians[LOST_ACTOR]:.1f} s after its actor was killed, and {medians[LOST_NODE]:.1f} s "
        "after its node was killed. A new Python that imports torch takes most of the first time, "
        "and Ray's timeout for heartbeats most of the second. One thread takes in "
        f"{taken} images a second, the most that any number of machines can send to one loader of "
        f"this machine.\n\n{aims_table(content)}"
    )


if __name__ == "__main__":
    main()
