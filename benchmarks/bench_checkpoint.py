"""Costs of a checkpoint: of many objects in a file, and of a DALI pipeline at every batch.

The file holds DALI's dynamic reader of a folder, three of DALI's RNGs and, in ours, also a
loader. DALI's own Checkpoint writes without a sync, so ours is measured with and without. The time
of a sync is that of the disk. There is no aim for either: a save is less than a millisecond slower
than DALI's, which does not matter.

The pipeline reads, decodes, crops and normalizes photographs on the CPU. Its wrapper returns its
state at every batch, and is compared with DALI's own iterator over the same pipeline without
checkpointing. Each part is a process that starts no other, because DALI starts threads.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.arguments import Arguments, parse
from benchmarks.harness import Contestant, measured, quieten_peers, run_apart
from benchmarks.markdown import Content, aims_table, as_table, medians_of, times_of
from benchmarks.photograph_loaders import SIZE, dali_pipeline
from benchmarks.photographs import PhotographFolder, photograph_folder
from benchmarks.results import Aim, Measurement, compared, is_installed
from stateful_gpu_loader import Checkpoint, StatefulGPULoader

DALI, OURS, OURS_SYNCED = "dali", "ours", "ours synced"
WITH_LOADER, WITH_LOADER_SYNCED = "ours with a loader", "ours with a loader synced"
NUM_RNGS = 3
BATCH_SIZE = 32
PLAIN, WRAPPED, ASKED = "pipeline", "wrapper", "wrapper asked"

LABELS = {
    DALI: "DALI's Checkpoint, reader and 3 RNGs",
    OURS: "Checkpoint, the same, not synced",
    OURS_SYNCED: "Checkpoint, the same",
    WITH_LOADER: "Checkpoint, and a loader, not synced",
    WITH_LOADER_SYNCED: "Checkpoint, and a loader",
    PLAIN: "DALI's iterator, no checkpointing",
    WRAPPED: "DALILoader",
    ASKED: "DALILoader, state_dict() at every batch",
}

_PATTERN = "run_{seq:06d}.json"
_NUM_CALLS = 100
_NUM_BATCHES = 24
_WARM_UP = 4


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=15, given=given)
    if not is_installed("nvidia.dali"):
        raise SystemExit(
            "this benchmark compares with DALI: pip install 'stateful_gpu_loader[dali]'"
        )
    photographs = photograph_folder(32 if arguments.quick else 512, arguments.data)
    measurements = run_apart(arguments.quick, measure_files, photographs.root, arguments)
    measurements += run_apart(arguments.quick, measure_batches, photographs, arguments)
    pairs = [(ours, DALI) for ours in (OURS, OURS_SYNCED, WITH_LOADER, WITH_LOADER_SYNCED)]
    comparisons = compared(
        measurements, [*pairs, (WRAPPED, PLAIN), (ASKED, PLAIN), (ASKED, WRAPPED)]
    )
    asked = next(each.ratio for each in comparisons if (each.of, each.to) == (ASKED, PLAIN))
    what = "state_dict() of the pipeline at every batch beside no checkpointing"
    arguments.report(
        "checkpoint",
        settings={"batch_size": BATCH_SIZE, "crop": SIZE, "saves": _NUM_CALLS, "rngs": NUM_RNGS},
        measurements=measurements,
        comparisons=comparisons,
        aims=[Aim.at_most(what, asked, 1.01)],
    )


def checkpoint_section(content: Content) -> str:
    """Return files compared with DALI's, then a pipeline's batches compared with DALI's
    iterator."""
    medians = medians_of(content)
    files = [
        [
            LABELS[name],
            f"{medians[name]:.3f}",
            f"{medians[size]:.0f}" if (size := f"{name} size") in medians else "",
            times_of(content, name, DALI),
        ]
        for name in (DALI, OURS, OURS_SYNCED, WITH_LOADER, WITH_LOADER_SYNCED)
    ]
    batches = [
        [LABELS[name], f"{medians[name]:.2f}", times_of(content, name, PLAIN)]
        for name in (PLAIN, WRAPPED, ASKED)
    ]
    introduction = (
        "**Checkpoints**: `collect()` and `save()` of a numbered file, compared with DALI's own, "
        "which writes without a sync. The former aim, a save no longer than DALI's, was dropped: "
        "the difference is under a millisecond for each checkpoint. The second table has a batch "
        f"of a DALI pipeline on the CPU, {content['settings']['batch_size']} crops of "
        f"{content['settings']['crop']} pixels."
    )
    parts = [
        introduction,
        as_table(["", "ms a save", "bytes", "times DALI's"], files),
        as_table(["", "ms a batch", "times DALI's"], batches),
    ]
    return "\n\n".join([*parts, aims_table(content)])


def measure_files(root: Path, arguments: Arguments) -> list[Measurement]:
    """Measure milliseconds of ``collect`` and ``save`` to new files, and the files' sizes."""
    import nvidia.dali.experimental.dynamic as ndd

    reader = ndd.readers.File(file_root=str(root), random_shuffle=True, seed=1)
    rngs = [ndd.random.RNG(seed=seed) for seed in range(NUM_RNGS)]
    loader: Any = StatefulGPULoader(range(10**6), 256, shuffle=True, seed=42)
    things = {"reader": reader, **{f"rng {number}": rng for number, rng in enumerate(rngs)}}
    peer = ndd.checkpoint.Checkpoint()
    small, large = Checkpoint(), Checkpoint()
    for name, thing in things.items():
        for checkpoint in (peer, small, large):
            checkpoint.register(thing, name)
    large.register(loader, "loader")
    batches, records = iter(loader), iter(reader.next_epoch(batch_size=BATCH_SIZE))
    next(batches), next(records)

    found = {
        DALI: (peer, False),
        OURS: (small, False),
        OURS_SYNCED: (small, True),
        WITH_LOADER: (large, False),
        WITH_LOADER_SYNCED: (large, True),
    }
    calls = 5 if arguments.quick else _NUM_CALLS
    contestants = [
        Contestant(
            name,
            f"{LABELS[name]}, collect() and save()",
            functools.partial(_milliseconds_a_save, checkpoint, calls, synced=synced),
        )
        for name, (checkpoint, synced) in found.items()
    ]
    measurements = measured(contestants, arguments, title="save", unit="ms")
    for name in (DALI, OURS, WITH_LOADER):
        with tempfile.TemporaryDirectory() as folder:
            size = os.path.getsize(found[name][0].save(os.path.join(folder, _PATTERN)))
        label = f"{LABELS[name].removesuffix(', not synced')}, size of the file"
        measurements.append(Measurement(f"{name} size", label, "bytes", [size]))
    return measurements


