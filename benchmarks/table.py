"""The tables of docs/benchmarks.md, of docs/scale.md and of the README, from the JSON files alone:
``python -m benchmarks.table``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks import bench_faults, bench_overhead, bench_state, bench_throughput, results
from benchmarks.checkpoint_table import checkpoint_section
from benchmarks.cold_table import cold_section
from benchmarks.device_tables import executors_section, gpu_section
from benchmarks.headline import headline
from benchmarks.markdown import (
    Content,
    aims_table,
    as_table,
    comparisons_of,
    medians_of,
    short,
    times_of,
)
from benchmarks.peers_picture import draw_peers
from benchmarks.peers_table import peers_section
from benchmarks.picture import draw_throughput
from benchmarks.prepared_table import prepared_section
from benchmarks.ray_table import ray_section
from benchmarks.scale_picture import draw_object_storage, draw_scale
from benchmarks.scale_tables import object_storage_section, scale_section
from benchmarks.source_tables import lanes_section, locality_section, sources_section

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs"
PEERS_PICTURE, THROUGHPUT_PICTURE = "peers.png", "throughput.png"
SCALE_DOCUMENT, RAY_DOCUMENT = "scale.md", "cluster.md"
"""Beside the first document."""
SCALE = (
    ("scale", "scale.png", "what one rank pays", draw_scale, scale_section),
    (
        "object_storage",
        "object-storage.png",
        "rates from object storage beside those from local files",
        draw_object_storage,
        object_storage_section,
    ),
)


def main(given: Sequence[str] | None = None) -> None:
    """Redraw the tables and the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="folder of the JSON")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where all tables go")
    parser.add_argument("--readme", type=Path, default=README, help="where the six rows go")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="folder of the pictures")
    arguments = parser.parse_args(given)
    for benchmark, draw_picture, picture in (
        ("throughput", draw_throughput, THROUGHPUT_PICTURE),
        ("peers", draw_peers, PEERS_PICTURE),
    ):
        content = results.read_results(arguments.results, benchmark)
        if content is not None:
            draw_picture(content, arguments.pictures / picture)
            print(f"drew {picture}")
    for file, name, draw in (
        (arguments.document, "benchmarks", markdown),
        (arguments.readme, "headline", headline),
    ):
        pictures = Path(os.path.relpath(arguments.pictures, file.parent))
        print(put_into(file, name, draw(arguments.results, pictures)))
    ray = results.read_results(arguments.results, "ray")
    if ray is not None:
        text = "\n\n".join([ray_section(ray), _origin(ray), _machine_and_versions(ray)])
        print(put_into(arguments.document.with_name(RAY_DOCUMENT), "ray", text))
    for benchmark, picture, alternative, draw_picture, section in SCALE:
        content = results.read_results(arguments.results, benchmark)
        if content is not None:
            draw_picture(content, arguments.pictures / picture)
            file = arguments.document.with_name(SCALE_DOCUMENT)
            link = Path(os.path.relpath(arguments.pictures, file.parent)) / picture
            last = [_origin(content), _machine_and_versions(content)]
            text = "\n\n".join([f"![{alternative}]({link})", section(content), *last])
            print(put_into(file, benchmark, text))


def markdown(folder: Path, pictures: Path) -> str:
    """All tables for which there are results, as Markdown.

    Args:
        folder: of the JSON files.
        pictures: the folder in which the text looks for the pictures.
    """
    parts, where = [], []
    for benchmark, section in (
        ("peers", peers_section),
        ("throughput", throughput_section),
        ("prepared", prepared_section),
        ("state", state_section),
        ("cold", cold_section),
        ("overhead", overhead_section),
        ("faults", faults_section),
        ("executors", executors_section),
        ("sources", sources_section),
        ("lanes", lanes_section),
        ("locality", locality_section),
        ("checkpoint", checkpoint_section),
        ("gpu", gpu_section),
    ):
        content = results.read_results(folder, benchmark)
        if content is not None:
            if benchmark == "peers":
                parts.append(f"![this loader beside others]({pictures / PEERS_PICTURE})")
            if benchmark == "throughput":
                parts.append(f"![images a second of every loader]({pictures / THROUGHPUT_PICTURE})")
            parts += [section(content), _origin(content)]
            where.append(_machine_and_versions(content))
    return "\n\n".join([*parts, *dict.fromkeys(where)])


