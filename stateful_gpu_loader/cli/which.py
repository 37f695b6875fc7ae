"""The command ``which``: the samples at a place of a stream, and the places of a sample."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, console, note, print_json, visible
from stateful_gpu_loader.cli.target import ArgOption, StatesArgument, WhereOption, factory_of

if TYPE_CHECKING:
    from stateful_gpu_loader.tools.which import Placed


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
    computed, not iterated, so the length of the dataset does not matter. Only --sample with
    weighted, balanced or mixed draws searches all positions of the epoch. Exit status 1: the sample
    is not delivered in that epoch.
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
            console().print(visible(_line(each)), markup=False)
        if order.unknown is not None:
            note(order.unknown)
    if sample is not None and not any(each.is_delivered is not False for each in placed):
        if not as_json:
            note(f"sample {sample} is not delivered in epoch {order.epoch}")
        raise typer.Exit(1)


def _line(placed: Placed) -> str:
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
