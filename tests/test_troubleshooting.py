"""docs/troubleshooting.md: its headings are the texts of errors that are caused here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import CaffeLMDBSource, FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.documents import ROOT
from tests.images import kept_photos, write_photo_folder
from tests.map_datasets import Indices
from tests.patience import seconds
from tests.prepared_processes import run_until_exit
from tests.torchdata_objects import Stream
from tests.user_objects import StatefulDataset

PAGE = ROOT / "docs" / "troubleshooting.md"
HEADINGS = re.findall(r"^### `(.+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

Cause = Callable[[Path], Any]


def photos(**changed: Any) -> StatefulGPULoader:
    arguments: dict[str, Any] = {"seed": 1, "shuffle": True, "transform": [T.RandomResizedCrop(16)]}
    return StatefulGPULoader(FolderSource(kept_photos()), 4, **(arguments | changed))


def refused(saved: StatefulGPULoader, other: StatefulGPULoader) -> None:
    next(iter(saved))
    other.load_state_dict(saved.state_dict())
    next(iter(other))


def other_files(folder: Path) -> None:
    write_photo_folder(folder / "others", num_classes=2, per_class=8)
    loader = StatefulGPULoader(
        FolderSource(folder / "others"), 4, True, seed=1, transform=[T.RandomResizedCrop(16)]
    )
    refused(photos(), loader)


def other_length(folder: Path) -> None:
    refused(StatefulGPULoader(Indices(12), 4, seed=1), StatefulGPULoader(Indices(13), 4, seed=1))


def other_workers(folder: Path) -> None:
    """The state of the dataset lives in the workers."""
    refused(
        StatefulGPULoader(StatefulDataset(12), 4, seed=1, num_workers=1),
        StatefulGPULoader(StatefulDataset(12), 4, seed=1, num_workers=2),
    )


class Unseeded(torch.utils.data.Sampler[int]):
    """A different order each time, from a generator that nothing seeds."""

    def __iter__(self) -> Iterator[int]:
        yield from np.random.default_rng().permutation(1000).tolist()

    def __len__(self) -> int:
        return 1000


def other_indices(folder: Path) -> None:
    loaders = [StatefulGPULoader(Indices(1000), 100, sampler=Unseeded(), seed=1) for _ in "ab"]
    refused(*loaders)


class Ended(Indices):
    """A dataset whose worker is ended by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(12)
        self.number = number

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), self.number)
        return index


def ended_by(number: int) -> Cause:
    def cause(folder: Path) -> None:
        loader = StatefulGPULoader(Ended(number), 4, num_workers=1, max_worker_restarts=0, seed=1)
        next(iter(loader))

    return cause


def damaged_file(folder: Path) -> None:
    (path, *_) = write_photo_folder(folder / "damaged", num_classes=1, per_class=4)
    path.write_bytes(path.read_bytes()[:100])
    recipes = [T.RandomResizedCrop(16)]
    list(StatefulGPULoader(FolderSource(folder / "damaged"), 4, seed=1, transform=recipes))


class OwnGenerator(Indices):
    def __init__(self) -> None:
        super().__init__(12)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> int:
        return index + int(self.rng.integers(2))


def read_again(folder: Path) -> None:
    refused(StatefulGPULoader(Stream(12), 4, seed=1), StatefulGPULoader(Stream(12), 4, seed=1))


def without_lmdb(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "lmdb", None)
        CaffeLMDBSource(folder)


def without_a_gpu(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    next(iter(photos(device="cuda")))


def program(text: str, *arguments: str) -> Cause:
    """Run a script as a user would, and raise what it printed at its end."""

    def cause(folder: Path) -> None:
        (folder / "script.py").write_text(text, encoding="utf-8")
        command = [sys.executable, *(arguments or (str(folder / "script.py"),))]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds(60),
        )
        assert run.returncode != 0
        raise RuntimeError(run.stderr)

    return cause


SPAWNING = """
import torch
from stateful_gpu_loader import StatefulGPULoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index

list(StatefulGPULoader(Numbers(), 4, num_workers=1, multiprocessing_context="spawn", seed=1))
"""

FEW_FILES = """import resource
from stateful_gpu_loader import StatefulGPULoader

resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
list(StatefulGPULoader(range(800), 4, num_workers=40, worker_type="process", seed=1))
"""


def too_many_files(folder: Path) -> None:
    code, errors = run_until_exit(FEW_FILES)
    assert code != 0
    raise RuntimeError(errors)


CAUSES: dict[str, Cause] = {
    "dataset differs": other_files,
    "length differs": other_length,
    "transform differs": lambda _: refused(photos(), photos(transform=[T.CenterCrop(16)])),
    "seed differs": lambda _: refused(photos(), photos(seed=2)),
    "order differs": lambda _: refused(photos(), photos(shuffle=False)),
    "decoder differs": lambda _: refused(
        photos(decoder="torchvision"), photos(decoder="torchcodec")
    ),
    "num_workers differs": other_workers,
    "sampler differs": other_indices,
    "killed by signal": ended_by(signal.SIGKILL),
    "out of shared memory": ended_by(signal.SIGBUS),
    "bad sample": damaged_file,
    "differ in size": lambda _: next(iter(photos(transform=[T.RandomHorizontalFlip()]))),
    "private generators": lambda _: next(iter(StatefulGPULoader(OwnGenerator(), 4, seed=1))),
    "are read again": read_again,
    "is a path": lambda folder: StatefulGPULoader(str(folder), 4),
    "needs the package": without_lmdb,
    "cannot be used": without_a_gpu,
    "imported the main script": program(SPAWNING),
    "could not unpickle": program("", "-c", SPAWNING),
    "Too many open files": too_many_files,
}
"""Cause of the error in each heading, by words of the heading."""

SLOW = {"imported the main script", "could not unpickle", "Too many open files"}


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=pytest.mark.processes if words in SLOW else ()) for words in CAUSES],
)
def test_an_error_has_the_text_of_its_heading(words: str, tmp_path: Path) -> None:
    (heading,) = [heading for heading in HEADINGS if words in heading]
    with pytest.raises((Exception, Warning)) as caught:
        CAUSES[words](tmp_path)
    pattern = ".*".join(map(re.escape, heading.split("...")))
    assert re.search(pattern, str(caught.value), re.DOTALL), f"{heading}\n{caught.value}"


def test_every_heading_has_a_cause() -> None:
    assert len(HEADINGS) == len(CAUSES)
