"""Section of the peers: a table of all loaders, with the best of each column in bold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.bench_peers import (
    CPU,
    FIRST,
    IMAGES,
    MEMORY,
    RESTORE,
    STATE,
    measurement_name,
)
from benchmarks.markdown import Content, as_table, medians_of, short


@dataclass(frozen=True, kw_only=True)
class Column:
    """One figure of every loader."""

    head: str
    what: str
    """Part of the measurement's name."""
    show: Callable[[float], str] = short
    n: int | None = None
    """Number of samples in the resumed epoch."""
    more_is_better: bool = False


def columns_of(content: Content) -> list[Column]:
    return [
        Column(head="images/s", what=IMAGES, more_is_better=True),
        Column(head="CPU ms an image", what=CPU),
        Column(head="peak memory, MiB", what=MEMORY),
        Column(head="first batch of a cold process", what=FIRST, show=seconds),
        *(
            Column(head=f"state in {counted(n)} samples, bytes", what=STATE, n=n)
            for n in content["settings"]["lengths"]
        ),
        *(
            Column(
                head=f"first batch at 90% of {counted(n)} samples", what=RESTORE, show=seconds, n=n
            )
            for n in content["settings"]["lengths"]
        ),
    ]


def peers_section(content: Content) -> str:
    """Return a table for each number of workers, then the loaders' versions and sources."""
    settings = content["settings"]
    before = content["machine"]["load_average_before"]
    introduction = (
        "**Peers**: every loader is set up as its own documents recommend, in its own format where "
        f"it needs one. All read the same JPEG files of {settings['mean_bytes'] / 1000:.0f} KB and "
        "give the same output: random crop resized to 224x224, flip, normalised float32, batches "
        f"of {settings['batch_size']}. CPU time and memory include all processes of a loader. "
        "Memory is the peak until the end of the timed batches, without mapped files. The cold "
        "process starts with Python itself.\n\n"
        "Resumes at 90% use samples that are numbers and cost nothing, so only the way back is "
        "timed. A loader without a state starts the epoch again and drops the samples; with "
        "photographs it would decode them, too. It is left out if, by the shorter epoch, it would "
        "take two minutes. A resume is measured three times, or once if it takes over a second. "
        "Exact means: a fresh process delivered the rest of an epoch batch by batch as the "
        f"uninterrupted one, compared over {settings['compared_samples']} photographs. The best of "
        f"a column is bold. The machine's load was {before:.1f} before the run and "
        f"{settings['load_average_after']:.1f} after it."
    )
    tables = [
        f"{workers} workers (processes or threads), medians of {_rounds(content, workers)} rounds:"
        f"\n\n{_table(content, workers)}"
        for workers in settings["num_workers"]
    ]
    reasons = [
        f"{loader['label']} is not in the table: {loader['reason']}."
        for loader in settings["loaders"]
        if loader["reason"] is not None
    ]
    notes = [f"{loader['note']}." for loader in measured_loaders(content) if loader.get("note")]
    return "\n\n".join([introduction, *tables, *reasons, *notes, _who_is_who(content)])


def measured_loaders(content: Content) -> list[dict[str, Any]]:
    return [loader for loader in content["settings"]["loaders"] if loader["reason"] is None]


def value_of(
    content: Content, loader: dict[str, Any], column: Column, workers: int
) -> float | None:
    name = measurement_name(loader["name"], column.what, workers, column.n)
    return medians_of(content).get(name)


def text_of(content: Content, loader: dict[str, Any], column: Column, workers: int) -> str:
    """Return the figure as displayed: without a value, a limit or a failure."""
    value = value_of(content, loader, column, workers)
    if value is not None:
        return column.show(value)
    if column.what == STATE and not loader["has_state"]:
        return "none"
    name = measurement_name(loader["name"], column.what, workers, column.n)
    fact = loader["facts"].get(name)
    if fact is None:
        return ""
    return fact if fact.startswith(">") else "not measured"


def best_of(content: Content, column: Column, workers: int) -> float | None:
    values = [
        value
        for loader in measured_loaders(content)
        if (value := value_of(content, loader, column, workers)) is not None
    ]
    if not values:
        return None
    return max(values) if column.more_is_better else min(values)


def verdicts_of(loader: dict[str, Any], workers: int) -> tuple[str, str]:
    """Return whether samples and pixels were the same after a resume: "yes", or the batch counts.

    A shuffle buffer may hold all of a few photographs, so the longer epoch of numbers counts as
    well.
    """
    found = loader["facts"].get(f"resumed workers={workers}")
    if found is None:
        return "", ""
    if found["samples_exact"] and loader["facts"].get("batch at 90% as uninterrupted") is False:
        return "no, another at 90%", "no, another at 90%"
    return (
        "yes" if found["samples_exact"] else f"no, {found['same_samples']} of {found['batches']}",
        "yes" if found["pixels_exact"] else f"no, {found['same_pixels']} of {found['batches']}",
    )


def _table(content: Content, workers: int) -> str:
    columns = [
        column
        for column in columns_of(content)
        if any(value_of(content, loader, column, workers) for loader in measured_loaders(content))
    ]
    rows = []
    for loader in measured_loaders(content):
        row = [f"**{loader['label']}**" if loader["name"] == "ours" else loader["label"]]
        for column in columns:
            text = text_of(content, loader, column, workers)
            best = best_of(content, column, workers)
            is_best = best is not None and text == column.show(best)
            row.append(f"**{text}**" if is_best else text)
        rows.append([*row, *verdicts_of(loader, workers)])
    heads = [column.head for column in columns]
    return as_table(["", *heads, "batches with the same samples", "and the same pixels"], rows)


def _rounds(content: Content, workers: int) -> int:
    names = [measurement_name(each["name"], IMAGES, workers) for each in measured_loaders(content)]
    return max(
        (len(each["values"]) for each in content["measurements"] if each["name"] in names),
        default=0,
    )


def _who_is_who(content: Content) -> str:
    rows = [
        [loader["label"], loader["version"] or "", loader["method"], loader["guide"]]
        for loader in content["settings"]["loaders"]
    ]
    return as_table(["loader", "version", "used here", "as recommended in"], rows)


def seconds(value: float) -> str:
    """Format seconds, as milliseconds below one second.

    >>> seconds(0.0123), seconds(12.34)
    ('12.3 ms', '12.3 s')
    """
    return f"{short(value * 1e3)} ms" if value < 1 else f"{short(value)} s"


def counted(n: int) -> str:
    """Format a number, in millions from one million on.

    >>> counted(1_280_000), counted(24_000)
    ('1.28 million', '24,000')
    """
    return f"{n / 1e6:g} million" if n >= 10**6 else f"{n:,}"
