"""The commands on saved states: ``inspect``, ``diff``, ``seek`` and ``which``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateful_gpu_loader.cli.output import (
    JsonOption,
    complain,
    console,
    note,
    print_json,
    visible,
)
from stateful_gpu_loader.cli.target import ArgOption, StatesArgument, WhereOption, factory_of
from stateful_gpu_loader.errors import StateMismatch

if TYPE_CHECKING:
    from stateful_gpu_loader.tools.compare_states import Comparison, Difference, Pair
    from stateful_gpu_loader.tools.inspect_state import Description
    from stateful_gpu_loader.tools.state_files import FoundState, Unreadable
    from stateful_gpu_loader.tools.which import Placed

UNKNOWN = "unknown"
_MOST_LANES, _MOST_BAD = 16, 10


def inspect(path: StatesArgument, as_json: JsonOption = False) -> None:
    """Show the positions of the data loaders in a checkpoint.

    No code in the files is executed. Missing values are shown as unknown, and unreadable files are
    listed. Exit status: 0 a state was found, 2 none was found.
    """
    from stateful_gpu_loader.tools.inspect_state import describe
    from stateful_gpu_loader.tools.state_files import Search, Unreadable, search

    found = search(path)
    described, unreadable = [], list(found.unreadable)
    for each in found.states:
        try:
            described.append((each, describe(each.state)))
        except StateMismatch as error:
            unreadable.append(Unreadable(each.path, each.where, f"is damaged: {error}"))
    if as_json:
        states = [_plain_state(each, description) for each, description in described]
        missed = [{**_place(each), "reason": each.reason} for each in unreadable]
        print_json({"states": states, "unreadable": missed})
    else:
        for each, description in described:
            _show_state(each, description)
    if not described:
        raise Search(path, (), tuple(unreadable)).nothing()
    for one in unreadable:
        complain(str(one))


def _place(found: FoundState | Unreadable) -> dict[str, Any]:
    return {"path": str(found.path), "where": found.where}


def _plain_state(found: FoundState, description: Description) -> dict[str, Any]:
    ranks = {"rank": found.rank, "num_ranks": found.num_ranks}
    kind = {"container": found.container, "note": found.note}
    return {**_place(found), **kind, **ranks, **description.to_dict()}


def _show_state(found: FoundState, description: Description) -> None:
    from rich.table import Table
    from rich.text import Text

    place = f", {found.where}" if found.where else ""
    console().print(Text(visible(f"{found.path}{place} ({found.container})"), style="bold"))
    if found.note:
        console().print(Text(found.note))
    ranks = description.ranks
    if found.rank is not None:
        of_all = "" if found.num_ranks is None else f" of {found.num_ranks}"
        ranks = f"data-parallel rank {found.rank}{of_all}, counted from 0"
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(description, ranks):
        table.add_row(Text(visible(name)), Text(visible(value)))
    console().print(table)
    console().print()


def _rows(found: Description, ranks: str) -> Iterator[tuple[str, str]]:
    from stateful_gpu_loader.samplers.choice import order_in_words

    version = "" if found.version is None else f", version {found.version}"
    yield "written by", f"{found.library}{version}"
    yield "epoch", _or_unknown(found.epoch)
    yield "position", _counted(found.position, found.unit)
    share = UNKNOWN if found.share is None else f"{found.share:.1%} of {found.epoch_samples}"
    yield "share of the epoch", share if found.share is None else f"{share} samples"
    yield "samples delivered", _or_unknown(found.samples_seen)
    yield "batches delivered", _or_unknown(found.batches_seen)
    if found.finished is not None:
        yield "pass is over", "yes" if found.finished else "no"
    yield "global batch size", _or_unknown(found.global_batch_size)
    yield "seed", _or_unknown(found.seed)
    yield "ranks", ranks
    if found.ahead:
        yield "delivered ahead", f"{_counted(found.ahead, 'batches')}, before an older one"
    for lane in found.lanes[:_MOST_LANES]:
        count = _counted(lane.samples or 0, "samples")
        place = "ended" if lane.ended else f"{count}, in its shard {lane.shard}"
        yield f"lane {lane.lane}", place
    if len(found.lanes) > _MOST_LANES:
        yield "more lanes", f"{len(found.lanes) - _MOST_LANES}; --json has them all"
    for name, value in (found.fingerprint or {}).items():
        # In these two fields None does not mean unknown.
        meant = {"on_bad_sample": "raise", "decoder_version": "none"}.get(name, UNKNOWN)
        said = order_in_words(value) if name == "order" else str(value)
        if name == "content" and value is not None:
            said = ", ".join(f"{field}: {digest}" for field, digest in value.items()) or "none"
        yield name, meant if value is None else said
    for name, reason in found.unverified.items():
        yield f"{name} not proven", reason
    yield "bad samples", _or_unknown(found.bad_samples)
    for bad in found.bad_sample_list[:_MOST_BAD]:
        yield f"  index {bad.index}", f"epoch {bad.epoch}, position {bad.position}: {bad.reason}"
    for each in found.user_objects:
        yield f"state of {each.name}", f"{each.num_bytes} bytes"


def _counted(n: int, unit: str) -> str:
    singular = {"samples": "sample", "batches": "batch"}
    return f"{n} {singular[unit] if n == 1 else unit}"


def _or_unknown(value: Any) -> str:
    return UNKNOWN if value is None else str(value)


_SHORT = 60
"""Maximum number of characters of a text that is shown whole."""
_LONGEST = 240
_CALL = re.compile(r"([\w.=]*[(\[{])(.*)([)\]}])", re.DOTALL)
"""A call or list in a description: its beginning, items and closing bracket."""


def diff(
    first: Annotated[
        Path,
        typer.Argument(metavar="A", help="A file or folder with a state, as for inspect."),
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another file or folder.")],
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how two states differ, and whether they fit one loader.

    The result says how far apart they are, and whether the loader of A can load B. If the files
    hold several states, the states at the same place of both files are compared. Exit status: 0 the
    same loader at the same place, 1 something differs, 2 there is no state or it is damaged.
    """
    from stateful_gpu_loader.tools.compare_states import compare_files

    pairs = compare_files(first, second, where)
    if as_json:
        print_json([_plain_pair(pair) for pair in pairs])
    else:
        for pair in pairs:
            for line in _lines(pair, first, second):
                console().print(visible(line), markup=False)
    if not all(pair.comparison and pair.comparison.is_same for pair in pairs):
        raise typer.Exit(1)


