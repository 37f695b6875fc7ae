"""Indices that are kept beside a file: a damaged index is built again."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from stateful_gpu_loader import RecordIOSource, TarSource, TFRecordSource
from tests.datasets.tar.tar_files import sample_entries, tar_bytes
from tests.fuzz.inputs import changed_values
from tests.fuzz.inputs.kind import Broken, Kind
from tests.fuzz.inputs.kinds.records import _frames


class KeptIndices(Kind):
    """Indices of tar, TFRecord and RecordIO files: bytes, and arrays in a sound container."""

    name = "kept index"
    share = 0.4

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        tar, records, images = folder / "a.tar", folder / "a.tfrecord", folder / "a.rec"
        tar.write_bytes(tar_bytes(sample_entries(0, 3)))
        records.write_bytes(b"".join(_frames("tfrecord")))
        images.write_bytes(b"".join(_frames("recordio")))
        self._made: Any = (
            lambda: TarSource(tar, image="jpg", target="cls"),
            lambda: TFRecordSource(records),
            lambda: RecordIOSource(images),
        )
        self._sound = [_samples(make()) for make in self._made]
        self._places = [next(folder.glob(f".{path.name}.*.npz")) for path in (tar, records, images)]
        self.examples = [place.read_bytes() for place in self._places]

    def change(self, random: Random, content: bytes) -> bytes:
        if random.random() < 0.5:
            return super().change(random, content)
        try:
            with np.load(io.BytesIO(content), allow_pickle=True) as file:
                arrays = {name: file[name] for name in file.files}
        except Exception:
            return super().change(random, content)
        buffer = io.BytesIO()
        np.savez(buffer, **_changed(random, arrays))
        return buffer.getvalue()

    def read(self, content: bytes, example: int) -> None:
        place = self._places[example]
        place.unlink(missing_ok=True)
        if place.is_dir():
            shutil.rmtree(place)
        place.write_bytes(content)
        if _samples(self._made[example]()) != self._sound[example]:
            raise Broken("other samples were read in silence")


def _samples(source: Any) -> list[str]:
    return [repr(source[i]) for i in range(len(source))]


def _changed(random: Random, arrays: dict[str, Any]) -> dict[str, Any]:
    name = random.choice(list(arrays))
    array = arrays[name]
    way = random.randrange(5)
    if way == 0:
        return {other: arrays[other] for other in arrays if other != name}
    if way == 1:
        return {**arrays, name: arrays[random.choice(list(arrays))]}
    if way == 2:
        kinds = (np.int32, np.float64, np.uint8, object, "U9")
        try:
            return {**arrays, name: array.astype(random.choice(kinds))}
        except (ValueError, TypeError):
            return {**arrays, name: array[..., None]}
    if array.ndim and array.size and array.dtype.kind in "iu":
        changed = array.copy()
        values: Any = changed_values.changed(random, int(changed.flat[0]), plain=True)
        other = values if isinstance(values, int) else 0
        changed.flat[random.randrange(changed.size)] = other % 256
        return {**arrays, name: changed if way == 3 else array[: random.randrange(len(array))]}
    return {**arrays, name: array.reshape(-1)[:0] if way == 3 else array[None]}


KINDS = (KeptIndices,)
