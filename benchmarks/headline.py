"""The README's table: six figures compared with other loaders, drawn from the JSON files alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.markdown import as_table, comparisons_of, short
from benchmarks.results import read_results


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of this loader and of another in the same run."""

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
        benchmark="peers",
        ours="ours images workers=2",
        theirs="torch_pillow images workers=2",
        more_is_better=True,
    ),
    Row(
        what="The same",
        peer="`StatefulDataLoader` with torchvision",
        benchmark="peers",
        ours="ours images workers=2",
        theirs="torchdata images workers=2",
        more_is_better=True,
    ),
    Row(
        what="The same",
        peer="DALI on the CPU",
        benchmark="peers",
        ours="ours images workers=2",
        theirs="dali images workers=2",
        more_is_better=True,
    ),
    Row(
        what="First batch after a resume, at 90% of 100 million shuffled samples, 2 workers",
        peer="Grain",
        benchmark="peers",
        ours="ours restore n=100000000 workers=2",
        theirs="grain restore n=100000000 workers=2",
    ),
    Row(
        what="First batch after a resume, at 90% of 256 streamed tar files",
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


def headline(folder: Path, pictures: Path) -> str:
    """Return the chart and the table as Markdown; rows without results are left out.

    Args:
        folder: folder of the JSON files.
        pictures: folder in which the text looks for the picture of all loaders.
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
    return f"![this loader beside others]({pictures / 'peers.png'})\n\n{table}\n\n" + (
        f"<sub>Medians of alternating rounds on {' and '.join(processors)}, without a GPU.</sub>"
    )


def _verdict(times: float) -> str:
    """Return how many times faster or slower, from the ratio of two rates.

    >>> _verdict(3.0), _verdict(0.5)
    ('3 times faster', '2 times slower')
    """
    return f"{times:.3g} times faster" if times >= 1 else f"{1 / times:.3g} times slower"
