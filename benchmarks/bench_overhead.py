"""Time that the loader itself adds to a batch, compared with DataLoader and StatefulDataLoader.

All get the same shuffled map-style dataset. In one case a sample costs 1 ms of computing, like real
samples. In another it costs nothing, so that only the loader is measured. None of these samples
draws, as the loader knows after the first 1,024, which it seeds and watches. In the trivial case
these samples are timed separately. Two more costs are measured alone: the seeding of the three
global generators for each sample that draws, and the digest that verifies an iterable without
state. The digest is that of images of 3 x 224 x 224, compared with batches of 1 ms a sample.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.arguments import Arguments, parse
from benchmarks.datasets import BusyNumbers, Numbers, turns_of
from benchmarks.harness import Contestant, measured, quieten_peers, seconds_a_batch
from benchmarks.markdown import Content, aims_table, as_table, medians_of, short, times_of
from benchmarks.results import Aim, compared
from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.makers.iterables import digest_with
from stateful_gpu_loader.randomness.draw_rule import EVIDENCE
from stateful_gpu_loader.randomness.global_generators import (
    caller_generators_restored,
    seed_global_generators,
)
from stateful_gpu_loader.randomness.philox import SeedBlock, Stream

BATCH_SIZE = 16
BUSY, TRIVIAL = "busy", "trivial"
SECONDS_A_SAMPLE = 1e-3
TORCH, TORCHDATA, OURS, SEEDING = "torch", "torchdata", "ours", "seeding"
FIRST = "first"
DIGEST = "digest"
LABELS = {
    TORCH: "torch DataLoader",
    TORCHDATA: "StatefulDataLoader",
    OURS: "StatefulGPULoader",
    FIRST: f"of these, the first {EVIDENCE:,} samples, seeded and watched",
    SEEDING: "seeding, for samples that draw",
    DIGEST: "of an iterable's: the digest",
}
CASES = (
    (BUSY, 0, 16),
    (BUSY, 2, 16),
    (TRIVIAL, 0, 1),
    (TRIVIAL, 0, 16),
    (TRIVIAL, 0, 256),
    (TRIVIAL, 0, 1024),
    (TRIVIAL, 2, 16),
)
AIMS = dict(zip(CASES, (1.01, 1.01, 3.0, 2.0, 1.1, 1.05, 1.0), strict=True))
"""Our time a batch, relative to torch's."""
DIGEST_AIM = 0.01