def _plain_pair(pair: Pair) -> dict[str, Any]:
    found = {"where": pair.where, "in_first": bool(pair.first), "in_second": bool(pair.second)}
    return {**found, "comparison": pair.comparison and pair.comparison.to_dict()}


def _lines(pair: Pair, first: Path, second: Path) -> Iterator[str]:
    if pair.where:
        yield f"{pair.where}:"
    if pair.comparison is None:
        yield f"  only {first if pair.second is None else second} has a state there"
        return
    for each in pair.comparison.differences:
        meaning = f" ({each.meaning})" if each.meaning else ""
        before, now = _only_different(_said(each, each.first), _said(each, each.second))
        yield f"  {each.field}: {before} -> {now}{meaning}"
    yield f"  {_verdict(pair.comparison)}"


def _verdict(found: Comparison) -> str:
    if found.resumes is None:
        place = "the same place" if found.same_place else "different places"
        return f"{place}; one state does not describe its loader, so it may be another loader"
    if not found.resumes:
        names = f"accept={{{', '.join(map(repr, found.accept))}}}"
        if not found.accept_is_enough:
            return "the loader of A refuses B, whatever accept= names"
        return f"the loader of A refuses B; with {names} it accepts the fingerprint"
    if found.is_same:
        return "the same loader at the same place"
    if not found.same_identity:
        return "the loader of A accepts B only with seed=None, or with accept={'seed'}"
    return f"the same loader; the loader of A can resume from B, which is {_apart(found)}"


