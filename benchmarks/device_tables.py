"""The tables of what a device does: the decoders and execution paths of the CPU, and the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import bench_executors

Content = dict[str, Any]
"""What :func:`benchmarks.results.read_results` gives."""


def executors_section(content: Content) -> str:
    """Images a second, one row a decoder, one column a way."""
    settings = content["settings"]
    medians = {found["name"]: found["median"] for found in content["measurements"]}
    rows = [
        [
            decoder,
            *(f"{medians[bench_executors.name_of(what, decoder)]:,.0f}" for what in _WAYS),
        ]
        for decoder in settings["decoders"]
    ]
    introduction = (
        "**Decoders and execution paths on the CPU**: images per second of "
        f"{settings['mean_bytes'] / 1000:.0f} KB files, {settings['num_threads']} threads, random "
        "crop resized to 224x224, flip, normalised float32. Image by image is what worker threads "
        "do; batch by batch is the code of the device stage, as torch runs it without a GPU."
    )
    return f"{introduction}\n\n{_table(['', *bench_executors.LABELS.values()], rows)}"


def gpu_section(content: Content) -> str:
    """Every measurement on the GPU, then the aims, then what was left out."""
    settings = content["settings"]
    rows = [
        [found["label"], f"{found['median']:,.4g}", found["unit"]]
        for found in content["measurements"]
    ]
    introduction = (
        f"**On a GPU**: {settings['gpu']}, {settings['width']}x{settings['height']} JPEG files of "
        f"{settings['mean_bytes'] / 1000:.0f} KB ({settings['originals']}), random crop resized to "
        f"224x224, flip, normalised bfloat16, batches of {settings['batch_size']}, "
        f"{settings['num_workers']} workers."
    )
    aims = [
        [aim["what"], aim["aim"], aim["reached"], "yes" if aim["met"] else "**no**"]
        for aim in content["aims"]
    ]
    parts = [
        introduction,
        _table(["", "median", ""], rows),
        _table(["aim", "", "reached", "met"], aims),
    ]
    if settings["missing"]:
        parts.append(f"Left out: {', '.join(settings['missing'])}.")
    return "\n\n".join([*parts, *content["notes"]])


_WAYS = tuple(bench_executors.LABELS)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
