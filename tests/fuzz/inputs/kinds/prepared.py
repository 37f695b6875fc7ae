"""Directories of prepared images: damage is repaired, or refused."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from stateful_gpu_loader import FolderSource, PreparedSource
from stateful_gpu_loader import transforms as T
from tests.fuzz.inputs.kind import Broken, Kind
from tests.images import write_photo_folder

_FILES = ("index.bin", "pixels-000000.bin", "prepared.json")


class PreparedFolders(Kind):
    """The index, the pixels and the description of three images, one of them damaged."""

    name = "prepared folder"
    share = 0.4
    warns = (UserWarning,)  # The description may name other versions.

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        write_photo_folder(folder / "photos", num_classes=1, per_class=3)
        self._source = FolderSource(folder / "photos")
        self._sound = folder / "sound"
        self._images = _read(PreparedSource(self._source, self._sound, _recipes()))
        self.examples = [(self._sound / name).read_bytes() for name in _FILES]
        logging.getLogger("stateful_gpu_loader.datasets.prepared").setLevel(logging.ERROR)

    def read(self, content: bytes, example: int) -> None:
        damaged = self.folder / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(self._sound, damaged)
        (damaged / _FILES[example]).write_bytes(content)
        if _read(PreparedSource(self._source, damaged, _recipes())) != self._images:
            raise Broken("other images were read in silence")


def _recipes() -> list[T.Recipe]:
    return [T.Resize((20, 24))]


def _read(source: PreparedSource) -> list[bytes]:
    return [bytes(source[i][0].numpy()) for i in range(len(source))]


KINDS = (PreparedFolders,)
