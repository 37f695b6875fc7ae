"""The table of cold starts over a million files."""

from __future__ import annotations

from benchmarks import bench_cold
from benchmarks.markdown import Content, aims_table, as_table, cell, medians_of, short


def cold_section(content: Content) -> str:
    """Time and memory of every start, and what is left of them without the imports."""
    settings, found = content["settings"], medians_of(content)
    rows = []
    for name, label in bench_cold.LABELS.items():
        names = {what: bench_cold.measurement_name(what, name) for what in bench_cold.UNITS}
        row = [label, f"{short(found[names[bench_cold.SECONDS]])} s"]
        for what in (bench_cold.SECONDS, bench_cold.CPU, bench_cold.MEMORY):
            imports = bench_cold.IMPORTS_OF.get(name)
            if imports is None:
                row.append("")
                continue
            beyond = found[names[what]] - found[bench_cold.measurement_name(what, imports)]
            row.append(f"{short(beyond)} {'MiB' if what == bench_cold.MEMORY else 's'}")
        rows.append([*row, cell(found, names[bench_cold.LISTING], "s")])
    introduction = (
        f"**Cold starts**: from the beginning of a Python process to the first batch of "
        f"{settings['batch_size']} of a folder of {settings['num_images']:,} small JPEG files in "
        f"{settings['num_classes']:,} classes, shuffled, {settings['num_workers']} workers, a "
        f"random crop resized to {settings['size']}x{settings['size']}. What lies beyond the "
        "imports is the difference to a process that imports the same and ends. CPU time and "
        "memory are those of all processes; files and folders come from the system's cache."
    )
    head = ["", "first batch", "beyond the imports", "CPU time beyond", "memory beyond"]
    table = as_table([*head, "CPU time of the listing"], rows)
    return f"{introduction}\n\n{table}\n\n{aims_table(content)}"
