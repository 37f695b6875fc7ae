"""This loader compared with those of other projects, in one table of all promises.

Each loader is used as its own documents recommend (:mod:`benchmarks.peers.roster`), on the same
photographs, in its own format if it needs one. All make the same: a random crop resized to
224x224, flipped with probability 1/2, normalised to float32. Every pass has its own Python process.
Whether a resumed pass delivers the rest of an uninterrupted one is measured, not taken from
documents. A loader that cannot run is listed with the reason.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.arguments import Arguments, parse
from benchmarks.harness import Contestant, alternate
from benchmarks.peers import run
from benchmarks.peers.adapter import state_of_seen
from benchmarks.peers.exactness import compare
from benchmarks.peers.process import NUMBERS, PHOTOGRAPHS, Order
from benchmarks.peers.roster import ENTRIES, OURS, Entry
from benchmarks.photographs import photograph_folder
from benchmarks.progress import progress_bar
from benchmarks.results import Measurement, compared, load_average

IMAGES, CPU, FIRST, MEMORY, STATE, RESTORE = (
    "images",
    "cpu",
    "cold first batch",
    "peak memory",
    "state",
    "restore",
)
UNITS = {
    IMAGES: "images/s",
    CPU: "CPU ms/image",
    FIRST: "s",
    MEMORY: "MiB",
    STATE: "bytes",
    RESTORE: "s",
}
_FEWER_ROUNDS = 3
"""Maximum number of rounds of resumes, whose large differences need few rounds."""
_LONGEST_WALK = 10_000_000
"""Maximum number of samples to walk through for a state that cannot be advanced."""
PLACE = 0.9
"""Delivered share of the epoch when it is resumed."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    num_files: int
    num_workers: tuple[int, ...]
    batch_size: int
    timed_batches: int
    compared: int
    """Number of samples in the compared passes."""
    compared_batch_size: int
    lengths: tuple[int, ...]
    """Numbers of samples in the epochs resumed near their end."""
    restored_batch_size: int
    checked_length: int
    """Number of samples in an epoch that is small enough to walk through."""
    limit: float
    """Maximum seconds from a loader's resume to its first batch."""
    watched_batches: int
    """Number of batches after the timed ones during which the memory is watched."""

    def warm_up(self, num_workers: int) -> int:
        """Return the number of batches before and after the timed ones: those that workers hold."""
        return 2 * num_workers

    @property
    def passed(self) -> int:
        most = self.warm_up(max(self.num_workers))
        return self.batch_size * (self.timed_batches + self.watched_batches + 2 * most)


FULL = Sizes(
    num_files=512,
    num_workers=(2, 4),
    batch_size=64,
    timed_batches=16,
    compared=384,
    compared_batch_size=16,
    lengths=(1_280_000, 100_000_000),
    restored_batch_size=250,
    checked_length=24_000,
    limit=60.0,
    watched_batches=8,
)
QUICK = Sizes(
    num_files=24,
    num_workers=(2,),
    batch_size=16,
    timed_batches=4,
    compared=96,
    compared_batch_size=8,
    lengths=(24_000,),
    restored_batch_size=250,
    checked_length=24_000,
    limit=60.0,
    watched_batches=2,
)