def put_into(file: Path, name: str, text: str) -> str:
    """Put the text between the markers of that name; say what was done."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if not file.is_file():
        return f"no tables drawn: there is no {file.name}"
    before, found_start, rest = file.read_text(encoding="utf-8").partition(start)
    _, found_end, after = rest.partition(end)
    if not (found_start and found_end):
        return f"no tables drawn: {file.name} lacks the markers {start} and {end}"
    file.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")
    return f"drew the tables of {file.name}"


def throughput_section(content: Content) -> str:
    """Images a second of every contestant, and how ours stands to it."""
    settings, medians = content["settings"], medians_of(content)
    ceiling, ours = medians[settings["ceiling"]], bench_throughput.OURS
    ratios = {found["to"]: found["ratio"] for found in comparisons_of(content, ours)}
    rows = []
    for found in sorted(content["measurements"], key=lambda found: found["median"]):
        name = found["name"]
        label = f"**{found['label']}**" if name == ours else found["label"]
        middle = f"{found['lower_quartile']:,.0f} to {found['upper_quartile']:,.0f}"
        share = f"{found['median'] / ceiling:.0%}"
        times = f"{ratios[name]['median']:.2f}x" if name in ratios else ""
        rows.append([label, f"{found['median']:,.0f}", middle, share, times])
    head = ["", "images/s", "middle half", "of the ceiling", "ours against it"]
    introduction = (
        f"**Throughput**: {settings['width']}x{settings['height']} JPEG files of "
        f"{settings['mean_bytes'] / 1000:.0f} KB on average, random crop resized to 224x224, flip, "
        f"normalised float32, batches of {settings['batch_size']}, {settings['num_workers']} "
        "workers (processes or threads). The ceiling is decoding and nothing else."
    )
    return f"{introduction}\n\n{as_table(head, rows)}\n\n{aims_table(content)}"


def state_section(content: Content) -> str:
    """Size, times and memory, one column a loader and length."""
    medians = medians_of(content)
    units = {found["name"]: found["unit"] for found in content["measurements"]}
    whats = ["JSON size", "saved size", "state_dict()", "peak memory growth"]
    whats += [
        f"first batch, {num_workers} workers, {place:.0%}"
        for num_workers in bench_state.NUM_WORKERS
        for place in content["settings"]["places"]
    ]
    cases = [
        bench_state.Case(loader=loader, n=n)
        for loader, lengths in bench_state.LENGTHS.items()
        for n in lengths
        if bench_state.Case(loader=loader, n=n).name("saved size") in medians
    ]
    rows = []
    for what in whats:
        row = [bench_state.TITLES.get(what) or f"{what} of the epoch behind"]
        for case in cases:
            name = case.name(what)
            row.append(f"{short(medians[name])} {units[name]}" if name in medians else "")
        rows.append(row)
    head = ["", *(f"{bench_state.LABELS[case.loader]}, n = {_power(case.n)}" for case in cases)]
    introduction = (
        "**State**: a dataset of n items that cost nothing, shuffled, batches of "
        f"{content['settings']['batch_size']}. The first batch is timed from `load_state_dict()`, "
        "into a fresh loader."
    )
    notes = "".join(f" {note}" for note in content["notes"])
    return f"{introduction}{notes}\n\n{as_table(head, rows)}\n\n{aims_table(content)}"


def overhead_section(content: Content) -> str:
    """Time a batch and its ratio to torch's DataLoader, one row a setting."""
    medians = medians_of(content)
    rows = []
    for case in bench_overhead.CASES:
        row = [bench_overhead.case_label(*case)]
        torchs = bench_overhead.measurement_name(bench_overhead.TORCH, *case)
        for loader in bench_overhead.LABELS:
            name = bench_overhead.measurement_name(loader, *case)
            times = times_of(content, name, torchs)
            cell = f"{short(medians[name])} us" if name in medians else ""
            row.append(f"{cell}, {times}" if times else cell)
        if any(row[1:]):
            rows.append(row)
    head = ["", *bench_overhead.LABELS.values()]
    introduction = (
        "**Overhead**: time a batch, and its ratio to torch's DataLoader with the 95% interval. "
        "The loader adds a fixed time to each batch, whatever its size. It moves the place of the "
        "stream under a lock (5 us), so a signal handler or another thread finds the state before "
        "or after a batch and never between. It compares the global generators before and after "
        "the batch (2 us)."
    )
    return f"{introduction}\n\n{as_table(head, rows)}\n\n{aims_table(content)}"


