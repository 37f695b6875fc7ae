"""The README's table: six figures beside those of other loaders, from the JSON files alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.markdown import as_table, comparisons_of, short
from benchmarks.results import read_results


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of this loader, and of another one in the same run."""

    what: str
    peer: str
    benchmark: str
    """Name of the JSON file."""
    ours: str
    """Name of the measurement."""
    theirs: str
    """Name of the other loader's measurement."""
    more_is_better: bool = False


ROWS = (
    Row(
        what="Images a second, JPEG files to augmented batches, 2 workers",
        peer="`DataLoader` with Pillow",
        benchmark="throughput",
        ours="ours_torchcodec",
        theirs="torch_pillow",
        more_is_better=True,
    ),
    Row(
        what="The same",
        peer="`StatefulDataLoader` with torchvision",
        benchmark="throughput",
        ours="ours_torchcodec",
        theirs="torchdata_torchvision",
        more_is_better=True,
    ),
    Row(
        what="The same",
        peer="DALI on the CPU",
        benchmark="throughput",
        ours="ours_torchcodec",
        theirs="dali",
        more_is_better=True,
    ),
    Row(
        what="First batch after a resume, 9 of 10 million shuffled samples behind, 2 workers",
        peer="`StatefulDataLoader`",
        benchmark="state",
        ours="ours first batch, 2 workers, 90% n=10000000",
        theirs="torchdata first batch, 2 workers, 90% n=10000000",
    ),
    Row(
        what="First batch after a resume, 90% of 256 streamed tar files behind",
        peer="webdataset in `DataLoader`",
        benchmark="lanes",
        ours="ours resume 90%",
        theirs="webdataset resume 90%",
    ),
    Row(
        what="A batch of 16 samples that cost nothing, without workers",
        peer="`DataLoader`",
        benchmark="overhead",
        ours="ours trivial workers=0",
        theirs="torch trivial workers=0",
    ),
)


def headline(folder: Path, picture: str) -> str:
    """The chart and the table, as Markdown; rows without results are left out.

    Args:
        folder: of the JSON files.
        picture: where the text looks for the picture of the throughput.
    """
    rows, processors = [], {}
    for row in ROWS:
        content = read_results(folder, row.benchmark)
        if content is None:
            continue
        measured = {found["name"]: found for found in content["measurements"]}
        if row.ours not in measured or row.theirs not in measured:
            continue
        ours, theirs = measured[row.ours], measured[row.theirs]
        unit = ours["unit"].removesuffix(" a batch")
        times = ours["median"] / theirs["median"]
        for found in comparisons_of(content, row.ours):
            if found["to"] == row.theirs:
                times = found["ratio"]["median"]
        rows.append(
            [
                row.what,
                f"{short(ours['median'])} {unit}",
                row.peer,
                f"{short(theirs['median'])} {unit}",
                _verdict(times if row.more_is_better else 1 / times),
            ]
        )
        machine = content["machine"]
        processors[f"{machine['cores']} cores of {machine['processor']}"] = None
    table = as_table(["", "this loader", "compared with", "its figure", "this loader is"], rows)
    return f"![images per second of every loader]({picture})\n\n{table}\n\n" + (
        f"<sub>Medians of alternating rounds on {' and '.join(processors)}, without a GPU.</sub>"
    )


def _verdict(times: float) -> str:
    """How many times faster or slower, from the ratio of two rates.

    >>> _verdict(3.0), _verdict(0.5)
    ('3 times faster', '2 times slower')
    """
    return f"{times:.3g} times faster" if times >= 1 else f"{1 / times:.3g} times slower"
