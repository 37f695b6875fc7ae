"""Results as JSON: raw values, versions and the machine, without any path or host name."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.markdown import short
from benchmarks.summary import Ratio, ratio, summarise

FOLDER = Path(__file__).parent / "results"
"""Folder of the committed results, from which the table is drawn."""

_PACKAGES = {
    "stateful_gpu_loader": "stateful_gpu_loader",
    "torch": "torch",
    "torchvision": "torchvision",
    "torchdata": "torchdata",
    "torchcodec": "torchcodec",
    "triton": "triton",
    "nvImageCodec": "nvidia-nvimgcodec-cu12",
    "nvImageCodec, CUDA 13": "nvidia-nvimgcodec-cu13",
    "DALI": "nvidia-dali-cuda120",
    "DALI, CUDA 13": "nvidia-dali-cuda130",
    "webdataset": "webdataset",
    "SPDL": "spdl",
    "Grain": "grain",
    "MosaicML Streaming": "mosaicml-streaming",
    "LitData": "litdata",
    "Hugging Face datasets": "datasets",
    "Ray": "ray",
    "lmdb": "lmdb",
    "pyarrow": "pyarrow",
    "fsspec": "fsspec",
    "s3fs": "s3fs",
    "moto": "moto",
    "google-crc32c": "google-crc32c",
    "NumPy": "numpy",
    "Pillow": "pillow",
}


@dataclass(frozen=True)
class Measurement:
    """Values of one contestant, one a round."""

    name: str
    label: str
    unit: str
    values: Sequence[float]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "label": self.label,
            "unit": self.unit,
            **dataclasses.asdict(summarise(self.values)),
            "values": list(self.values),
        }


@dataclass(frozen=True)
class Comparison:
    """Ratio of one contestant to another."""

    of: str
    """Name of a measurement."""
    to: str
    """Name of another measurement, the reference."""
    ratio: Ratio


def compared(
    measurements: Iterable[Measurement], pairs: Iterable[tuple[str, str]]
) -> list[Comparison]:
    """Compare each pair of names if both were measured."""
    values = {found.name: found.values for found in measurements}
    return [
        Comparison(of, to, ratio(values[of], values[to]))
        for of, to in pairs
        if of in values and to in values
    ]


def medians(measurements: Iterable[Measurement]) -> dict[str, float]:
    return {found.name: summarise(found.values).median for found in measurements}


@dataclass(frozen=True)
class Aim:
    what: str
    aim: str
    reached: str
    met: bool

    @classmethod
    def at_most(cls, what: str, reached: Ratio | float, limit: float, unit: str = "times") -> Aim:
        """Return the aim that a value, or the median of a ratio, does not exceed a limit.

        >>> Aim.at_most("a state", 2048, 1024, "bytes")
        Aim(what='a state', aim='<= 1,024 bytes', reached='2,048 bytes', met=False)
        """
        met = _value(reached) <= limit
        return cls(what, f"<= {limit:,g} {unit}", _shown(reached, unit), met)

    @classmethod
    def at_least(cls, what: str, reached: Ratio | float, limit: float) -> Aim:
        """Return the aim that the median of a ratio reaches a limit.

        >>> Aim.at_least("a rate", Ratio(2.5, 2.25, 3.0), 2)
        Aim(what='a rate', aim='>= 2 times', reached='2.50 [2.25, 3.00]', met=True)
        """
        met = _value(reached) >= limit
        return cls(what, f">= {limit:g} times", _shown(reached, "times"), met)


def aims_at_least(
    comparisons: Iterable[Comparison], limits: Mapping[tuple[str, str], tuple[str, float]]
) -> list[Aim]:
    """Return the aim of each pair of names that was compared.

    Args:
        comparisons: all comparisons.
        limits: description of the aim and smallest ratio of each pair.
    """
    ratios = {(found.of, found.to): found.ratio for found in comparisons}
    return [
        Aim.at_least(what, ratios[pair], limit)
        for pair, (what, limit) in limits.items()
        if pair in ratios
    ]


@dataclass(frozen=True, kw_only=True)
class Results:
    benchmark: str
    """Name of the JSON file, and of the module without ``bench_``."""
    rounds: int
    quick: bool
    settings: dict[str, Any]
    measurements: Sequence[Measurement]
    comparisons: Sequence[Comparison] = ()
    aims: Sequence[Aim] = ()
    notes: Sequence[str] = ()
    load_average: float | None = None
    """Runnable processes of the machine in the minute before the first round."""

    def write(self, folder: Path) -> Path:
        quick = " --quick" if self.quick else f" --rounds {self.rounds}"
        content = {
            "benchmark": self.benchmark,
            "command": f"python -m benchmarks.bench_{self.benchmark}{quick}",
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "rounds": self.rounds,
            "quick": self.quick,
            "machine": {**machine(), "load_average_before": self.load_average},
            "versions": versions(),
            "settings": self.settings,
            "measurements": [measurement.to_dict() for measurement in self.measurements],
            "comparisons": [dataclasses.asdict(comparison) for comparison in self.comparisons],
            "aims": [dataclasses.asdict(aim) for aim in self.aims],
            "notes": list(self.notes),
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.benchmark}.json"
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return path

    def write_and_tell(self, folder: Path) -> None:
        """Write, and print the medians and which aims are met."""
        path = self.write(folder)
        for measurement in self.measurements:
            median = summarise(measurement.values).median
            print(f"{measurement.label:72} {median:12.4g} {measurement.unit}")
        for found in self.comparisons:
            print(f"{found.of} / {found.to}: {found.ratio}")
        for aim in self.aims:
            print(f"{aim.what}: {aim.reached} (aim {aim.aim}){'' if aim.met else ', not met'}")
        print(f"wrote {path.name}")


def read_results(folder: Path, benchmark: str) -> dict[str, Any] | None:
    """Read back :meth:`Results.write`; None if there is no file."""
    path = folder / f"{benchmark}.json"
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def machine() -> dict[str, Any]:
    """Return the processor and its memory, without the machine's name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of every installed package that takes part."""
    found = {"Python": platform.python_version()}
    for name, package in _PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def load_average() -> float:
    """Return the number of runnable processes in the last minute: near 0 on a quiet machine."""
    return round(os.getloadavg()[0], 2)


def _value(reached: Ratio | float) -> float:
    return reached.median if isinstance(reached, Ratio) else reached


def _shown(reached: Ratio | float, unit: str) -> str:
    return str(reached) if isinstance(reached, Ratio) else f"{short(reached)} {unit}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