def _apart(found: Comparison) -> str:
    if found.same_place:
        return "at the same place"
    if found.samples_apart is None and found.batches_apart is None:
        return "at another place, at an unknown distance"
    apart = {"samples": found.samples_apart, "batches": found.batches_apart}
    distances = [_counted(abs(n), unit) for unit, n in apart.items() if n is not None]
    numbers = [n for n in apart.values() if n is not None]
    if not any(numbers):
        return "equally far; the differences in place are listed above"
    return f"{' or '.join(distances)} {'ahead' if max(numbers) > 0 else 'behind'}"


def _said(difference: Difference, value: Any) -> str:
    from stateful_gpu_loader.samplers.choice import order_in_words
    from stateful_gpu_loader.tools.compare_states import PLACE

    if value is not None:
        return order_in_words(value) if difference.field == "order" else str(value)
    if difference.field == "on_bad_sample":
        return "raise"
    return "nothing" if difference.kind == PLACE else "unknown"


def _only_different(first: str, second: str) -> tuple[str, str]:
    """Return two descriptions with "..." in place of long parts that are equal in both.

    >>> crop, flip = "Crop(size=(24, 24), scale=(0.08, 1.0), antialias=True)", "Flip(p=0.5)"
    >>> _only_different(f"Compose([{crop}, {flip}])", f"Compose([{crop}, Flip(p=0.25)])")
    ('Compose([..., Flip(p=0.5)])', 'Compose([..., Flip(p=0.25)])')
    """
    if max(len(first), len(second)) <= _SHORT:
        return first, second
    calls = _CALL.fullmatch(first), _CALL.fullmatch(second)
    if not (calls[0] and calls[1]) or calls[0][1] != calls[1][1]:
        return _cut(first), _cut(second)
    one, other = _items(calls[0][2]), _items(calls[1][2])
    names = [[_name_of(item) for item in items] for items in (one, other)]
    found: tuple[list[str], list[str]] = [], []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, names[0], names[1]).get_opcodes():
        if kind != "equal":
            found[0].extend(one[i:i_end])
            found[1].extend(other[j:j_end])
            continue
        for pair in zip(one[i:i_end], other[j:j_end], strict=True):
            for texts, text in zip(found, _only_different(*pair), strict=True):
                if pair[0] != pair[1]:
                    texts.append(text)
                elif texts[-1:] != ["..."]:
                    texts.append("...")
    before, now = (f"{calls[0][1]}{', '.join(items)}{calls[0][3]}" for items in found)
    return _cut(before), _cut(now)


def _name_of(item: str) -> str:
    """Return the function or keyword that an item begins with."""
    return item.partition("(")[0].partition("=")[0]


