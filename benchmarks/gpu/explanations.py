"""Parts of the GPU benchmark: the launch, the readers, the phases, the state, a training step."""

from __future__ import annotations

import dataclasses
import statistics
import time

import torch

from benchmarks.gpu import loaders
from benchmarks.gpu import results as names
from benchmarks.gpu.decoding import DecodingAlone, read_batches
from benchmarks.gpu.launch import (
    Augmenting,
    by_block,
    bytes_a_second,
    device_microseconds,
    host_microseconds,
    kernels_of,
)
from benchmarks.gpu.phases import a_batch, phases_timed
from benchmarks.gpu.reading_alone import ReadingAlone
from benchmarks.gpu.results import GpuResults
from benchmarks.gpu.throughput import TIMED_BATCHES, WARM_UP_BATCHES
from benchmarks.gpu.training import Training, the_same_batch
from benchmarks.photograph_loaders import Pass
from stateful_gpu_loader.transforms import Compose

_REPEATS = 60
_READERS = (1, 4, 16)
_TRAINING_ROUNDS, _STEPS = 3, 20


def measure_launch(work: Pass, results: GpuResults) -> None:
    """Measure the fused launch on device and host, and its memory traffic as the lower limit."""
    decode = DecodingAlone(
        results.backends[0], read_batches(work.files[: 4 * work.batch_size], work.batch_size)
    )
    decoded = [decode.decode(number) for number in range(4)]
    torch.cuda.synchronize()
    bandwidth = bytes_a_second()
    for name, label, recipes in (
        (names.LAUNCH, "the fused launch", loaders.RECIPES),
        ("launch_jittered", "the same with ColorJitter", loaders.JITTERED),
    ):
        augmenting = Augmenting(Compose(recipes), decoded)
        repeats = 3 if results.arguments.quick else _REPEATS
        on_device = device_microseconds(augmenting, repeats=repeats)
        results.note(name, label, "us", on_device)
        on_host = host_microseconds(augmenting, repeats=repeats)
        results.note(f"{name}_host", f"{label}, host", "us", on_host)
        results.details[f"kernels of {name}"] = kernels_of(augmenting, repeats=8)
        if name == names.LAUNCH:
            floor = 1e6 * augmenting.least_bytes() / bandwidth
            results.note(names.FLOOR, "its memory traffic alone", "us", [floor])
            results.details["launch by block"] = {
                f"{rows} x {columns}": statistics.median(found)
                for (rows, columns), found in by_block(augmenting, repeats=repeats).items()
            }
    results.details["bytes_a_second"] = round(bandwidth)


def measure_decoding_by_size(work: Pass, results: GpuResults) -> None:
    """Measure whether a backend decodes larger batches faster than the loader's batches."""
    for backend in results.backends:
        found = {}
        for size in (work.batch_size // 4, work.batch_size, 4 * work.batch_size):
            alone = DecodingAlone(backend, read_batches(work.files[: 4 * work.batch_size], size))
            timed = max(2, 16 * work.batch_size // size)
            found[size] = round(alone.images_a_second(warm_up=2, timed=timed))
        results.details.setdefault("decoding by batch size", {})[backend] = found


def measure_reading(work: Pass, results: GpuResults) -> None:
    """Measure the readers alone; Python's lock limits the rate of sixteen readers."""
    reading = ReadingAlone(work.folder, Compose(loaders.RECIPES), work.batch_size)
    num_batches = 4 if results.arguments.quick else 32
    reading.images_a_second(num_threads=1, num_batches=4)
    for num_threads in _READERS:
        values = [
            reading.images_a_second(num_threads=num_threads, num_batches=num_batches)
            for _ in range(3)
        ]
        results.note(
            f"reading_{num_threads}", f"reading alone, {num_threads} threads", "images/s", values
        )
    values = [reading.cpu_microseconds_an_image(num_batches=4) for _ in range(3)]
    results.note("reading_cpu", "reading, one core an image", "us", values)


def measure_phases(work: Pass, results: GpuResults) -> None:
    """Measure the phases of a pass for each backend, and the cost of taking the state."""
    shares = []
    for backend in results.backends:
        loader = loaders.ours(work, decoder=backend)
        batches = iter(loader)
        for _ in range(WARM_UP_BATCHES):
            next(batches)
        torch.cuda.synchronize()
        in_state = 0.0
        with phases_timed() as spent:
            started = time.perf_counter()
            for _ in range(TIMED_BATCHES):
                next(batches)
                asked = time.perf_counter()
                loader.state_dict()
                in_state += time.perf_counter() - asked
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
        del batches, loader
        shares.append(in_state / seconds)
        results.details.setdefault("phases", {})[backend] = {
            "milliseconds a batch": 1000 * seconds / TIMED_BATCHES,
            **a_batch(spent, TIMED_BATCHES),
        }
    results.note(names.STATE_SHARE, "state_dict() at every step", "of 1", shares)


def measure_training(work: Pass, results: GpuResults) -> None:
    """Measure a ResNet-50 step's waiting time, and its slowdown compared with no loader.

    The stream waits if the batch comes after the previous step's end. The GPU time that decoding
    and augmenting take during the step shows only in the last figure.
    """
    training = Training()
    steps = 4 if results.arguments.quick else _STEPS
    host, stream, slower, images = [], [], [], []
    short = dataclasses.replace(work, timed=steps)
    training.measure(the_same_batch(work.batch_size), warm_up=5, timed=2)
    for _ in range(_TRAINING_ROUNDS):
        alone = training.measure(the_same_batch(work.batch_size), warm_up=2, timed=steps)
        batches = iter(loaders.ours(short, decoder=results.backends[0]))
        fed = training.measure(batches, warm_up=WARM_UP_BATCHES, timed=steps)
        del batches
        host.append(fed.host / fed.step)
        stream.append(fed.stream / fed.step)
        slower.append(fed.step / alone.step - 1)
        images.append(work.batch_size / fed.step)
    results.note(names.WAITING_HOST, "of a training step in next()", "of 1", host)
    results.note(names.WAITING_STREAM, "of a training step without data", "of 1", stream)
    results.note(names.SLOWER, "a step beside one without loading", "of 1", slower)
    results.note("training", "ResNet-50 training", "images/s", images)
    results.details["median step, ms"] = 1000 * work.batch_size / statistics.median(images)
