"""``preview``: the coming batches as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, console, print_json, visible
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, factory_of
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.tools.preview import NoPreview, PreviewedSample
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
    as_json: JsonOption = False,
) -> None:
    """Draw the coming batch: each image, its label, and which part of the original it shows.

    Nothing of the loader changes by looking at it.

    --json prints an object with "sheet", "page" and "samples". A sample has its "batch"; "name",
    "index" and "position", or "lane", "lane_sample" and "stored" in a sharded dataset; "label";
    "size" and "original_size" as [width, height]; "crop" as [left, top, right, bottom], "corners"
    and "flips", in pixels of the original; "drawn", the numbers of each recipe; "boxes"; "notes";
    and "picture", the "file" and the "box" in it that shows the sample. What is not known is null.
    """
    try:
        # Pillow is needed here alone.
        from stateful_gpu_loader.tools.preview_pictures import write_html, write_png
    except ModuleNotFoundError as error:
        raise NoPreview(
            f"preview needs the package {error.name!r}, which is not installed. "
            "Remedy: pip install 'stateful_gpu_loader[cli]'"
        ) from error
    loader = factory_of(factory, arg)()
    if state is not None and isinstance(loader, StatefulGPULoader):
        _load(loader, state)
    samples = samples_of(loader, batches)
    boxes = write_png(out, samples)
    if page is not None:
        write_html(page, samples)
    if as_json:
        pictures = [{"picture": {"file": str(out), "box": list(box)}} for box in boxes]
        described = [
            sample.to_dict() | picture for sample, picture in zip(samples, pictures, strict=True)
        ]
        written = None if page is None else str(page)
        print_json({"sheet": str(out), "page": written, "samples": described})
        return
    files = str(out) if page is None else f"{out} and {page}"
    console().print(visible(f"{files}: {len(samples)} samples{_where(samples)}"), markup=False)


def _where(samples: list[PreviewedSample]) -> str:
    """Where in the epoch they are, as far as that is known."""
    lanes = sorted({each.place.lane for each in samples if each.place.lane is not None})
    if lanes:
        return f", lane{'s' * (len(lanes) > 1)} {', '.join(map(str, lanes))}"
    numbers = [each.place.position for each in samples if each.place.position is not None]
    return f", positions {min(numbers)} to {max(numbers)}" if numbers else ""


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