def faults_section(content: Content) -> str:
    """Two tables: recovery beside a fresh start, and user states."""
    settings = content["settings"]
    introduction = (
        f"**Faults**: {settings['num_workers']} workers, batches of {settings['batch_size']}. "
        "Recovery is the time from the SIGKILL of a worker to the first batch of those that "
        "replace them all, a fresh start that from `iter()` of a new loader to its first batch. "
        "Once there was an aim of 1.2 fresh starts; it served nobody, since the difference is 30 "
        "to 60 ms for each worker that dies, and was retired."
    )
    states = (
        "Time a batch where user objects have states, which are taken with every batch; a state "
        "of 1 MB is a tensor."
    )
    parts = [introduction, _recovery_table(content), states, _states_table(content)]
    return "\n\n".join([*parts, aims_table(content)])


def _recovery_table(content: Content) -> str:
    names, medians = bench_faults, medians_of(content)
    rows = []
    for method in names.START_METHODS:
        for cost, label in names.COSTS.items():
            fresh, recovery = (
                names.start_name(what, method, cost) for what in (names.FRESH, names.RECOVERY)
            )
            if recovery in medians:
                times = [f"{short(medians[name])} ms" for name in (fresh, recovery)]
                rows.append([f"{method}, {label}", *times, times_of(content, recovery, fresh)])
    return as_table(["", "fresh start", "recovery", "ratio"], rows)


def _states_table(content: Content) -> str:
    names, medians = bench_faults, medians_of(content)
    loaders = (bench_overhead.TORCH, bench_overhead.TORCHDATA, bench_overhead.OURS)
    rows = []
    for cost, cost_label in names.COSTS.items():
        for state, label in names.STATES.items():
            keys = {loader: names.state_name(loader, state, cost) for loader in loaders}
            cells = [f"{short(medians[key])} us" if key in medians else "" for key in keys.values()]
            rows.append(
                [
                    f"{label}, {cost_label}",
                    *cells,
                    *(
                        times_of(content, keys[bench_overhead.OURS], keys[peer])
                        for peer in loaders[:2]
                    ),
                ]
            )
    labels = [bench_overhead.LABELS[loader] for loader in loaders]
    return as_table(["", *labels, *(f"ours to {label}" for label in labels[:2])], rows)


def _origin(content: Content) -> str:
    return (
        f"<sub>`{content['command']}`, {content['date'][:10]}, medians of {content['rounds']} "
        "alternating rounds.</sub>"
    )


def _machine_and_versions(content: Content) -> str:
    machine = content["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return f"<sub>Measured on {machine['processor']}, {machine['cores']} cores: {versions}.</sub>"


def _power(n: int) -> str:
    return f"10<sup>{len(str(n)) - 1}</sup>"


if __name__ == "__main__":
    main()