@dataclass
class Found:
    """Results of one loader so far."""

    entry: Entry
    reason: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts other than measurements: whether resumes were exact, and limits that were reached."""
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, value: float) -> None:
        self.values.setdefault(what, []).append(value)


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=7, given=given)
    sizes = QUICK if arguments.quick else FULL
    benchmark = PeersBenchmark(sizes, arguments)
    found = [Found(entry) for entry in ENTRIES]
    for step in (benchmark.build, benchmark.compare, benchmark.restore):
        _each(found, step)
    benchmark.time(found)
    _report(arguments, benchmark, found)


class PeersBenchmark:
    def __init__(self, sizes: Sizes, arguments: Arguments) -> None:
        self.sizes = sizes
        self.arguments = arguments
        self.folder = photograph_folder(sizes.num_files, arguments.data)
        self._files = [str(file.resolve()) for file in self.folder.files]

    def build(self, found: Found) -> None:
        """Write the samples in the loader's own format, unless this was already done."""
        if not found.entry.is_installed:
            found.reason = "not installed"
            return
        if not found.entry.has_format:
            return
        sizes = self.sizes
        lengths = {PHOTOGRAPHS: (sizes.passed, sizes.compared), NUMBERS: self._lengths}
        for kind, ns in lengths.items():
            for n in ns:
                self._build(found, kind, n)

    def _build(self, found: Found, kind: str, n: int) -> None:
        folder = self._own(found, kind, n)
        if folder.is_dir():
            return
        half_built = folder.with_name(f"{folder.name}.half-built")
        shutil.rmtree(half_built, ignore_errors=True)
        half_built.mkdir(parents=True)
        order = self._order(found, kind, n, 1, 1)
        run.carry_out(_changed(order, folder=half_built, build=True))
        half_built.rename(folder)

    def compare(self, found: Found) -> None:
        """Deliver an epoch, and its rest again in a new process from a saved state."""
        sizes = self.sizes
        behind = sizes.compared // sizes.compared_batch_size // 3
        for workers in sizes.num_workers:
            state = self._scratch(found, f"compared-{workers}.state")
            order = self._order(
                found, PHOTOGRAPHS, sizes.compared, workers, sizes.compared_batch_size
            )
            whole = run.carry_out(_changed(order, digests=True, save=str(state), save_after=behind))
            resumed = run.carry_out(_changed(order, digests=True, resume=str(state)))
            exactness = compare(whole["batches"][behind:], resumed["batches"])
            found.facts[f"resumed workers={workers}"] = exactness.to_dict()
            if found.entry.has_state:
                found.add(_name(found, STATE, workers), whole["state_bytes"])

    def restore(self, found: Found) -> None:
        """Measure the first batch of an epoch of numbers after most of it was delivered.

        Only the first number of workers is used, because it does not affect the resume time.
        """
        workers = self.sizes.num_workers[0]
        for n in self.sizes.lengths:
            self._restore(found, n, workers)
        self._check_place(found, workers)

    def _restore(self, found: Found, n: int, workers: int) -> None:
        size, name = self.sizes.restored_batch_size, _name(found, RESTORE, workers, n)
        state = self._scratch(found, f"restored-{workers}-{n}.state")
        order = self._order(found, NUMBERS, n, workers, size)
        if found.entry.has_state:
            try:
                saved = self._save_far(found, order, state)
            except (run.PassFailed, run.PassTooLong) as failure:
                found.facts[name] = f"no state: {failure}"
                return
            found.add(_name(found, STATE, workers, n), saved["state_bytes"])
        elif self._is_too_long(found, n, workers):
            found.facts[name] = f"> {self.sizes.limit:.0f} s"
            return
        else:
            state.write_bytes(state_of_seen(self._far(n, workers)))
        for _ in range(min(self.arguments.rounds, _FEWER_ROUNDS)):
            try:
                report = run.carry_out(
                    _changed(order, resume=str(state), batches=1), limit=self.sizes.limit
                )
            except run.PassTooLong:
                found.facts[name] = f"> {self.sizes.limit:.0f} s"
                break
            except run.PassFailed as failure:
                found.facts[name] = str(failure)
                break
            found.add(name, report["first_batch_seconds"])
            if report["first_batch_seconds"] > self.sizes.limit / 60:
                break

    def _is_too_long(self, found: Found, n: int, workers: int) -> bool:
        """Whether, judging by a shorter epoch, a loader without a state would exceed the limit.

        It reads everything delivered before, so its time is proportional to the epoch. It is
        skipped only if twice the limit is expected.
        """
        for shorter in self.sizes.lengths:
            name = _name(found, RESTORE, workers, shorter)
            if shorter < n and name in found.facts:
                return True
            if shorter < n and name in found.values:
                return min(found.values[name]) * n / shorter > 2 * self.sizes.limit
        return False

    def _save_far(self, found: Found, order: Order, state: Path, **fields: Any) -> dict[str, Any]:
        """Save a state at :data:`PLACE`: an early one advanced, or one reached by walking."""
        n, workers = order.work["num_samples"], order.work["num_workers"]
        far, few = self._far(n, workers), 2 * workers
        if found.entry.can_be_moved:
            fields = {"batches": few, "save_after": few, "move": far - few, **fields}
        elif n <= _LONGEST_WALK:
            fields = {"batches": far, "save_after": far, **fields}
        else:
            raise run.PassTooLong("it would have to be walked to")
        return run.carry_out(_changed(order, save=str(state), **fields))

    def _far(self, n: int, workers: int) -> int:
        """Return the number of batches before :data:`PLACE`, a multiple of the workers."""
        return int(n * PLACE) // self.sizes.restored_batch_size // workers * workers

    def _check_place(self, found: Found, workers: int) -> None:
        """Check that such a state gives the uninterrupted epoch's batch at that place."""
        n = self.sizes.checked_length
        order = self._order(found, NUMBERS, n, workers, self.sizes.restored_batch_size)
        state = self._scratch(found, "checked.state")
        far = self._far(n, workers)
        try:
            whole = self._save_far(found, order, state, batches=far + 1, digests=True)
            again = run.carry_out(_changed(order, resume=str(state), batches=1, digests=True))
            is_right: bool | str = whole["batches"][-1:] == again["batches"]
        except (run.PassFailed, run.PassTooLong) as failure:
            is_right = str(failure)
        found.facts["batch at 90% as uninterrupted"] = is_right

    def time(self, every: Sequence[Found]) -> None:
        """Measure rates, CPU time, memory and cold starts in alternating rounds."""
        for workers in self.sizes.num_workers:
            able = [found for found in every if found.reason is None]
            values = alternate(
                [
                    Contestant(
                        _name(found, IMAGES, workers),
                        f"{found.entry.label}, {workers} workers",
                        self._timing(found, workers),
                    )
                    for found in able
                ],
                rounds=self.arguments.rounds,
                title=f"peers, {workers} workers",
                warm_up_rounds=0,
            )
            for found in able:
                if found.reason is None:
                    name = _name(found, IMAGES, workers)
                    found.values[name] = values[name]

    def _timing(self, found: Found, workers: int) -> Callable[[], float]:
        sizes = self.sizes
        order = self._order(found, PHOTOGRAPHS, sizes.passed, workers, sizes.batch_size)
        timed = sizes.warm_up(workers), sizes.timed_batches

        def images_a_second() -> float:
            try:
                report = run.carry_out(
                    _changed(order, timed=timed, batches=sum(timed) + sizes.watched_batches),
                    watch_memory=True,
                )
            except (run.PassFailed, run.PassTooLong) as failure:
                found.reason = f"time: {failure}"
                return math.nan
            started = report["process_started_at"]
            found.add(_name(found, FIRST, workers), report["first_batch_at"] - started)
            found.add(_name(found, CPU, workers), report["cpu_seconds_an_image"] * 1e3)
            found.add(_name(found, MEMORY, workers), report["peak_bytes"] / 2**20)
            rate: float = report["images_a_second"]
            return rate

        return images_a_second

    def _order(self, found: Found, kind: str, n: int, workers: int, batch_size: int) -> Order:
        work = {
            "num_samples": n,
            "batch_size": batch_size,
            "num_workers": workers,
            "folder": str(self._own(found, kind, n)),
            "photographs": self._files if kind == PHOTOGRAPHS else [],
        }
        return Order(peer=found.entry.name, kind=kind, work=work, report="")

    @property
    def _lengths(self) -> tuple[int, ...]:
        return *self.sizes.lengths, self.sizes.checked_length

    def _own(self, found: Found, kind: str, n: int) -> Path:
        return self.arguments.data.resolve() / "peers" / f"{found.entry.name}-{kind}-{n}"

    def _scratch(self, found: Found, name: str) -> Path:
        folder = self.arguments.data.resolve() / "peers" / "states"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{found.entry.name}-{name}"


