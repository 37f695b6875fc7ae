"""Tars by index through the loader: batches, whose state is refused, and what may be bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateful_gpu_loader import StateMismatch
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.tar.source import TarSource
from tests.conformance import flat
from tests.datasets.image_loaders import make_loader
from tests.datasets.tar.tar_files import photo_entries, write_photo_tars, write_tar


def test_the_batches_are_the_samples_of_the_tars(tmp_path: Path) -> None:
    source = TarSource(write_photo_tars(tmp_path), target="__key__")
    batches = [keys for _, keys in make_loader(source, transform=T.Resize((8, 8)))]
    assert sorted(flat(batches)) == [f"photos/{number:04d}" for number in range(13)]


def test_a_state_of_other_tars_is_refused(tmp_path: Path) -> None:
    paths = write_photo_tars(tmp_path)
    loader = make_loader(TarSource(paths))
    next(iter(loader))
    state = loader.state_dict()
    write_tar(paths[1], [(name.replace("photos", "others"), c) for name, c in photo_entries(4, 7)])
    with pytest.raises(StateMismatch, match="dataset") as caught:
        make_loader(TarSource(paths)).load_state_dict(state)
    assert caught.value.field == "dataset"


def test_a_damaged_image_is_replaced_and_a_replaced_tar_is_not(tmp_path: Path) -> None:
    """The bytes of one sample are bad; a file that is another one ends the job."""
    path = write_photo_tars(tmp_path, (6,))[0]
    source = TarSource(path)
    sizes = source._members.members[source._chosen[2]]
    with open(path, "r+b") as file:
        file.seek(int(sizes[0, 0]))
        file.write(bytes(int(sizes[0, 1])))
    loader = make_loader(source, on_bad_sample="replace", transform=T.Resize((8, 8)))
    assert len(list(flat([labels for _, labels in loader]))) == 6
    assert [bad.index for bad in loader.bad_samples.samples] == [2]
    write_tar(path, photo_entries(20, 26))
    with pytest.raises(OSError, match="replaced since it was indexed"):
        list(make_loader(source, on_bad_sample="replace", transform=T.Resize((8, 8))))
