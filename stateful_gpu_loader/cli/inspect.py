"""``inspect``: what the loaders' states in a checkpoint say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from stateful_gpu_loader.cli.output import JsonOption, complain, console, print_json
from stateful_gpu_loader.tools.describe_state import StateDescription, describe_state
from stateful_gpu_loader.tools.state_files import search

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="A checkpoint file or folder: of torch.save, Lightning, DCP, Accelerate, "
        "transformers, torchtitan, Checkpoint, or JSON.",
    ),
]


def inspect(path: PathArgument, json: JsonOption = False) -> None:
    """Show where each data loader stood that was saved in a checkpoint.

    Nothing is loaded into a model, and no code in the checkpoint is executed.
    """
    searched = search(path)
    found = [(one, describe_state(one.state)) for one in searched.states]
    for text in searched.unreadable:
        complain(text)
    if json:
        print_json(
            [
                {
                    "path": str(one.path),
                    "where": one.where,
                    "container": one.container,
                    **asdict(description),
                    "share": description.share,
                    "steps": description.steps,
                }
                for one, description in found
            ]
        )
        return
    out = console()
    for one, description in found:
        place = f", at {one.where}" if one.where else ""
        out.print(f"[bold]{one.path}[/bold] ({one.container}{place})")
        if one.note:
            out.print(one.note)
        out.print(_table(description))


def _table(found: StateDescription) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(found):
        table.add_row(name, value)
    return table


def _rows(found: StateDescription) -> list[tuple[str, str]]:
    share = "" if found.share is None else f" of {found.epoch_length:,} ({found.share:.1%})"
    rows = [
        ("written by", found.writer),
        ("epoch", "unknown" if found.epoch is None else f"{found.epoch} (counted from 0)"),
        ("position", f"{found.position:,}{share} {found.unit}"),
        ("step of the epoch", _number(found.steps)),
        ("samples seen", f"{_number(found.samples_seen)}{' in all epochs' * bool(found.epoch)}"),
        ("global batch size", _number(found.global_batch_size)),
        ("seed", _number(found.seed, "d")),
    ]
    for lane in found.lanes:
        shard = "read to its end" if lane.shard is None else f"in its shard {lane.shard}"
        rows.append((f"lane {lane.lane} of {found.num_lanes}", f"{lane.num_samples:,}, {shard}"))
    rows.append(("bad samples", f"{found.num_bad_samples:,}"))
    for bad in found.bad_samples:
        at = f"epoch {bad.epoch}, position {bad.position}"
        rows.append((f"  index {bad.index}", f"{bad.reason} ({at})"))
    rows += [("state of yours", text) for text in found.user_states]
    rows += [(f"compared: {name}", _value(value)) for name, value in found.fingerprint.items()]
    rows += [("not verified", text) for text in found.unverified]
    rows += [("not known", text) for text in found.unknown]
    return [(name, value.replace("[", "\\[")) for name, value in rows]


def _number(number: int | None, form: str = ",d") -> str:
    return "unknown" if number is None else format(number, form)


def _value(value: object) -> str:
    return "nothing (not compared)" if value is None else str(value)
