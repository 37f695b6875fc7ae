"""Images a second by the size of the photographs, from thumbnails to 12 megapixels; peak memory.

Every contestant makes the same batches from the same files: a random crop resized to 224x224,
flipped with probability 1/2, normalised to float32, shuffled, with two workers. ``draft`` and
``scaled_decoding`` let libjpeg decode at a half, a quarter or an eighth of the size, which changes
the pixels slightly. The other contestants decode at full size; DALI and ``nvimgcodec`` decode only
the crop.

The clock runs in the middle of one long pass. Memory is that of another pass in a new process,
minus the memory in use before the pass. It includes the workers, with shared pages divided among
them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from PIL import Image

from benchmarks import photograph_loaders as loaders
from benchmarks.arguments import Arguments, parse
from benchmarks.harness import Contestant, measured, quieten_peers, run_apart
from benchmarks.markdown import Content, aims_table, as_table, medians_of, short
from benchmarks.memory import mebibytes_of_all_processes
from benchmarks.photograph_loaders import Pass
from benchmarks.photograph_sizes import enlarged_folder
from benchmarks.photographs import HEIGHT, WIDTH, photograph_folder
from benchmarks.results import Measurement, aims_at_least, compared, is_installed

SIZES = {"0.2": (WIDTH, HEIGHT), "0.8": (1024, 768), "3": (2048, 1536), "12": (4000, 3000)}
WORK = {"0.2": (512, 64, 24), "0.8": (64, 32, 12), "3": (24, 16, 8), "12": (16, 8, 4)}
"""Files, batch size and timed batches by megapixels."""
QUICK = {"0.2": (8, 4, 4), "3": (4, 2, 2)}

PILLOW, DRAFT, TORCHVISION, DALI = "torch_pillow", "torch_draft", "torchdata_torchvision", "dali"
WHOLE, PARTS, SCALED = "ours_whole", "ours_parts", "ours_scaled"
LABELS = {
    PILLOW: "torch DataLoader, Pillow",
    DRAFT: "torch DataLoader, Pillow with `draft`",
    TORCHVISION: "StatefulDataLoader, torchvision",
    DALI: "DALI, fused crop",
    WHOLE: "StatefulGPULoader, torchvision",
    PARTS: "StatefulGPULoader, nvimgcodec: crops alone",
    SCALED: "StatefulGPULoader, scaled_decoding",
}
PEERS = (PILLOW, DRAFT, TORCHVISION, DALI)
MEMORY = "memory"
_AIM_OF_PARTS = "0.2", DALI, 1.6
_AIMS_OF_SCALED = {"3": 2.0, "12": 3.0}
_SECONDS_BETWEEN_SAMPLES = 0.02


class ReadWithDraft:
    """Reads a photograph at the scale that Pillow's ``draft`` selects for a crop of half its sides.

    The crop is unknown before the image is read, so a smaller scale could enlarge the crop.
    """

    def __call__(self, file: str) -> Image.Image:
        with open(file, "rb") as opened:
            image = Image.open(opened)
            image.draft("RGB", (2 * loaders.SIZE, 2 * loaders.SIZE))
            return image.convert("RGB")


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=5, given=given)
    quieten_peers()
    works = {size: _work(size, arguments) for size in (QUICK if arguments.quick else WORK)}
    needed = {DALI: "nvidia.dali", PARTS: "nvidia.nvimgcodec"}
    names = [name for name in LABELS if is_installed(needed.get(name, "torch"))]
    measurements = measured(
        [
            Contestant(
                f"{name}_{size}",
                f"{LABELS[name]}, {size} megapixels",
                functools.partial(work.images_a_second, functools.partial(_start, name, work)),
            )
            for size, work in works.items()
            for name in names
        ],
        arguments,
        title="sizes",
        unit="images/s",
    )
    ours = (WHOLE, PARTS, SCALED)
    comparisons = compared(
        measurements,
        [
            (f"{one}_{size}", f"{other}_{size}")
            for size in works
            for one in ours
            for other in (*PEERS, *ours)
            if one != other
        ],
    )
    aims = [(PARTS, *_AIM_OF_PARTS)] + [
        (SCALED, size, peer, limit) for size, limit in _AIMS_OF_SCALED.items() for peer in PEERS
    ]
    memory = [
        Measurement(
            f"{MEMORY}_{name}_{size}",
            f"peak memory of {LABELS[name]}, {size} megapixels",
            "MiB",
            [run_apart(arguments.quick, peak_mebibytes, name, work)],
        )
        for size, work in works.items()
        for name in names
    ]
    arguments.report(
        "sizes",
        settings={
            size: {**work.folder.settings, "width": SIZES[size][0], "height": SIZES[size][1]}
            | {"batch_size": work.batch_size}
            for size, work in works.items()
        },
        measurements=[*measurements, *memory],
        comparisons=comparisons,
        aims=aims_at_least(
            comparisons,
            {
                (f"{name}_{size}", f"{peer}_{size}"): (
                    f"{size} megapixels: {LABELS[name]} beside {LABELS[peer]}",
                    limit,
                )
                for name, size, peer, limit in aims
            },
        ),
    )


def _work(size: str, arguments: Arguments) -> Pass:
    num_images, batch_size, timed = (QUICK if arguments.quick else WORK)[size]
    width, height = SIZES[size]
    folder = (
        photograph_folder(num_images, arguments.data)
        if (width, height) == (WIDTH, HEIGHT)
        else enlarged_folder(num_images, width, height, arguments.data)
    )
    return Pass(folder=folder, batch_size=batch_size, timed=timed)


def _start(name: str, work: Pass) -> Iterator[Any]:
    starts: dict[str, Callable[[], Iterator[Any]]] = {
        PILLOW: lambda: loaders.torch_with_pillow(work),
        DRAFT: lambda: loaders.torch_with_pillow(work, ReadWithDraft()),
        TORCHVISION: lambda: loaders.torchdata_with_torchvision(work),
        DALI: lambda: loaders.dali(work),
        WHOLE: lambda: loaders.ours(work, decoder="torchvision"),
        PARTS: lambda: loaders.ours(work, decoder="nvimgcodec"),
        SCALED: lambda: loaders.ours(work, decoder="torchvision", scaled_decoding=True),
    }
    return starts[name]()


def peak_mebibytes(name: str, work: Pass) -> float:
    """Return the peak memory of a pass, in MiB above this process's use before it."""
    ended = threading.Event()
    peak = before = mebibytes_of_all_processes()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(_SECONDS_BETWEEN_SAMPLES):
            peak = max(peak, mebibytes_of_all_processes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in _start(name, work):
            pass
    finally:
        ended.set()
        watcher.join()
    return peak - before


def sizes_section(content: Content) -> str:
    """Return images a second and memory of every contestant at every size."""
    medians, settings = medians_of(content), content["settings"]
    names = [name for name in LABELS if f"{name}_{next(iter(settings))}" in medians]

    def table(prefix: str) -> str:
        rows = [
            [
                f"**{LABELS[name]}**" if name in (WHOLE, PARTS, SCALED) else LABELS[name],
                *(short(medians[f"{prefix}{name}_{size}"]) for size in settings),
            ]
            for name in names
        ]
        return as_table(["", *(f"{size} MP" for size in settings)], rows)

    files = ", ".join(
        f"{found['width']}x{found['height']} ({found['mean_bytes'] / 1000:,.0f} KB)"
        for found in settings.values()
    )
    return (
        f"**Sizes of photographs**: images a second, two workers, by megapixels: {files}. Random "
        "crop resized to 224x224, flip, normalised float32. `draft` and `scaled_decoding` change "
        "the pixels a little ([how much](decoders.md#at-a-smaller-scale)).\n\n"
        f"{table('')}\n\nPeak memory in MiB, workers included, over what the process used before "
        f"the pass:\n\n{table(f'{MEMORY}_')}\n\n{aims_table(content)}"
    )


if __name__ == "__main__":
    main()
