"""The command ``preview``, run as a user does."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from tests.cli.command import command
from tests.images import write_photo_folder

PROGRAM = """
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T


def make_loader(batch_size=4):
    return StatefulGPULoader(
        FolderSource("photos"), batch_size=batch_size, seed=1, transform=[T.RandomResizedCrop(32)]
    )
"""


def test_a_sheet_and_a_page_are_written_from_a_checkpoint(tmp_path: Path) -> None:
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=4)
    (tmp_path / "train.py").write_text(PROGRAM)
    from stateful_gpu_loader import transforms as T

    loader = StatefulGPULoader(
        FolderSource(tmp_path / "photos"),
        batch_size=2,
        seed=1,
        transform=[T.RandomResizedCrop(32)],
    )
    next(iter(loader))
    torch.save({"loader": loader.state_dict()}, tmp_path / "last.pt")
    done = command(
        *["preview", "train:make_loader", "-o", "sheet.png", "--html", "page.html"],
        *["--state", "last.pt", "--arg", "batch_size=2"],
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sheet.png and page.html: 2 samples, positions 2 to 3\n"
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width <= 1600
    assert "position 3" in (tmp_path / "page.html").read_text()
