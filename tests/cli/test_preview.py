"""The command ``preview``."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from PIL import Image

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
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


def make_lanes():
    return StatefulGPULoader(
        TarShards(sorted(Path("tars").glob("*.tar"))), batch_size=2, transform=[T.CenterCrop(32)]
    )
"""


def test_a_sheet_and_a_page_are_written_from_a_checkpoint(tmp_path: Path) -> None:
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=4)
    (tmp_path / "train.py").write_text(PROGRAM)
    source = FolderSource(tmp_path / "photos")
    loader = StatefulGPULoader(source, batch_size=2, seed=1, transform=[T.RandomResizedCrop(32)])
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
    options = ["-o", "sheet.png", "--batches", "2", "--json"]
    report = json.loads(command("preview", "train:make_loader", *options, cwd=tmp_path).stdout)
    assert (report["sheet"], report["page"]) == ("sheet.png", None)
    assert [sample["batch"] for sample in report["samples"]] == [0] * 4 + [1] * 4
    assert [sample["index"] for sample in report["samples"]] == list(range(8))
    assert {sample["picture"]["file"] for sample in report["samples"]} == {"sheet.png"}
    assert len({tuple(sample["picture"]["box"]) for sample in report["samples"]}) == 8


def test_a_loader_of_shards_shows_its_lanes(tmp_path: Path) -> None:
    write_photo_tars(tmp_path / "tars")
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ["preview", "train:make_lanes", "--batches", "2", "-o", "sheet.png"]
    assert command(*options, cwd=tmp_path).stdout == "sheet.png: 4 samples, lanes 0, 1\n"
    report = json.loads(command(*options, "--json", cwd=tmp_path).stdout)
    names = ["lane 0, sample 0", "lane 0, sample 1", "lane 1, sample 0", "lane 1, sample 1"]
    assert [sample["name"] for sample in report["samples"]] == names
    assert [sample["lane"] for sample in report["samples"]] == [0, 0, 1, 1]


def test_the_folder_of_the_picture_is_made_and_a_wrong_path_is_refused_early(
    tmp_path: Path,
) -> None:
    write_photo_folder(tmp_path / "photos", num_classes=1, per_class=2)
    (tmp_path / "train.py").write_text(PROGRAM)
    done = command("preview", "train:make_loader", "-o", "new/sheet.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new/sheet.png").is_file()
    for out, reason in (("photos", "is a folder"), ("train.py/a.png", "cannot be written")):
        done = command("preview", "nowhere:make_loader", "-o", out, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"Error: {out!r} {reason}")
        assert "Errno" not in done.stderr
