"""The command ``preview``: the coming batches as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateful_gpu_loader.cli.output import JsonOption, check_output, console, print_json, visible
from stateful_gpu_loader.cli.target import ArgOption, FactoryArgument, factory_of
from stateful_gpu_loader.errors import LoaderError

if TYPE_CHECKING:
    from stateful_gpu_loader.loader import StatefulGPULoader
    from stateful_gpu_loader.tools.preview import PreviewedSample


def preview(
    factory: FactoryArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The PNG file to write.")],
    state: Annotated[
        Path | None,
        typer.Option(help="A checkpoint with the loader's state; the batch after it is shown."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html",
            help="Also write an HTML page that shows, on hover, the numbers that each recipe drew.",
        ),
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="Number of batches to show.")] = 1,
    arg: ArgOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the coming batch: images, labels and crops.

    Each image is shown beside its original. The loader does not change.

    --json prints an object with "sheet", "page" and "samples". Each sample has "batch", "label",
    "boxes" and "notes". Its place is given by "name", "index" and "position". In a sharded dataset
    it is given by "lane", "lane_sample" and "stored".

    The sizes "size" and "original_size" are [width, height]. The "crop" is [left, top, right,
    bottom] in pixels of the original, like "corners" and "flips". The list "drawn" holds the
    numbers of each recipe. The "picture" names the "file" and the "box" in it that shows the
    sample. Unknown values are null.
    """
    from stateful_gpu_loader.loader import StatefulGPULoader
    from stateful_gpu_loader.tools.preview import NoPreview
    from stateful_gpu_loader.tools.preview import preview as samples_of

    try:
        # Pillow is needed here alone.
        from stateful_gpu_loader.tools.preview_pictures import write_html, write_png
    except ModuleNotFoundError as error:
        raise NoPreview(
            f"preview needs the package {error.name!r}, which is not installed. "
            "Remedy: pip install 'stateful_gpu_loader[cli]'"
        ) from error
    for path in [out] if page is None else [out, page]:
        check_output(path)
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
    """Return the places of the samples in the epoch, as far as they are known."""
    lanes = sorted({each.place.lane for each in samples if each.place.lane is not None})
    if lanes:
        return f", lane{'s' * (len(lanes) > 1)} {', '.join(map(str, lanes))}"
    numbers = [each.place.position for each in samples if each.place.position is not None]
    return f", positions {min(numbers)} to {max(numbers)}" if numbers else ""


def _load(loader: StatefulGPULoader[object], path: Path) -> None:
    """Load the only state in a file or folder, or the state that all ranks share."""
    from stateful_gpu_loader.tools.state_files import find_states

    found = find_states(path)
    if any(each.state != found[0].state for each in found):
        places = ", ".join(f"{each.path} {each.where}".strip() for each in found[:8])
        raise LoaderError(
            f"{str(path)!r} holds {len(found)} different states of loaders: {places}. Remedy: pass "
            "a file that holds only the state of this loader"
        )
    loader.load_state_dict(found[0].state)
