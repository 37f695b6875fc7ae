"""Reading every format: in order, shuffled, indexing, and resuming near the end.

Each format is read by our source and by its reference reader, in one process that does nothing
else: webdataset and DALI for tars, DALI for LMDB, TFRecord and RecordIO, pyarrow for Parquet,
torchvision for folders. Nothing is decoded. Reads come from the system's cache, so the costs of the
readers are compared. DALI reads ahead in its own threads, ours with two threads does, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.arguments import parse
from benchmarks.harness import run_apart
from benchmarks.results import Aim, Comparison, compared
from benchmarks.source_files import (
    FORMATS,
    ROWS,
    SMALL_BYTES,
    SMALL_FORMATS,
    SourceFiles,
    photograph_files,
    small_files,
)
from benchmarks.source_indices import INDEXED, SCRIPTS, index_name, measure_indices
from benchmarks.source_rates import cpu_name, measure_rates, measurement_name
from benchmarks.source_readers import (
    NUM_THREADS,
    PARQUET_CACHE,
    WINDOW,
    our_readers,
    references,
)
from benchmarks.source_resume import (
    OURS,
    PEERS,
    PLACES,
    measure_resume,
    resume_name,
)

AIM = 1.0
"""Share of the rate of each reference."""
RESUME_AIM = 1.2
"""Multiple of the time of the first batch at the beginning of the epoch."""


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=9, given=given)
    num_samples, num_images, num_records = (
        (192, 12, 1280) if arguments.quick else (2048, 256, 1_000_000)
    )
    files = photograph_files(num_samples, num_images, arguments.data)
    small = small_files(num_records, arguments.data)
    measurements = [
        measurement
        for name in FORMATS
        for measurement in run_apart(arguments.quick, measure_rates, name, files, arguments)
    ]
    measurements += run_apart(arguments.quick, measure_indices, files, arguments)
    for name in SMALL_FORMATS:
        measurements += run_apart(arguments.quick, measure_resume, name, small, arguments)
    comparisons = compared(measurements, [*_rate_pairs(files), *_index_pairs(), *_resume_pairs()])
    arguments.report(
        "sources",
        settings={
            "num_samples": files.num_samples,
            "mean_bytes": round(files.num_bytes / files.num_samples),
            "samples_a_tar": ROWS,
            "rows_a_group": ROWS,
            "num_threads": NUM_THREADS,
            "window": WINDOW,
            "parquet_cache_share": 1 / PARQUET_CACHE,
            "num_records": small.num_samples,
            "record_bytes": SMALL_BYTES,
            "places": list(PLACES),
        },
        measurements=measurements,
        comparisons=comparisons,
        aims=list(_aims(files, comparisons)),
        notes=[
            "rec2idx is not measured: it needs MXNet, which is no longer maintained.",
            "StatefulDataLoader's states were reached over samples that cost nothing.",
        ],
    )


def _rate_pairs(files: SourceFiles) -> Iterator[tuple[str, str]]:
    for name in FORMATS:
        for ours in our_readers(name, files):
            for reference in references(name, files):
                for key in (measurement_name, cpu_name):
                    yield key(name, ours.name), key(name, reference.name)


def _index_pairs() -> Iterator[tuple[str, str]]:
    for name in INDEXED:
        if name in SCRIPTS:
            yield index_name(name, "ours"), index_name(name, SCRIPTS[name])


def _resume_pairs() -> Iterator[tuple[str, str]]:
    for name in SMALL_FORMATS:
        for peer in PEERS:
            yield resume_name(peer, name, PLACES[1]), resume_name(peer, name, PLACES[0])


def _aims(files: SourceFiles, comparisons: Sequence[Comparison]) -> Iterator[Aim]:
    found = {(comparison.of, comparison.to): comparison.ratio for comparison in comparisons}
    for name, label in FORMATS.items():
        for reference in references(name, files):
            if reference.is_shuffled:
                continue
            to = measurement_name(name, reference.name)
            for ours in our_readers(name, files):
                if ours.has_threads:
                    continue
                what = f"{label}: {ours.label} beside {reference.label} in order"
                yield Aim.at_least(what, found[measurement_name(name, ours.name), to], AIM)
    for name in SMALL_FORMATS:
        late, begin = (resume_name(OURS, name, place) for place in PLACES[::-1])
        what = f"{FORMATS[name]}: first batch at {PLACES[1]:.0%} beside that at 0%"
        yield Aim.at_most(what, found[late, begin], RESUME_AIM)


if __name__ == "__main__":
    main()
