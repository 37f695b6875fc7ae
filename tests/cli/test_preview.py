"""The command ``preview``, run as a user does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader.cli.app import app
from tests.cli.command import command
from tests.datasets.tar.tar_files import write_photo_tars
from tests.images import write_photo_folder

PROGRAM = """
from pathlib import Path

from stateful_gpu_loader import FolderSource, StatefulGPULoader, TarShards
from stateful_gpu_loader import transforms as T


def make_loader(batch_size=4):
    return StatefulGPULoader(
        FolderSource("photos"), batch_size=batch_size, seed=1, transform=[T.RandomResizedCrop(32)]
    )


def make_lanes(folder):
    return StatefulGPULoader(
        TarShards(sorted(Path(folder).glob("*.tar"))), batch_size=2, transform=[T.CenterCrop(32)]
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


def preview_here(folder: Path, *arguments: str) -> str:
    program = folder / "program_of_preview.py"
    program.write_text(PROGRAM)
    done = CliRunner().invoke(app, ["preview", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_json_tells_a_program_what_the_pictures_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=4)
    monkeypatch.chdir(tmp_path)
    target, sheet = f"{tmp_path}/program_of_preview.py:make_loader", "sheet.png"
    told = json.loads(preview_here(tmp_path, target, "-o", sheet, "--batches", "2", "--json"))
    assert (told["sheet"], told["page"]) == (sheet, None)
    assert [sample["batch"] for sample in told["samples"]] == [0] * 4 + [1] * 4
    assert [sample["index"] for sample in told["samples"]] == list(range(8))
    for sample in told["samples"]:
        assert sample["drawn"][0]["recipe"] == "RandomResizedCrop"
        assert sample["picture"]["file"] == sheet
        left, top, right, bottom = sample["picture"]["box"]
        with Image.open(sheet) as image:
            assert 0 <= left < right <= image.width
            assert 0 <= top < bottom <= image.height


def test_a_loader_of_shards_tells_its_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photo_tars(tmp_path / "tars")
    monkeypatch.chdir(tmp_path)
    options = ["--arg", f"folder={tmp_path}/tars", "--batches", "2", "-o", "sheet.png"]
    target = f"{tmp_path}/program_of_preview.py:make_lanes"
    assert preview_here(tmp_path, target, *options) == "sheet.png: 4 samples, lanes 0, 1\n"
    told = json.loads(preview_here(tmp_path, target, *options, "--json"))
    names = ["lane 0, sample 0", "lane 0, sample 1", "lane 1, sample 0", "lane 1, sample 1"]
    assert [sample["name"] for sample in told["samples"]] == names
    assert [sample["lane"] for sample in told["samples"]] == [0, 0, 1, 1]
