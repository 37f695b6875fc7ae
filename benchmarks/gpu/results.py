"""Results of the GPU benchmark so far: written after every part, compared with the aims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.arguments import Arguments
from benchmarks.markdown import Content, aims_table, as_table
from benchmarks.photograph_loaders import Pass
from benchmarks.results import Aim, Comparison, Measurement, Results, compared
from benchmarks.summary import ratio, summarise

DECODING, OURS = "decoding", "ours"
JITTERED, WITH_STATE = "ours_jittered", "ours_with_state"
IN_PROCESSES, FEW_READERS = "ours_in_processes", "ours_few_readers"
VARIANTS = (JITTERED, WITH_STATE, IN_PROCESSES, FEW_READERS)
"""This loader with the first backend and one other change."""
DALI, TORCH, ONE_BY_ONE = "dali", "torch_cpu", "torchvision_cuda_v2"
LAUNCH, FLOOR = "launch", "launch_floor"
WAITING_HOST, WAITING_STREAM = "waiting_in_next", "waiting_on_stream"
SLOWER = "slower_than_without_loading"
STATE_SHARE = "state_dict_share"

IMAGES_A_SECOND = 12_000
SHARE_OF_CEILING = 0.90
LAUNCH_MICROSECONDS = 150
JITTER, WAITING, STATE = 0.10, 0.02, 0.01


def decoding(backend: str) -> str:
    return f"{DECODING}_{backend}"


def ours(backend: str) -> str:
    return f"{OURS}_{backend}"


@dataclass
class GpuResults:
    """Measurements by name, and everything that explains them."""

    arguments: Arguments
    work: Pass
    name: str
    backends: list[str] = field(default_factory=list)
    """Usable backends; the first is the choice of "auto"."""
    labels: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Backends and peers that could not take part, with reasons."""
    details: dict[str, Any] = field(default_factory=dict)
    """Phases, kernels, seconds of each part."""
    notes: list[str] = field(default_factory=list)

    def note(self, name: str, label: str, unit: str, values: Sequence[float]) -> None:
        self.labels[name], self.units[name], self.values[name] = label, unit, list(values)

    def best(self, of: str) -> str | None:
        """Return the backend with the most images a second; ``of`` is ``decoding`` or ``ours``."""
        found = {
            name: summarise(values).median
            for name, values in self.values.items()
            if name.startswith(f"{of}_") and name not in VARIANTS
        }
        return max(found, key=lambda name: found[name]).removeprefix(f"{of}_") if found else None

    def write(self) -> None:
        """Write the file with the results so far."""
        self._results().write(self.arguments.output)

    def lines(self) -> list[str]:
        """Return the short table: medians, then aims."""
        lines = []
        for name, values in self.values.items():
            found = summarise(values)
            quartiles = f"({found.lower_quartile:,.4g} to {found.upper_quartile:,.4g})"
            lines.append(
                f"{self.labels[name]:46} {found.median:12,.4g} {self.units[name]:10} {quartiles}"
            )
        for aim in aims_of(self):
            met = "met" if aim.met else "NOT MET"
            lines.append(f"{aim.what}: {aim.reached} (aim {aim.aim}) {met}")
        lines += [f"left out: {name}: {why}" for name, why in self.missing.items()]
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def _results(self) -> Results:
        work = self.work
        return self.arguments.make_results(
            self.name,
            settings={
                "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
                **work.folder.settings,
                "batch_size": work.batch_size,
                "num_workers": work.num_workers,
                "decoders": self.backends,
                "missing": self.missing,
                **self.details,
            },
            measurements=self._measurements(),
            comparisons=self._comparisons(),
            aims=aims_of(self),
            notes=self.notes,
        )

    def _comparisons(self) -> list[Comparison]:
        """Compare each backend with its ceiling and the peers, within the rounds."""
        pairs = [
            (name, reference)
            for name in self.values
            if name.startswith(f"{OURS}_")
            for reference in (
                decoding(name.removeprefix(f"{OURS}_")),
                DALI,
                TORCH,
                ONE_BY_ONE,
            )
        ]
        for backend in self.backends[:1]:
            pairs += [(name, ours(backend)) for name in VARIANTS]
        return compared(self._measurements(), pairs)

    def _measurements(self) -> list[Measurement]:
        return [
            Measurement(name, self.labels[name], self.units[name], found)
            for name, found in self.values.items()
            if found
        ]


def gpu_section(content: Content) -> str:
    """Return every measurement on the GPU, the aims, and the omissions."""
    settings = content["settings"]
    rows = [
        [found["label"], _shown(found["median"]), found["unit"]]
        for found in content["measurements"]
    ]
    introduction = (
        f"**On a GPU**: {settings['gpu']}, {settings['width']}x{settings['height']} JPEG files of "
        f"{settings['mean_bytes'] / 1000:.0f} KB ({settings['originals']}), random crop resized to "
        f"224x224, flip, normalised bfloat16, batches of {settings['batch_size']}, "
        f"{settings['num_workers']} workers."
    )
    parts = [
        introduction,
        as_table(["", "median", ""], rows),
        aims_table(content),
    ]
    if settings["missing"]:
        parts.append(f"Left out: {', '.join(settings['missing'])}.")
    return "\n\n".join([*parts, *content["notes"]])


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def aims_of(results: GpuResults) -> list[Aim]:
    """Return each aim with measurements."""
    values = results.values
    backend = results.best(OURS)
    aims: list[Aim] = []

    def judge(
        what: str, names: Sequence[str], reach: Callable[..., float], aim: float, unit: str
    ) -> None:
        if all(values.get(name) for name in names):
            reached = reach(*(values[name] for name in names))
            aims.append(_aim(what, reached, aim, unit))

    if backend is not None:
        mine, ceiling = ours(backend), decoding(results.best(DECODING) or backend)
        judge(f"images/s, {backend}", [mine], _median, IMAGES_A_SECOND, "at least")
        judge("share of the ceiling", [mine, ceiling], _ratio, SHARE_OF_CEILING, "at least %")
        judge("times DALI's own pipeline", [mine, DALI], _ratio, 1.0, "at least")
    if results.backends:
        plain = ours(results.backends[0])
        judge("what ColorJitter adds", [plain, JITTERED], _added, JITTER, "under %")
    judge("the fused launch, us a batch", [LAUNCH], _median, LAUNCH_MICROSECONDS, "under")
    # Time of the host in next() is no loss while the stream has work, so it is only reported.
    judge("share of a training step without data", [WAITING_STREAM], _median, WAITING, "under %")
    judge("state_dict() at every step", [STATE_SHARE], _median, STATE, "under %")
    return aims


def _aim(what: str, reached: float, aim: float, unit: str) -> Aim:
    is_share, at_least = unit.endswith("%"), unit.startswith("at least")

    def text(value: float) -> str:
        return f"{value:.2%}" if is_share else f"{value:,.4g}"

    met = reached >= aim if at_least else reached < aim
    return Aim(what, f"{'>=' if at_least else '<'} {text(aim)}", text(reached), met)


def _median(values: Sequence[float]) -> float:
    return summarise(values).median


def _ratio(values: Sequence[float], reference: Sequence[float]) -> float:
    return ratio(values, reference).median


def _added(without: Sequence[float], added: Sequence[float]) -> float:
    """Return by how much more time a batch takes, from values in images a second."""
    return ratio(without, added).median - 1
