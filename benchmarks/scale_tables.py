"""Tables of docs/scale.md: costs of a rank, and tars in object storage."""

from __future__ import annotations

from benchmarks import bench_object_storage as storage
from benchmarks import bench_scale as scale
from benchmarks.bench_scale import Case, states_name
from benchmarks.markdown import (
    Content,
    aims_table,
    as_table,
    cell,
    medians_of,
    power_of_ten,
    times_of,
)

_WHATS = (
    scale.CONSTRUCTION,
    scale.MEMORY,
    scale.FIRST,
    scale.STEP,
    scale.INDEX,
    scale.SIZE,
    scale.TAKING,
    scale.LOADING,
)
_HEADS = {
    scale.MEMORY: "peak memory",
    scale.STEP: f"a step of {scale.BATCH_SIZE}",
    scale.INDEX: "an index in blocks",
    scale.SIZE: "size of the state",
}
DOLLARS_A_MILLION = 0.4
"""Price of GET requests in Amazon S3's list (Standard, us-east-1)."""


def scale_section(content: Content) -> str:
    """Return a table for each kind of order, one for lanes, and one for the states of all ranks."""
    found = medians_of(content)
    ranks, samples = f"{scale.RANKS:,}", "10<sup>11</sup>"
    parts = [
        f"**Orders**: one of so many ranks, batches of {scale.BATCH_SIZE} samples that cost "
        "nothing. Times are CPU time.",
        _table(
            found,
            [
                (f"{label}, {power_of_ten(case.n)} samples, {_ranks(case.ranks)}", case)
                for kind, label in scale.ORDERS.items()
                for case in scale.cases_of(kind)
            ],
        ),
        f"**Mixtures** of {samples} samples.",
        _table(
            found,
            [
                (f"{case.parts:,} datasets, {_ranks(case.ranks)}", case)
                for case in scale.cases_of(scale.MIXTURE)
            ],
        ),
        f"**Weights**, {ranks} ranks.",
        _table(
            found,
            [(f"{power_of_ten(case.n)} weights", case) for case in scale.cases_of(scale.WEIGHTED)],
        ),
        f"**Lanes**: shards of {content['settings']['samples_a_shard']:,} samples.",
        _table(
            found,
            [
                (f"{case.n:,} shards, {_ranks(case.ranks)} with {_lanes(case.parts)}", case)
                for case in scale.cases_of(scale.LANES)
            ],
        ),
        "**The states of all ranks**: `merge_state_dicts`, and `load_state_dict` of what it "
        "returned, on one rank.",
        as_table(
            ["", "merging", "loading"],
            [
                [
                    f"{label}, {ranks:,} ranks",
                    *(
                        cell(found, states_name(what, whose, ranks), scale.UNITS[what])
                        for what in (scale.MERGING, scale.LOADING_MERGED)
                    ),
                ]
                for whose, label in scale.STATES_OF.items()
                for ranks in scale.NUMS_RANKS[1:]
            ],
        ),
    ]
    return "\n\n".join([*parts, aims_table(content)])


def object_storage_section(content: Content) -> str:
    """Return rates and their ratio to local files, requests, and the costs of an epoch."""
    found, settings = medians_of(content), content["settings"]
    rows = []
    for way, label in storage.WAYS.items():
        local = storage.rate_name(way, storage.LOCAL)
        row = [label, cell(found, local)]
        for latency in storage.LATENCIES:
            name = storage.rate_name(way, latency)
            row.append(f"{cell(found, name)}, {times_of(content, name, local)}")
        rows.append([*row, *_costs(found, settings, storage.rate_name(way, storage.AIMED_AT))])
    alone = storage.rate_name("alone", storage.AIMED_AT)
    at = [cell(found, alone) if ms == storage.AIMED_AT else "" for ms in storage.LATENCIES]
    rows.append([storage.ALONE, "", *at, *_costs(found, settings, alone)])
    head = [
        "images/s",
        "local files",
        *(f"{latency} ms, beside local" for latency in storage.LATENCIES),
        "CPU ms an image",
        "KB a request",
        "requests for 10<sup>9</sup> images",
        "their price",
    ]
    introduction = (
        f"**Object storage**: {settings['num_tars']} tars of {settings['samples_a_tar']} JPEG "
        f"files of {settings['mean_bytes'] / 1000:.0f} KB, decoded, cropped to 224x224 and "
        f"normalised; batches of {settings['batch_size']}, {settings['num_workers']} threads on "
        "one core, the server on another. Every request waits so long before it is answered. "
        f"Requests are counted at {storage.AIMED_AT} ms; the price is that of GET requests at "
        f"${DOLLARS_A_MILLION:g} a million."
    )
    return "\n\n".join([introduction, as_table(head, rows), aims_table(content)])


def _costs(found: dict[str, float], settings: Content, name: str) -> list[str]:
    requests = found.get(f"{storage.REQUESTS} {name}")
    if not requests:
        return ["", "", "", ""]
    return [
        cell(found, f"{storage.CPU} {name}"),
        f"{settings['mean_bytes'] / 1000 / requests:,.0f}",
        f"{requests * 1e3:,.0f} million",
        f"${requests * 1e3 * DOLLARS_A_MILLION:,.0f}",
    ]


def _table(found: dict[str, float], rows: list[tuple[str, Case]]) -> str:
    """Return a table with a column for each quantity measured in any of the cases."""
    whats = [what for what in _WHATS if any(case.name(what) in found for _, case in rows)]
    body = [
        [label, *(cell(found, case.name(what), scale.UNITS[what]) for what in whats)]
        for label, case in rows
    ]
    return as_table(
        ["", *(_HEADS.get(what, f"`{what}`" if "(" in what else what) for what in whats)], body
    )


def _ranks(number: int) -> str:
    return "one rank" if number == 1 else f"{number:,} ranks"


def _lanes(number: int) -> str:
    return "one lane each" if number == 1 else f"{number} lanes each"
