"""The command ``inspect``: what the states in a file or folder hold, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from stateful_gpu_loader.cli.output import JsonOption, complain, console, print_json
from stateful_gpu_loader.tools.inspect_state import Description, describe
from stateful_gpu_loader.tools.state_files import FoundState, search

UNKNOWN = "unknown"
_MOST_LANES, _MOST_BAD = 16, 10


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A file or folder: of torch.save, Lightning, Accelerate, transformers, torchtitan "
            "or another that saves with torch.distributed.checkpoint, of this package, or JSON.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show where data loaders stand, from their states in a checkpoint, without executing any code.

    Whatever a state does not say is shown as unknown.
    """
    found = search(path)
    described = [(each, describe(each.state)) for each in found.states]
    if as_json:
        print_json([_plain(each, description) for each, description in described])
    else:
        for each, description in described:
            _show(each, description)
    for sentence in found.unreadable:
        complain(sentence)


def _plain(found: FoundState, description: Description) -> dict[str, Any]:
    place = {"path": str(found.path), "where": found.where, "container": found.container}
    return {**place, "note": found.note, **description.to_dict()}


def _show(found: FoundState, description: Description) -> None:
    place = f", {found.where}" if found.where else ""
    console().print(Text(f"{found.path}{place} ({found.container})", style="bold"))
    if found.note:
        console().print(Text(found.note))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(description):
        table.add_row(name, Text(value))
    console().print(table)
    console().print()


def _rows(found: Description) -> Iterator[tuple[str, str]]:
    version = "" if found.version is None else f", version {found.version}"
    yield "written by", f"{found.library}{version}"
    yield "epoch", _said(found.epoch)
    yield "position", f"{found.position} {found.unit}"
    share = UNKNOWN if found.share is None else f"{found.share:.1%} of {found.epoch_samples}"
    yield "share of the epoch", share if found.share is None else f"{share} samples"
    yield "samples delivered", _said(found.samples_seen)
    yield "batches delivered", _said(found.batches_seen)
    if found.finished is not None:
        yield "pass is over", "yes" if found.finished else "no"
    yield "global batch size", _said(found.global_batch_size)
    yield "seed", _said(found.seed)
    yield "ranks", found.ranks
    if found.ahead:
        yield "delivered ahead", f"{found.ahead} batches, before an older one"
    for lane in found.lanes[:_MOST_LANES]:
        place = "ended" if lane.ended else f"{lane.samples} samples, in its shard {lane.shard}"
        yield f"lane {lane.lane}", place
    if len(found.lanes) > _MOST_LANES:
        yield "more lanes", f"{len(found.lanes) - _MOST_LANES}; --json has them all"
    for name, value in (found.fingerprint or {}).items():
        # Both are None where there is nothing to tell, and not where it is unknown.
        meant = {"on_bad_sample": "raise", "decoder_version": "none"}.get(name, UNKNOWN)
        yield name, meant if value is None else str(value)
    for name, reason in found.unverified.items():
        yield f"{name} not proven", reason
    yield "bad samples", _said(found.bad_samples)
    for bad in found.bad_sample_list[:_MOST_BAD]:
        yield f"  index {bad.index}", f"epoch {bad.epoch}, position {bad.position}: {bad.reason}"
    for each in found.user_objects:
        yield f"state of {each.name}", f"{each.num_bytes} bytes"


def _said(value: Any) -> str:
    return UNKNOWN if value is None else str(value)
