"""The table of prepared images."""

from __future__ import annotations

from benchmarks import bench_prepared
from benchmarks.bench_prepared import CPU, EACH_TIME, FIRST, LATER, READ, WRITING
from benchmarks.markdown import Content, aims_table, as_table, medians_of

_FFCV = 31_278, 172_801
_LITDATA = 5_839, 6_692
"""Images a second, as the projects themselves publish them; read in November 2026."""
_PUBLISHED = """\
The ratios of FFCV and LitData are published by those projects. They were measured there, on other \
machines, images and networks, and are not comparable one to one. \
[FFCV](https://docs.ffcv.io/benchmarks.html): ImageNet in the memory of an AWS p3dn.24xlarge (96 \
virtual cores), all cores, random crop resized to 224x224 and flip; raw pixels of images of 256 \
pixels beside JPEG files of 512. [LitData](https://github.com/Lightning-AI/litdata#benchmarks): \
ImageNet streamed from S3, on a machine that is not named; each epoch decodes. On the machine of \
this page, LitData is in the table of peers. FFCV is not: it is built from source, against headers \
of OpenCV, which pip does not bring."""


def prepared_section(content: Content) -> str:
    """Rate, CPU time and bytes read, with and without; what others publish."""
    settings, medians = content["settings"], medians_of(content)
    rows = []
    for name, label in bench_prepared.LABELS.items():
        if name in medians:
            cpu, read = (medians[f"{what} {name}"] for what in (CPU, READ))
            rows.append([label, f"{medians[name]:,.0f}", f"{cpu:.2f}", f"{read:,.0f}"])
    introduction = (
        f"**Prepared images**: {settings['width']}x{settings['height']} JPEG files of "
        f"{settings['mean_bytes'] / 1000:.0f} KB on average, resized to {settings['resized']} "
        "pixels, then a random crop of it resized to 224x224, flip, normalised float32, batches of "
        f"{settings['batch_size']}, {settings['num_workers']} workers. The CPU time is that of all "
        "processes; all bytes come from the system's cache."
    )
    head = ["", "images/s", "CPU ms an image", "KB read an image"]
    parts = [introduction, as_table(head, rows)]
    if WRITING in medians:
        more = medians[f"{CPU} {FIRST}"] - medians[f"{CPU} {EACH_TIME}"]
        parts.append(
            f"The epoch that fills the directory takes {more:.2f} ms of CPU an image more than one "
            f"that decodes each time. Writing its bytes and nothing else takes "
            f"{medians[f'{CPU} {WRITING}']:.2f} ms: the system copies them into its cache of the "
            "disk. Where the disk takes them more slowly than they come, the epoch waits for it as "
            "soon as that cache is full."
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
