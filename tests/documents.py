"""Runs the Python blocks of a documentation page, one after another, in a folder with data.

A block must print what the text block right after it shows, or nothing. A block that cannot run in
the tests says so to readers in its first line, `# Not run by the tests: REASON`.
"""

from __future__ import annotations

import contextlib
import io
import re
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import torch

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.datasets.coco.coco_files import write_coco
from tests.datasets.tar.tar_files import write_photo_tars
from tests.images import write_photo_folder

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"^```python(?: title=\"\S+\")?\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
NOT_RUN = re.compile(r"# Not run by the tests: (\S.*)\n")

HARMLESS = (
    "torch.distributed is disabled, unavailable or uninitialized",  # DCP in a single process
    r"\.fit\(ckpt_path=\"last\"\) is set, but there is no last checkpoint",  # Lightning
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning
    "The 'train_dataloader' does not have many workers",  # Lightning
)
"""Warnings of other packages that the pages provoke on purpose."""


CHATTY = {"docs/trainers/lightning.md", "docs/finding-the-bottleneck.md"}
"""Pages whose packages print by themselves, or whose figures depend on the machine."""


@dataclass(frozen=True)
class Block:
    """A block of Python, the output that its page shows, and why it is not run, or None."""

    code: str
    printed: str
    why_not_run: str | None


def blocks_of(page: Path) -> list[Block]:
    found = []
    for code, printed in BLOCK.findall(page.read_text(encoding="utf-8")):
        reason = NOT_RUN.match(code)
        found.append(Block(code, printed, reason and reason[1]))
    return found


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_page(page: Path, folder: Path) -> None:
    """Run the blocks of a page in one namespace, in ``folder``, which is the current directory."""
    write_photo_folder(folder / "photos", num_classes=2, per_class=8)
    write_photo_tars(folder / "tars")
    names: dict[str, Any] = {"__name__": "documented"}
    if prepare := PREPARED.get(name_of(page)):
        names |= prepare(folder)
    for number, block in enumerate(blocks_of(page), 1):
        if block.why_not_run is not None:
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output), warnings.catch_warnings(), _one_thread():
            for message in HARMLESS:
                warnings.filterwarnings("ignore", message)
            exec(compile(block.code, f"{name_of(page)}, block {number}", "exec"), names)
        shown = block.printed if name_of(page) in CHATTY else output.getvalue()
        assert shown == block.printed, f"{name_of(page)}, block {number}"


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute in one thread: on a busy machine several threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_table(path: Path, photos: list[Path], first_label: int = 0) -> Path:
    """Write JPEG files into an SQLite file, as in docs/adding-a-source.md; return its path."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE images(data BLOB, label INTEGER)")
        rows = [(photo.read_bytes(), label) for label, photo in enumerate(photos, first_label)]
        connection.executemany("INSERT INTO images VALUES (?, ?)", rows)
    return path


def _table(folder: Path) -> dict[str, Any]:
    write_table(folder / "photos.sqlite", sorted((folder / "photos").rglob("*.jpg")))
    return {}


def _recipes(folder: Path) -> dict[str, Any]:
    """Write a COCO folder, and tars in a bucket that fsspec's in-memory file system simulates."""
    (folder / "coco").mkdir()
    write_coco(folder / "coco")
    bucket = fsspec.filesystem("memory")
    for tar in (folder / "tars").iterdir():
        bucket.pipe(f"memory://my-bucket/{tar.name}", tar.read_bytes())
    return {}


def _training(folder: Path) -> dict[str, Any]:
    """Return what a training script defines before the lines that a page shows."""
    model = torch.nn.Linear(3, 1)
    recipes = [T.RandomResizedCrop(16)]
    return {
        "loader": StatefulGPULoader(
            FolderSource(folder / "photos"), 4, shuffle=True, seed=1, transform=recipes
        ),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }


def _lightning(folder: Path) -> dict[str, Any]:
    from lightning.pytorch import LightningModule

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any) -> torch.Tensor:
            return self.layer(batch[0].float().mean(dim=(2, 3))).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return {**_training(folder), "model": Model()}


def _measured(folder: Path) -> dict[str, Any]:
    """Return a training step, and the place where its figures are logged."""
    return {"train_step": lambda *batch: None, "writer": Mock(), "wandb": Mock(), "step": 0}


PREPARED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "docs/adding-a-source.md": _table,
    "docs/finding-the-bottleneck.md": _measured,
    "docs/recipes.md": _recipes,
    "docs/trainers/fabric.md": _training,
    "docs/trainers/accelerate.md": _training,
    "docs/trainers/lightning.md": _lightning,
    "docs/trainers/plain-torch.md": _training,
}
"""Files and names that a page's blocks find beside the photographs, by page."""
