"""Tables of reading: sources by format, lanes, and orders by blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from benchmarks import bench_lanes, bench_locality, source_resume
from benchmarks.format_writers import PARQUET
from benchmarks.lane_loaders import LABELS as LOADERS
from benchmarks.lane_loaders import OURS, PEER, WEBDATASET, WORKS
from benchmarks.markdown import Content, aims_table, as_table, cell, medians_of, short, times_of
from benchmarks.source_files import FORMATS
from benchmarks.source_indices import INDEXED, SCRIPTS, index_name
from benchmarks.source_rates import cpu_name, measurement_name

_REFERENCES = {
    "torchvision": "ImageFolder",
    "webdataset": "webdataset",
    "dali": "DALI",
    "pyarrow": "pyarrow",
}


def sources_section(content: Content) -> str:
    """Return rates and references, then indexing, then resuming near the end."""
    settings = content["settings"]
    rates = (
        f"**Sources**: samples per second of {settings['mean_bytes'] / 1000:.0f} KB files, read "
        "and not decoded, from the system's cache. DALI reads ahead in its own "
        f"threads. Parquet is shuffled in windows of {settings['window']} row groups. Shuffled as "
        f"a whole, it comes at {_whole_shuffle(content)} samples per second, since a row cannot be "
        "read without its row group. The source warns of it, with the remedy."
    )
    cpu = (
        "Microseconds of CPU time per sample, of all threads. Parquet shuffled as a whole takes "
        f"{cell(medians_of(content), cpu_name(PARQUET, 'ours-shuffled'))}."
    )
    indices = "Seconds per gigabyte to index these files, once: the index is kept."
    resume = (
        f"Milliseconds to the first batch of {source_resume.BATCH_SIZE} in a file of "
        f"{settings['num_records']:,} records, at the beginning of an epoch and at "
        f"{settings['places'][1]:.0%} of it. DALI and webdataset open their files in that time; "
        "opening our source has its own column."
    )
    notes = " ".join(content["notes"])
    parts = [rates, _rates_table(content)]
    if cpu_name(PARQUET, "ours") in medians_of(content):
        parts += [cpu, _rates_table(content, cpu_name)]
    parts += [indices, _indices_table(content), resume]
    return "\n\n".join([*parts, _resume_table(content), notes, aims_table(content)])


def lanes_section(content: Content) -> str:
    """Return rates and peers, the state, and the first batch after a resume."""
    settings = content["settings"]
    rates = (
        f"**Lanes**: samples per second of {settings['num_tars']} tars of "
        f"{settings['samples_a_tar']} photographs, and of shards that cost nothing, in batches of "
        f"{settings['batch_size']}."
    )
    states = (
        f"The state of {settings['num_shards']:,} shards, the time to take it, and the time of a "
        "batch of four trivial samples."
    )
    resume = "The first batch of undecoded tars after a resume."
    parts = [rates, _lane_rates_table(content), states, _lane_states_table(content)]
    return "\n\n".join([*parts, resume, _lane_resume_table(content), aims_table(content)])


def locality_section(content: Content) -> str:
    """Return one row for each order, for tars and for Parquet."""
    settings, found = content["settings"], medians_of(content)
    rows = [
        [
            f"{FORMATS[name]}, {order}",
            *(cell(found, bench_locality.measurement_name(what, name, order)) for what in _WHATS),
        ]
        for name in bench_locality.READ_FORMATS
        for order in bench_locality.ORDERS
    ]
    introduction = (
        f"**Orders by blocks**: {settings['num_samples']:,} photographs in tars and row groups of "
        f"{settings['samples_a_block']}. Reads are counted at a source's requests to the storage. "
        "Samples per second are for files in the system's cache."
    )
    head = ["", *_WHATS.values()]
    return f"{introduction}\n\n{as_table(head, rows)}\n\n{aims_table(content)}"


_WHATS = bench_locality.WHATS


def _whole_shuffle(content: Content) -> str:
    return cell(medians_of(content), measurement_name(PARQUET, "ours-shuffled"))


def _rates_table(content: Content, name_of: Callable[[str, str], str] = measurement_name) -> str:
    """Return all readers with their references: rates, or CPU times by :func:`cpu_name`."""
    found, rows = medians_of(content), []
    for name, label in FORMATS.items():
        shuffled = "ours-blocks" if name == PARQUET else "ours-shuffled"
        ours = ["ours", "ours-threads", shuffled]
        for reference, reference_label in _REFERENCES.items():
            there = name_of(name, reference)
            if there not in found:
                continue
            rows.append(
                [
                    f"{label}, {reference_label}",
                    *(cell(found, name_of(name, each)) for each in ours),
                    cell(found, there),
                    cell(found, name_of(name, f"{reference}-shuffled")),
                    times_of(content, name_of(name, "ours"), there),
                    times_of(content, name_of(name, shuffled), there),
                ]
            )
    threads = f"{content['settings']['num_threads']} threads"
    head = ["", "ours", f"ours, {threads}", "ours, shuffled", "reference", "reference, shuffled"]
    return as_table([*head, "ours to reference", "shuffled to its order"], rows)


def _indices_table(content: Content) -> str:
    found = medians_of(content)
    rows = []
    for name in INDEXED:
        ours, script = index_name(name, "ours"), SCRIPTS.get(name, "")
        other = index_name(name, script)
        row = [FORMATS[name], cell(found, ours), cell(found, other)]
        rows.append([*row, script, times_of(content, ours, other)])
    return as_table(["", "ours", "DALI's script", "", "ratio"], rows)


def _resume_table(content: Content) -> str:
    found, rows = medians_of(content), []
    begin, late = content["settings"]["places"]
    for name, label in FORMATS.items():
        if source_resume.opening_name(name) not in found:
            continue
        row = [label, cell(found, source_resume.opening_name(name))]
        for peer in source_resume.PEERS:
            keys = [source_resume.resume_name(peer, name, place) for place in (begin, late)]
            row.append(" / ".join(short(found[key]) for key in keys if key in found))
        ours = [source_resume.resume_name(source_resume.OURS, name, each) for each in (late, begin)]
        rows.append([*row, times_of(content, *ours)])
    head = ["", "opening", *source_resume.PEERS.values()]
    return as_table([*head, f"ours, {late:.0%} to {begin:.0%}"], rows)


def _lane_rates_table(content: Content) -> str:
    found, rows = medians_of(content), []
    for work, num_workers in itertools.product(WORKS, bench_lanes.NUM_WORKERS):
        ours, peer = (bench_lanes.rate_name(who, work, num_workers) for who in (OURS, PEER[work]))
        if ours in found:
            rows.append(
                [
                    f"{WORKS[work]}, {num_workers} workers",
                    cell(found, ours),
                    cell(found, peer),
                    LOADERS[PEER[work]] if peer in found else "",
                    times_of(content, ours, peer),
                ]
            )
    return as_table(["", "ours", "peer", "", "ratio"], rows)


def _lane_states_table(content: Content) -> str:
    found = medians_of(content)
    rows = [
        [
            f"{num_lanes:,} lanes",
            cell(found, bench_lanes.state_name("bytes a lane", num_lanes), "bytes a lane"),
            cell(found, bench_lanes.state_name("state_dict()", num_lanes), "us"),
            cell(found, bench_lanes.state_name("batch", num_lanes), "us"),
        ]
        for num_lanes in content["settings"]["num_lanes"]
    ]
    return as_table(["", "state as JSON", "`state_dict()`", "a batch"], rows)


def _lane_resume_table(content: Content) -> str:
    found, places = medians_of(content), content["settings"]["places"]
    rows = []
    for who in (OURS, WEBDATASET):
        keys = [bench_lanes.resume_name(who, place) for place in places]
        if keys[0] in found:
            ratio = times_of(content, keys[1], keys[0])
            rows.append([LOADERS[who], *(cell(found, key, "ms") for key in keys), ratio])
    return as_table(["", *(f"at {place:.0%}" for place in places), "ratio"], rows)