def _changed(order: Order, *, folder: Path | None = None, **fields: Any) -> Order:
    work = order.work if folder is None else {**order.work, "folder": str(folder)}
    return replace(order, work=work, **fields)


def _each(every: Sequence[Found], step: Callable[[Found], None]) -> None:
    """Run one step for every loader; a loader that fails gets a reason and takes no further part.

    The results so far are printed, because all steps together may take more than an hour.
    """
    with progress_bar(f"peers: {step.__name__}", len(every), unit="loader") as progress:
        for found in every:
            if found.reason is None:
                try:
                    step(found)
                except (run.PassFailed, run.PassTooLong) as failure:
                    found.reason = f"{step.__name__}: {failure}"
            progress.update()
    for found in every:
        print(f"{found.entry.label}: {found.reason or {**found.facts, **found.values}}", flush=True)


def _name(found: Found, what: str, workers: int, n: int | None = None) -> str:
    return measurement_name(found.entry.name, what, workers, n)


def measurement_name(loader: str, what: str, workers: int, n: int | None = None) -> str:
    """Return the key of a measurement.

    >>> measurement_name("ours", RESTORE, 2, 1000)
    'ours restore n=1000 workers=2'
    """
    length = "" if n is None else f" n={n}"
    return f"{loader} {what}{length} workers={workers}"