def _items(text: str) -> list[str]:
    """Return the items of a list or call, split at its own commas."""
    items, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def seek(
    path: StatesArgument,
    epoch: Annotated[
        int,
        typer.Option(
            help="Epoch to go to, counted from 0. Example: 2 is the third pass over the data."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new file; PATH is not changed.")],
    position: Annotated[
        int | None,
        typer.Option(
            help="Position in the epoch, in samples of all ranks together, counted from 0. "
            "Example: with 4 ranks and batches of 32 samples, step 10 begins at 1280."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Number of samples of the epoch that all ranks together deliver before the place. "
            "Example: after 1280, the loader resumes with the epoch's 1281st sample."
        ),
    ] = None,
    percent: Annotated[
        float | None,
        typer.Option(
            help="Percentage of the epoch before the place, 0 to 100, rounded down to the start "
            "of a step. Example: with 64 samples in steps of 8, 40 is position 24."
        ),
    ] = None,
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a copy of a state file that resumes at another place.

    From there the loader delivers the samples of an uninterrupted run. Give exactly one of
    --position, --samples and --percent. A step is one batch on each rank. Models and optimizers in
    the file are not changed. A distributed checkpoint is refused: call loader.seek() in the program
    that loads it.
    """
    from stateful_gpu_loader.tools.seek import seek_file

    moved = seek_file(
        path,
        out,
        epoch=epoch,
        position=position,
        samples=samples,
        percent=percent,
        where=where,
    )
    if as_json:
        print_json([asdict(each) for each in moved])
        return
    for each in moved:
        named = f" {each.where}" if each.where else ""
        moved_to = f"{out}{named}: epoch {each.epoch}, position {each.position}"
        console().print(visible(moved_to), markup=False)
        if each.note:
            note(each.note)


def which(
    path: StatesArgument,
    sample: Annotated[
        int | None,
        typer.Option(
            help="Index of a sample in the dataset; shows when and to which rank it is delivered. "
            "Example: 17 is dataset[17]."
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            help="Position in the epoch, in samples of all ranks together, counted from 0; shows "
            "the sample there. Example: 0 is the epoch's first sample."
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            help="Number of a step of the epoch, counted from 0; shows its samples. Example: 4 is "
            "the fifth step."
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(help="With --step: show only the batch of this rank, counted from 0."),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(help="Epoch, counted from 0; by default the epoch of the state.")
    ] = None,
    num_replicas: Annotated[
        int | None,
        typer.Option(
            help="Number of ranks (processes) that share the data, if neither the state nor the "
            "factory says it. Example: 8"
        ),
    ] = None,
    factory: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FACTORY",
            help="A function that returns your loader. It is needed for orders that a state does "
            "not hold (weights, classes, lists, mixtures) and for samples' names. The loader is "
            "not iterated.",
        ),
    ] = None,
    arg: ArgOption = None,
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the samples of a batch, or the batches that hold a sample.

    Give one of --sample, --position and --step. A step is one batch on each rank. The order is
    computed, not iterated. Only --sample with weighted, balanced or mixed draws searches all
    positions of the epoch. Exit status 1: the sample is not delivered in that epoch.
    """
    from stateful_gpu_loader.tools.which import epoch_of, state_in

    if [sample, position, step].count(None) != 2:
        raise typer.BadParameter("give one of --sample, --position and --step")
    if rank is not None and step is None:
        raise typer.BadParameter("--rank goes with --step")
    order = epoch_of(
        state_in(path, where),
        epoch=epoch,
        loader=None if factory is None else factory_of(factory, arg)(),
        num_replicas=num_replicas,
    )
    if sample is not None:
        if order.is_searched:
            note(f"this order has no inverse: searching all {order.order.n} positions of the epoch")
        placed = order.of_sample(sample)
    elif position is not None:
        placed = [order.at_position(position)]
    else:
        placed = order.at_step(step or 0, rank=rank)
    if as_json:
        samples = [asdict(each) for each in placed]
        print_json({"epoch": order.epoch, "samples": samples, "unknown": order.unknown})
    else:
        for each in placed:
            console().print(visible(_placed_line(each)), markup=False)
        if order.unknown is not None:
            note(order.unknown)
    if sample is not None and not any(each.is_delivered is not False for each in placed):
        if not as_json:
            note(f"sample {sample} is not delivered in epoch {order.epoch}")
        raise typer.Exit(1)


def _placed_line(placed: Placed) -> str:
    parts = [f"epoch {placed.epoch}"]
    places = {"step": placed.step, "rank": placed.rank, "row": placed.row}
    parts += [f"{name} {number}" for name, number in places.items() if number is not None]
    parts.append(f"position {placed.position}")
    parts.append(f"sample {placed.index}" + (f" ({placed.name})" if placed.name else ""))
    if placed.is_delivered is False:
        parts.append("not delivered: drop_last leaves out the incomplete last step")
    if placed.bad is not None:
        parts.append(f"recorded as bad: {placed.bad}")
    return ", ".join(parts)
