"""The table of prepared images."""

from __future__ import annotations

from benchmarks import bench_prepared
from benchmarks.markdown import Content, aims_table, as_table, medians_of


def prepared_section(content: Content) -> str:
    """Rate, CPU time and bytes read, with and without."""
    settings, medians = content["settings"], medians_of(content)
    rows = []
    for name, label in bench_prepared.LABELS.items():
        cpu, read = (
            medians[f"{what} {name}"] for what in (bench_prepared.CPU, bench_prepared.READ)
        )
        rows.append([label, f"{medians[name]:,.0f}", f"{cpu:.2f}", f"{read:,.0f}"])
    introduction = (
        f"**Prepared images**: {settings['width']}x{settings['height']} JPEG files of "
        f"{settings['mean_bytes'] / 1000:.0f} KB on average, resized to {settings['resized']} "
        "pixels, then a random crop of it resized to 224x224, flip, normalised float32, batches of "
        f"{settings['batch_size']}, {settings['num_workers']} workers. The CPU time is that of all "
        "processes; all bytes come from the system's cache."
    )
    head = ["", "images/s", "CPU ms an image", "KB read an image"]
    return f"{introduction}\n\n{as_table(head, rows)}\n\n{aims_table(content)}"