def measure_batches(folder: PhotographFolder, arguments: Arguments) -> list[Measurement]:
    """Measure milliseconds a batch of one pipeline, with DALI's iterator and ours with its
    state."""
    contestants = [
        Contestant(
            name,
            f"{LABELS[name]}, a batch",
            functools.partial(_milliseconds_a_batch, batches, asked, arguments),
        )
        for name, batches, asked in (
            (PLAIN, _dali_batches(folder), False),
            (WRAPPED, *_wrapped_batches(folder, asked=False)),
            (ASKED, *_wrapped_batches(folder, asked=True)),
        )
    ]
    return measured(contestants, arguments, title="batches", unit="ms")


def _milliseconds_a_save(checkpoint: Any, calls: int, *, synced: bool) -> float:
    """Return milliseconds a save, in a separate folder, so that each sees equally many files."""
    not_synced = mock.patch.object(os, "fsync", _stay)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint._save_seq = None  # DALI's checkpoint remembers the next number here
        pattern = os.path.join(folder, _PATTERN)
        with contextlib.nullcontext() if synced else not_synced:
            started = time.perf_counter()
            for _ in range(calls):
                checkpoint.collect()
                checkpoint.save(pattern)
            return (time.perf_counter() - started) / calls * 1e3


def _stay(descriptor: int) -> None:
    """Replace a sync; a mock object would cost as much as the rest of a save."""


def _milliseconds_a_batch(batches: Iterator[Any], state: Any, arguments: Arguments) -> float:
    timed = 2 if arguments.quick else _NUM_BATCHES
    for _ in range(_WARM_UP):
        next(batches)
    started = time.perf_counter()
    for _ in range(timed):
        next(batches)
        if state:
            state()
    return (time.perf_counter() - started) / timed * 1e3


def _dali_batches(folder: PhotographFolder) -> Iterator[Any]:
    """Return the batches of DALI's own iterator, epoch after epoch."""
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    loader = DALIGenericIterator(
        _pipeline(folder)(),
        ["images", "targets"],
        reader_name="reader",
        auto_reset=True,
        last_batch_policy=LastBatchPolicy.DROP,
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _wrapped_batches(folder: PhotographFolder, *, asked: bool) -> tuple[Iterator[Any], Any]:
    """Return the wrapper's batches, and the function to call at every batch."""
    from stateful_gpu_loader.integrations.dali import DALILoader
    from stateful_gpu_loader.samplers import LastBatchPolicy

    loader = DALILoader(
        _pipeline(folder),
        ["images", "targets"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.DROP,
    )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return batches, loader.state_dict if asked else None


def _pipeline(folder: PhotographFolder) -> Callable[..., Any]:
    files = [str(file) for file in folder.files]
    return functools.partial(dali_pipeline, files, list(folder.targets), BATCH_SIZE, 2)


if __name__ == "__main__":
    quieten_peers()
    main()