def _report(arguments: Arguments, benchmark: PeersBenchmark, every: Sequence[Found]) -> None:
    sizes = benchmark.sizes
    measurements = [
        Measurement(
            name,
            f"{found.entry.label}, {name.partition(' ')[2]}",
            next(unit for what, unit in UNITS.items() if name.split(" ", 1)[1].startswith(what)),
            values,
        )
        for found in every
        for name, values in found.values.items()
    ]
    pairs = [
        (
            measurement_name(OURS, IMAGES, workers),
            measurement_name(found.entry.name, IMAGES, workers),
        )
        for found in every
        for workers in sizes.num_workers
        if found.entry.name != OURS
    ]
    arguments.report(
        "peers",
        settings={
            "num_files": len(benchmark.folder.files),
            "mean_bytes": round(benchmark.folder.mean_bytes),
            "batch_size": sizes.batch_size,
            "num_workers": list(sizes.num_workers),
            "timed_batches": sizes.timed_batches,
            "compared_samples": sizes.compared,
            "lengths": list(sizes.lengths),
            "restored_batch_size": sizes.restored_batch_size,
            "limit_seconds": sizes.limit,
            "load_average_after": load_average(),
            "loaders": [_described(found) for found in every],
        },
        measurements=measurements,
        comparisons=compared(measurements, pairs),
    )


def _described(found: Found) -> dict[str, Any]:
    entry = found.entry
    return {
        "name": entry.name,
        "label": entry.label,
        "method": entry.method,
        "guide": entry.guide,
        "note": entry.note,
        "has_state": entry.has_state,
        "version": _version(entry.module) if entry.is_installed else None,
        "reason": found.reason,
        "facts": found.facts,
    }


def _version(module: str) -> str | None:
    """Return the version of the distribution that contains the module."""
    found = metadata.packages_distributions().get(module.partition(".")[0], [])
    names = [name for name in found if module.partition(".")[0] != "nvidia" or "dali" in name]
    return metadata.version(names[0]) if names else None


if __name__ == "__main__":
    main()
