"""A progress bar is drawn only on a terminal."""

from __future__ import annotations

import io
import sys
from functools import partial
from pathlib import Path

import pytest
import tqdm
from PIL import Image

from stateful_gpu_loader import FolderSource
from stateful_gpu_loader.datasets.storage import index_files


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "0.jpg")
    return tmp_path


def drawn(stderr: io.StringIO, images: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(index_files, "DELAY", 0)
    monkeypatch.setattr(tqdm, "tqdm", partial(tqdm.tqdm, mininterval=0))
    monkeypatch.setattr(sys, "stderr", stderr)
    FolderSource(images)
    return stderr.getvalue()


def test_a_terminal_sees_what_is_indexed(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(_Terminal(), images, monkeypatch)
    assert f"listing {images}" in text
    assert "0.00/2.00" in text
    assert "2.00/2.00" in text


def test_a_log_file_sees_nothing_and_tqdm_is_not_needed(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drawn(io.StringIO(), images, monkeypatch) == ""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert drawn(_Terminal(), images, monkeypatch) == ""
