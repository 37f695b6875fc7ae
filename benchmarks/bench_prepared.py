"""Images a second of prepared images: in the filling epoch, and in later epochs.

Every contestant makes the same batches from the same files: the image resized to 256 pixels, a
random crop resized to 224x224, flipped with probability 1/2, normalised to float32, and shuffled.
Batches have 64 images, and there are two workers. The clock runs in the middle of a pass, as in the
throughput benchmark. CPU time and bytes read are those of whole passes, including workers. All
files lie in the system's cache.

Files written in a pass are removed after it, so that the next pass writes to memory that the system
already has. A virtual machine's first use of a page of memory costs ten times the writing, and the
first pass would pay for it. One more contestant only writes the same bytes, which is the minimum
cost of filling.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torchvision.transforms import v2

from benchmarks.arguments import parse
from benchmarks.harness import Contestant, measured, quieten_peers, seconds_a_batch
from benchmarks.markdown import Content, aims_table, as_table, medians_of
from benchmarks.photograph_loaders import Pass, ours_of, source_of, torch_with_pillow, usual_pass
from benchmarks.results import Measurement, aims_at_least, compared
from stateful_gpu_loader import PreparedSource
from stateful_gpu_loader import transforms as T

RESIZED = 256
PILLOW, EACH_TIME, FIRST, LATER = "torch_pillow", "each_time", "first_epoch", "later_epochs"
WRITING = "writing_alone"
LABELS = {
    PILLOW: "torch DataLoader, Pillow and v2",
    EACH_TIME: "StatefulGPULoader, decoding each time",
    FIRST: "PreparedSource, the epoch that fills it",
    WRITING: "the bytes of that epoch, written and nothing else",
    LATER: "PreparedSource, all epochs after it",
}
CPU, READ = "cpu", "read"
_UNITS = {CPU: "CPU ms an image", READ: "KB read an image"}

_FFCV = 31_278, 172_801
_LITDATA = 5_839, 6_692
"""Images a second, as published by the projects; read in November 2026."""
_PUBLISHED = """\
FFCV and LitData publish their own ratios. These come from other machines, images and networks, \
and are not directly comparable. \
[FFCV](https://docs.ffcv.io/benchmarks.html): ImageNet in the memory of an AWS p3dn.24xlarge (96 \
virtual cores), all cores, random crop resized to 224x224 and flip; raw pixels of images of 256 \
pixels beside JPEG files of 512. [LitData](https://github.com/Lightning-AI/litdata#benchmarks): \
ImageNet streamed from S3, on an unnamed machine; each epoch decodes. The table of peers has \
LitData on this page's machine. FFCV is missing there: it is built from source, against headers of \
OpenCV, which pip does not install."""


class _Passes:
    """Starts passes, and records the costs of each whole pass."""

    def __init__(self, work: Pass, folder: Path) -> None:
        self._work = work
        self._folder = folder
        self.costs: dict[tuple[str, str], list[float]] = {
            (name, what): [] for name in LABELS for what in _UNITS
        }

    def torch(self) -> Iterator[Any]:
        """Start a pass in which processes decode and resize with Pillow."""
        return torch_with_pillow(self._work, head=[v2.Resize(RESIZED)])

    def each_time(self) -> Iterator[Any]:
        return ours_of(source_of(self._work), self._work, head=[T.Resize(RESIZED)])

    def first(self) -> Iterator[Any]:
        return ours_of(self._prepared("new"), self._work)

    def later(self) -> Iterator[Any]:
        """Start a pass of ours over a directory that is full from the second pass on."""
        return ours_of(self._prepared("full"), self._work)

    def writing(self) -> Iterator[None]:
        """Write the bytes of the filling epoch, one image at a time, in one thread."""
        data = self._prepared("full").read(0).data.numpy().data
        (self._folder / "new").mkdir()
        with open(self._folder / "new" / "pixels", "wb") as file:
            for batch in range(self._work.num_batches):
                for image in range(self._work.batch_size):
                    place = (batch * self._work.batch_size + image) * len(data)
                    os.pwrite(file.fileno(), data, place)
                yield

    def measure(self, name: str, start: Callable[[], Iterator[Any]]) -> float:
        """Return images a second in the middle of a pass, which runs to its end."""
        work = self._work
        cpu, read = _cpu_seconds(), _bytes_read()
        batches = start()
        seconds = seconds_a_batch(batches, warm_up=work.warm_up, timed=work.timed)
        for _ in batches:
            pass
        del batches
        num_images = work.num_batches * work.batch_size
        self.costs[name, CPU].append((_cpu_seconds() - cpu) / num_images * 1e3)
        self.costs[name, READ].append((_bytes_read() - read) / num_images / 1e3)
        shutil.rmtree(self._folder / "new", ignore_errors=True)
        return work.batch_size / seconds

    def _prepared(self, name: str) -> PreparedSource:
        return PreparedSource(source_of(self._work), self._folder / name, [T.Resize(RESIZED)])


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=7, given=given)
    quieten_peers()
    work = usual_pass(arguments)
    with tempfile.TemporaryDirectory() as folder:
        passes = _Passes(work, Path(folder))
        starts = {
            PILLOW: passes.torch,
            EACH_TIME: passes.each_time,
            FIRST: passes.first,
            WRITING: passes.writing,
            LATER: passes.later,
        }
        for _ in passes.later():
            pass
        measurements = measured(
            [
                Contestant(name, LABELS[name], functools.partial(passes.measure, name, start))
                for name, start in starts.items()
            ],
            arguments,
            title="prepared images",
            unit="images/s",
        )
    aims = {(LATER, FIRST): 3.0, (LATER, PILLOW): 4.0, (FIRST, EACH_TIME): 0.95}
    comparisons = compared(measurements, [*aims, (LATER, EACH_TIME)])
    measurements += [
        Measurement(f"{what} {name}", LABELS[name], _UNITS[what], values)
        for (name, what), values in passes.costs.items()
    ]
    arguments.report(
        "prepared",
        settings={
            **work.folder.settings,
            "resized": RESIZED,
            "batch_size": work.batch_size,
            "num_workers": work.num_workers,
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=aims_at_least(
            comparisons,
            {pair: (" beside ".join(LABELS[name] for name in pair), aims[pair]) for pair in aims},
        ),
    )


def prepared_section(content: Content) -> str:
    """Return rate, CPU time and bytes read, with and without, and figures that others publish."""
    settings, medians = content["settings"], medians_of(content)
    rows = []
    for name, label in LABELS.items():
        if name in medians:
            cpu, read = (medians[f"{what} {name}"] for what in (CPU, READ))
            rows.append([label, f"{medians[name]:,.0f}", f"{cpu:.2f}", f"{read:,.0f}"])
    introduction = (
        f"**Prepared images**: {settings['width']}x{settings['height']} JPEG files of "
        f"{settings['mean_bytes'] / 1000:.0f} KB on average, resized to {settings['resized']} "
        "pixels, then a random crop resized to 224x224, flip, normalised float32, batches of "
        f"{settings['batch_size']}, {settings['num_workers']} workers. The CPU time includes all "
        "processes. All bytes come from the system's cache."
    )
    head = ["", "images/s", "CPU ms an image", "KB read an image"]
    parts = [introduction, as_table(head, rows)]
    if WRITING in medians:
        more = medians[f"{CPU} {FIRST}"] - medians[f"{CPU} {EACH_TIME}"]
        parts.append(
            f"The epoch that fills the directory takes {more:.2f} ms of CPU per image more than an "
            "epoch that decodes each time. Writing its bytes alone takes "
            f"{medians[f'{CPU} {WRITING}']:.2f} ms: the system copies them into its cache of the "
            "disk. If the disk is slower than the epoch, the epoch waits as soon as that cache is "
            "full."
        )
    own = medians[EACH_TIME], medians[LATER]
    beside = [
        [label, f"{slow:,.0f}", f"{fast:,.0f}", f"{fast / slow:.1f}x"]
        for label, (slow, fast) in (
            ("PreparedSource, all epochs after the first, beside decoding each time", own),
            ("FFCV, raw pixels beside JPEG files, both in memory (published)", _FFCV),
            ("LitData, the second epoch beside the first (published)", _LITDATA),
        )
    ]
    parts += [
        as_table(["", "images/s without", "images/s with", "ratio"], beside),
        _PUBLISHED,
        aims_table(content),
    ]
    return "\n\n".join(parts)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended workers."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime


def _bytes_read() -> int:
    """Return the bytes that this process and its ended workers have read, cached or not."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


if __name__ == "__main__":
    main()
