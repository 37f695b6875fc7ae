"""``preview``: the coming batches as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stateful_gpu_loader.cli.output import console
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, factory_of
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.tools.preview import NoPreview
from stateful_gpu_loader.tools.preview import preview as samples_of
from stateful_gpu_loader.tools.state_files import find_states


def preview(
    factory: FactoryArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The PNG file to write.")],
    state: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint with the loader's state: shows the batch that comes next from there."
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--html", help="Also write a page that shows on hover what each recipe drew."),
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="Number of batches to show.")] = 1,
    arg: ArgOption = None,
) -> None:
    """Draw the coming batch: each image, its label, and which part of the original it shows.

    Nothing of the loader changes by looking at it.
    """
    try:
        # Pillow is needed here alone.
        from stateful_gpu_loader.tools.contact_sheet import write_html, write_png
    except ModuleNotFoundError as error:
        raise NoPreview(
            f"preview needs the package {error.name!r}, which is not installed. "
            "Remedy: pip install 'stateful_gpu_loader[cli]'"
        ) from error
    loader = factory_of(factory, arg)()
    if state is not None and isinstance(loader, StatefulGPULoader):
        _load(loader, state)
    samples = samples_of(loader, batches)
    write_png(out, samples)
    if page is not None:
        write_html(page, samples)
    written = str(out) if page is None else f"{out} and {page}"
    numbers = [sample.position for sample in samples if sample.position is not None]
    where = f", positions {min(numbers)} to {max(numbers)}" if numbers else ""
    console().print(f"{written}: {len(samples)} samples{where}", markup=False)


def _load(loader: StatefulGPULoader[object], path: Path) -> None:
    """Load the only state in a file or folder, or the one that all ranks share."""
    found = find_states(path)
    if any(each.state != found[0].state for each in found):
        places = ", ".join(f"{each.path} {each.where}".strip() for each in found[:8])
        raise LoaderError(
            f"{str(path)!r} holds {len(found)} different states of loaders: {places}. Remedy: name "
            "a file with the state of this loader alone"
        )
    loader.load_state_dict(found[0].state)