_WARM_UP, _SPARE = 4, 8
_DIGESTS_A_BATCH = 100
"""Number of digests in a measurement, because a single one is too short to be measured."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    dataset: str
    num_workers: int
    timed: int
    turns: int
    """Turns of the busy loop a sample."""
    batch_size: int = BATCH_SIZE

    @property
    def warm_up(self) -> int:
        """Number of batches before the timed ones; of trivial samples, the seeded and watched
        ones."""
        if self.dataset == BUSY:
            return _WARM_UP
        return _WARM_UP + -(-EVIDENCE // self.batch_size) * max(1, self.num_workers)

    def batches(self, loader: str) -> Iterator[Any]:
        n = self.batch_size * (self.warm_up + self.timed + _SPARE)
        dataset = BusyNumbers(n, self.turns) if self.dataset == BUSY else Numbers(n)
        kinds: dict[str, Callable[..., Any]] = {
            TORCH: DataLoader,
            TORCHDATA: StatefulDataLoader,
            OURS: functools.partial(StatefulGPULoader, seed=42),
        }
        return iter(
            kinds[loader](dataset, self.batch_size, shuffle=True, num_workers=self.num_workers)
        )

    def name(self, loader: str) -> str:
        return measurement_name(loader, self.dataset, self.num_workers, self.batch_size)

    def label(self, loader: str) -> str:
        """Return the name of a measurement for readers."""
        return f"{LABELS[loader]}, {case_label(self.dataset, self.num_workers, self.batch_size)}"


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=15, given=given)
    quieten_peers()
    settings = _settings(arguments)
    timed: list[tuple[Setting, str, Callable[[], float]]] = [
        (setting, loader, functools.partial(_microseconds_a_batch, setting, loader))
        for setting in settings
        for loader in (TORCH, TORCHDATA, OURS)
    ]
    for setting in settings:
        if setting.batch_size != BATCH_SIZE:
            continue
        if setting.dataset == TRIVIAL:
            timed.append((setting, SEEDING, functools.partial(_microseconds_of_seeding, setting)))
            if setting.num_workers == 0:
                timed.append((setting, FIRST, functools.partial(_microseconds_at_first, setting)))
        elif setting.num_workers == 0:
            timed.append((setting, DIGEST, functools.partial(_microseconds_of_digest, setting)))
    contestants = [
        Contestant(setting.name(what), setting.label(what), measure)
        for setting, what, measure in timed
    ]
    measurements = measured(contestants, arguments, title="overhead", unit="us a batch")
    digest, batch = (measurement_name(loader, BUSY, 0) for loader in (DIGEST, TORCH))
    pairs = [
        (setting.name(loader), setting.name(TORCH))
        for setting in settings
        for loader in (OURS, TORCHDATA)
    ]
    comparisons = compared(measurements, [*pairs, (digest, batch)])
    aims = {
        measurement_name(OURS, *case): (f"time of torch's DataLoader, {case_label(*case)}", aim)
        for case, aim in AIMS.items()
    }
    aims[digest] = "share of a batch of 1 ms a sample that an iterable's digest takes", DIGEST_AIM
    arguments.report(
        "overhead",
        settings={
            "batch_size": BATCH_SIZE,
            "seconds_a_sample": SECONDS_A_SAMPLE,
            "turns_a_sample": settings[0].turns,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=[
            Aim.at_most(aims[found.of][0], found.ratio, aims[found.of][1])
            for found in comparisons
            if found.of in aims
        ],
    )


def measurement_name(
    loader: str, dataset: str, num_workers: int, batch_size: int = BATCH_SIZE
) -> str:
    of_size = "" if batch_size == BATCH_SIZE else f" batch={batch_size}"
    return f"{loader} {dataset} workers={num_workers}{of_size}"


def case_label(dataset: str, num_workers: int, batch_size: int) -> str:
    """Return the displayed name of one of the :data:`CASES`."""
    cost = "1 ms a sample" if dataset == BUSY else "trivial samples"
    return f"{cost}, {batch_size:,} a batch, {num_workers} workers"


def _settings(arguments: Arguments) -> list[Setting]:
    timed = {BUSY: 2, TRIVIAL: 10} if arguments.quick else {BUSY: 100, TRIVIAL: 2000}
    turns = turns_of(SECONDS_A_SAMPLE)
    return [
        Setting(
            dataset=dataset,
            num_workers=num_workers,
            timed=timed[dataset] if batch_size <= BATCH_SIZE else timed[dataset] // 5,
            turns=turns,
            batch_size=batch_size,
        )
        for dataset, num_workers, batch_size in CASES
    ]


def _microseconds_a_batch(setting: Setting, loader: str) -> float:
    batches = setting.batches(loader)
    return seconds_a_batch(batches, warm_up=setting.warm_up, timed=setting.timed) * 1e6


def _microseconds_at_first(setting: Setting) -> float:
    batches = setting.batches(OURS)
    timed = EVIDENCE // setting.batch_size - _WARM_UP
    return seconds_a_batch(batches, warm_up=_WARM_UP, timed=timed) * 1e6


def _microseconds_of_seeding(setting: Setting) -> float:
    """Return the time of all work for the global generators, batch after batch.

    Two workers share the work of the batches.
    """
    seeds = SeedBlock(Stream.SAMPLE_GENERATORS)
    positions = np.arange(BATCH_SIZE, dtype=np.int64)
    with caller_generators_restored():
        started = time.perf_counter()
        for batch in range(setting.timed):
            restored = caller_generators_restored() if setting.num_workers == 0 else nullcontext()
            with restored:
                for seed in seeds.of(42, 0, positions + BATCH_SIZE * batch):
                    seed_global_generators(seed)
        seconds = time.perf_counter() - started
    return seconds / setting.timed / max(1, setting.num_workers) * 1e6


def _microseconds_of_digest(setting: Setting) -> float:
    """Return the time of verifying an iterable without state, batch after batch."""
    samples = [(torch.full((3, 224, 224), float(i)), i) for i in range(BATCH_SIZE)]
    digest = ""
    started = time.perf_counter()
    repeated = _DIGESTS_A_BATCH * setting.timed
    for _ in range(repeated):
        digest = digest_with(digest, samples)
    return (time.perf_counter() - started) / repeated * 1e6


def overhead_section(content: Content) -> str:
    """Return the time a batch and its ratio to torch's DataLoader, one row for each setting."""
    medians = medians_of(content)
    rows = []
    for case in CASES:
        row = [case_label(*case)]
        torchs = measurement_name(TORCH, *case)
        for loader in LABELS:
            name = measurement_name(loader, *case)
            times = times_of(content, name, torchs)
            cell = f"{short(medians[name])} us" if name in medians else ""
            row.append(f"{cell}, {times}" if times else cell)
        if any(row[1:]):
            rows.append(row)
    head = ["", *LABELS.values()]
    introduction = (
        "**Overhead**: time per batch, and its ratio to torch's DataLoader with the 95% interval. "
        "The loader adds a fixed time to each batch, whatever its size. It moves the place of the "
        "stream under a lock (5 us), so a signal handler or another thread finds the state before "
        "or after a batch, never in between. It compares the global generators before and after "
        "the batch (2 us)."
    )
    return f"{introduction}\n\n{as_table(head, rows)}\n\n{aims_table(content)}"


if __name__ == "__main__":
    main()
