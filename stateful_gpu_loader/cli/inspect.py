"""The command ``inspect``: the content of the states in a file or folder, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stateful_gpu_loader.cli.output import JsonOption, complain, console, print_json, visible
from stateful_gpu_loader.cli.target import StatesArgument
from stateful_gpu_loader.errors import StateMismatch

if TYPE_CHECKING:
    from stateful_gpu_loader.tools.inspect_state import Description
    from stateful_gpu_loader.tools.state_files import FoundState, Unreadable

UNKNOWN = "unknown"
_MOST_LANES, _MOST_BAD = 16, 10


def inspect(path: StatesArgument, as_json: JsonOption = False) -> None:
    """Show the positions of the data loaders in a checkpoint.

    No code in the files is executed. Values that a state does not hold are shown as unknown. Files
    that may hold a state but cannot be read are listed. Exit status: 0 a state was found, 2 none
    was found.
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
        states = [_plain(each, description) for each, description in described]
        missed = [{**_place(each), "reason": each.reason} for each in unreadable]
        print_json({"states": states, "unreadable": missed})
    else:
        for each, description in described:
            _show(each, description)
    if not described:
        raise Search(path, (), tuple(unreadable)).nothing()
    for one in unreadable:
        complain(str(one))


def _place(found: FoundState | Unreadable) -> dict[str, Any]:
    return {"path": str(found.path), "where": found.where}


def _plain(found: FoundState, description: Description) -> dict[str, Any]:
    ranks = {"rank": found.rank, "num_ranks": found.num_ranks}
    kind = {"container": found.container, "note": found.note}
    return {**_place(found), **kind, **ranks, **description.to_dict()}


def _show(found: FoundState, description: Description) -> None:
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
    yield "epoch", _said(found.epoch)
    yield "position", _counted(found.position, found.unit)
    share = UNKNOWN if found.share is None else f"{found.share:.1%} of {found.epoch_samples}"
    yield "share of the epoch", share if found.share is None else f"{share} samples"
    yield "samples delivered", _said(found.samples_seen)
    yield "batches delivered", _said(found.batches_seen)
    if found.finished is not None:
        yield "pass is over", "yes" if found.finished else "no"
    yield "global batch size", _said(found.global_batch_size)
    yield "seed", _said(found.seed)
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
        # None has a meaning of its own in these two fields; elsewhere it means unknown.
        meant = {"on_bad_sample": "raise", "decoder_version": "none"}.get(name, UNKNOWN)
        said = order_in_words(value) if name == "order" else str(value)
        if name == "content" and value is not None:
            said = ", ".join(f"{field}: {digest}" for field, digest in value.items()) or "none"
        yield name, meant if value is None else said
    for name, reason in found.unverified.items():
        yield f"{name} not proven", reason
    yield "bad samples", _said(found.bad_samples)
    for bad in found.bad_sample_list[:_MOST_BAD]:
        yield f"  index {bad.index}", f"epoch {bad.epoch}, position {bad.position}: {bad.reason}"
    for each in found.user_objects:
        yield f"state of {each.name}", f"{each.num_bytes} bytes"


def _counted(n: int, unit: str) -> str:
    singular = {"samples": "sample", "batches": "batch"}
    return f"{n} {singular[unit] if n == 1 else unit}"


def _said(value: Any) -> str:
    return UNKNOWN if value is None else str(value)
