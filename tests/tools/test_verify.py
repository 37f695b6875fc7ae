"""verify_resume: exact loaders pass, planted faults are found, and limits are reported."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchdata.nodes
import webdataset
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stateful_gpu_loader import FolderSource, StatefulGPULoader, TarShards, verify_resume
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.tools.verify_report import Check, Report, ResumeDiffers, VerifyError
from stateful_gpu_loader.tools.verify_runs import fresh
from tests.datasets.tar.tar_files import sample_entries, write_photo_tars, write_tar
from tests.images import write_photo_folder
from tests.map_datasets import Indices
from tests.patience import seconds
from tests.tools import faults
from tests.user_objects import PlainIterable, StatefulIterable

BATCHES = 5

MakeLoader = Callable[[], Any]


def map_style(function: Callable[[int], Any], **arguments: Any) -> MakeLoader:
    """Return a factory that a new process cannot call, which saves the start of one."""
    return lambda: StatefulGPULoader(faults.Applied(function), **{"batch_size": 4, **arguments})


def without_processes(function: Callable[[int], Any], **arguments: Any) -> MakeLoader:
    """Return a factory whose workers cannot be spawned, nor forked with the fixture ``spawns``."""
    return map_style(function, collate_fn=lambda batch: default_collate(batch), **arguments)


def outcomes(report: Report) -> dict[str, str]:
    """Return the outcome of each check, by its name and its place."""
    return {f"{check.name}, {check.place}": check.outcome for check in report.checks}


COSTLY = {"images", "iterable with state", "numpy", "torch", "unseeded", "count"}
"""Cases much like others, or with many processes."""


def cases_of(case: str) -> Any:
    return pytest.param(case, marks=pytest.mark.processes if case in COSTLY else ())


# Loaders that are exact


def image_folder(folder: Path) -> MakeLoader:
    write_photo_folder(folder, num_classes=2, per_class=4)
    recipes = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    return lambda: StatefulGPULoader(
        FolderSource(folder), batch_size=2, shuffle=True, num_workers=1, transform=recipes
    )


def tar_shards(folder: Path) -> MakeLoader:
    paths = write_photo_tars(folder)
    recipes = [T.RandomResizedCrop(32)]
    return lambda: StatefulGPULoader(
        TarShards(paths), batch_size=2, shuffle=True, seed=1, transform=recipes
    )


EXACT: dict[str, Callable[[Path], MakeLoader]] = {
    "images": image_folder,
    "tar shards": tar_shards,
    "iterable with state": lambda folder: (
        lambda: StatefulGPULoader(StatefulIterable([7, 5]), batch_size=2, num_workers=2)
    ),
    "iterable without state": lambda folder: (
        lambda: StatefulGPULoader(PlainIterable([7, 5]), batch_size=2)
    ),
    "single samples": lambda folder: map_style(faults.augmented, batch_size=None),
}


@pytest.mark.parametrize("kind", [cases_of(each) for each in EXACT])
def test_no_false_alarm(kind: str, tmp_path: Path) -> None:
    report = verify_resume(EXACT[kind](tmp_path / "data"), batches=8)
    assert report.check() is report
    assert report.sample is None
    assert report.cause is None
    exact = [name for name, outcome in outcomes(report).items() if outcome == "exact"]
    assert len(exact) >= 3, report


def test_compared_and_skipped_cases() -> None:
    report = verify_resume(map_style(faults.augmented, shuffle=True), batches=8)
    assert report.check() is report
    own = "a new loader, inline, state through JSON"
    assert outcomes(report) == {
        f"{own}, batch 1": "exact",
        f"{own}, the first epoch's last batch": "exact",
        f"{own}, the end of the first epoch": "exact",
        f"{own}, batch 4": "exact",
        "2 threads, the first epoch's last batch": "skipped",
        "2 processes, the first epoch's last batch": "exact",
        "a worker process is killed, batch 1": "exact",
        "a new Python process, the first epoch's last batch": "skipped",
    }
    reasons = [str(check.reason) for check in report.checks if check.outcome == "skipped"]
    assert "draw from the global generators" in reasons[0]
    assert "only call a function that is in a module" in reasons[1]
    assert json.loads(json.dumps(asdict(report)))["batches"] == 8


SCRIPT = """
import sys
from stateful_gpu_loader import StatefulGPULoader, verify_resume

def make_loader():
    return StatefulGPULoader(range(12), batch_size=4, shuffle=True, seed=1)

report = verify_resume(make_loader, batches=4)
print(report.is_exact)
print(*sorted({check.outcome for check in report.checks}))
print(next(check.reason for check in report.checks if check.outcome == "could not run"))
report.check()
"""


@pytest.mark.processes
def test_a_script_that_new_processes_cannot_import(tmp_path: Path) -> None:
    """Its loader is not found to be inexact: the check could not run."""
    (tmp_path / "check.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "check.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(60))
    assert done.stdout.splitlines()[:2] == ["None", "could not run exact skipped"]
    assert "Remedy: keep the main script in a file, and its code under `if __name__" in done.stdout
    assert "VerifyError: " in done.stderr
    assert "Could not run: 1 of" in done.stderr.splitlines()[-1]
    assert done.returncode == 1


class NeverBeginsAgain(IterableDataset[int]):
    """Yields nothing once its state is loaded at the end of an epoch."""

    LENGTH = 6

    def __init__(self) -> None:
        self.given, self.is_over = 0, False

    def __iter__(self) -> Iterator[int]:
        if self.given == self.LENGTH and not self.is_over:
            self.given = 0
        while self.given < self.LENGTH:
            self.given += 1
            yield self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.given = state_dict["given"]
        self.is_over = self.given == self.LENGTH


def test_a_resumed_run_without_any_batch_differs() -> None:
    """None of its batches differs, yet the run is shorter."""
    report = verify_resume(lambda: StatefulGPULoader(NeverBeginsAgain(), batch_size=2))
    assert not report
    differences = {check.difference for check in report.checks if check.outcome == "differs"}
    assert differences == {"fewer batches than the undisturbed run"}


@pytest.mark.parametrize(
    ("outcomes", "is_exact", "verdict"),
    [
        (["exact", "skipped"], True, "Exact: 1 check, nothing differs. 1 skipped."),
        (["exact", "could not run"], None, "Could not run: 1 of 2 checks; nothing differs."),
        (
            ["exact", "differs", "could not run", "skipped"],
            False,
            "Not exact: 1 of 2 checks differ. 1 could not run. 1 skipped.",
        ),
    ],
)
def test_a_verdict_distinguishes_different_from_untested(
    outcomes: list[Any], is_exact: bool | None, verdict: str
) -> None:
    checks = tuple(Check("a check", "batch 1", outcome) for outcome in outcomes)
    report = Report("a loader", 3, checks)
    assert report.is_exact is is_exact
    assert report.verdict == verdict
    if is_exact is None:
        with pytest.raises(VerifyError):
            report.check()
        with pytest.raises(VerifyError):
            assert report
    else:
        assert bool(report) is is_exact


def test_a_system_without_room_for_processes_makes_no_loader_inexact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", fork)
    report = verify_resume(map_style(faults.augmented), batches=8)
    reasons = {
        check.name: check.reason for check in report.checks if check.outcome == "could not run"
    }
    assert set(reasons) == {"2 processes", "a worker process is killed"}
    assert all("ulimit -u" in str(reason) for reason in reasons.values())
    assert report.is_exact is None


def test_an_iterable_keeps_its_workers() -> None:
    report = verify_resume(
        lambda: StatefulGPULoader(StatefulIterable([9, 9]), batch_size=2), batches=BATCHES
    )
    reasons = {check.name: check.reason for check in report.checks if check.reason}
    for name in ("2 threads", "2 processes", "a worker process is killed"):
        assert "fits only the same number of workers" in str(reasons[name])


# Planted faults


def faulty(function: Callable[[], Callable[[int], Any]]) -> MakeLoader:
    """Return a factory of loaders whose samples come from a new function."""
    return lambda: without_processes(function())()


def own(generator: Callable[[], Any]) -> MakeLoader:
    return faulty(lambda: faults.OwnGenerator(generator()))


FAULTS: dict[str, tuple[str, str, MakeLoader]] = {
    "random": ("a private generator", ".generator", own(lambda: random.Random(3))),
    "numpy": ("a private generator", ".generator", own(lambda: np.random.default_rng(3))),
    "torch": ("a private generator", ".generator", own(torch.Generator)),
    "clock": ("the clock", "faults.clock", faulty(lambda: faults.clock)),
    "uuid": ("the system's randomness", "faults.identifier", faulty(lambda: faults.identifier)),
    "unseeded": ("the system's randomness", "faults.unseeded", faulty(lambda: faults.unseeded)),
    "counter": ("a global variable", "faults._TAKEN", faulty(lambda: faults.counted)),
    "count": ("a global variable", "faults._SERIAL", faulty(lambda: faults.numbered)),
    "state": ("an object that keeps state", ".total", faulty(faults.RunningMean)),
    "native": ("native code", "decoder", faulty(lambda: faults.decoded)),
    "global generators": (
        "the global generators",
        "StatefulGPULoader",
        lambda: StatefulDataLoader(faults.Applied(faults.augmented), batch_size=4),
    ),
}


@pytest.mark.parametrize("fault", [cases_of(each) for each in FAULTS])
def test_a_fault_is_found_and_named(fault: str, spawns: None) -> None:
    kind, names, make = FAULTS[fault]
    report = verify_resume(make, batches=BATCHES)
    assert not report
    assert report.cause is not None
    assert report.cause.kind == kind, report
    assert names in str(report.cause)
    assert report.sample is not None
    assert report.sample.fields[0].field == "['value']"
    with pytest.raises(ResumeDiffers):
        report.check()


class Randomizable:
    """Draws from a generator of its class, as MONAI's transforms do."""

    R = random.Random(3)

    def __call__(self, value: Any) -> float:
        return self.R.random()


def test_the_cause_has_the_path_of_the_loaders_warning(spawns: None) -> None:
    """A20: inside torchvision's Compose, in a class attribute."""
    path = "dataset.function.transforms[1].R"
    report = verify_resume(
        faulty(lambda: transforms.Compose([int, Randomizable()])), batches=BATCHES
    )
    assert report.cause is not None
    assert report.cause.kind == "a private generator", report
    assert path in report.cause.what
    assert any(note.startswith(f"{path}: ") for note in report.notes)
    assert "the loader itself says" in str(report.cause)


def test_a_file_that_changed(tmp_path: Path, spawns: None) -> None:
    path, contents = tmp_path / "label.txt", iter(range(100))

    def make() -> StatefulGPULoader[Any]:
        path.write_text(f"content {next(contents)}")
        return without_processes(faults.ReadsFile(path))()

    report = verify_resume(make, batches=BATCHES)
    assert report.cause is not None
    assert report.cause.kind == "a file that changed", report
    assert str(path) in report.cause.what


def test_the_shuffle_of_webdataset(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "samples.tar", sample_entries(0, 60))

    def make() -> StatefulGPULoader[Any]:
        samples = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
        return StatefulGPULoader(samples.shuffle(20).to_tuple("jpg", "cls"), batch_size=4)

    report = verify_resume(make, batches=BATCHES)
    assert report.cause is not None
    assert report.cause.kind == "the clock", report
    for text in ("called by webdataset.", "detshuffle", "not reproducible"):
        assert text in str(report.cause)
    with warnings.catch_warnings():
        # webdataset leaves files open in iterators that were not read to their end.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Nodes(IterableDataset[Any]):
    """Draws in threads of torchdata.nodes, which deliver as soon as they are ready."""

    def __iter__(self) -> Iterator[Any]:
        numbers = torchdata.nodes.IterableWrapper(range(400))
        mapped = torchdata.nodes.ParallelMapper(
            numbers, faults.augmented, num_workers=4, in_order=False
        )
        return iter(torchdata.nodes.Loader(mapped))


def test_threads_of_torchdata_nodes() -> None:
    report = verify_resume(lambda: StatefulGPULoader(Nodes(), batch_size=40), batches=BATCHES)
    assert report.cause is not None
    assert report.cause.kind == "threads", report
    assert "called by torchdata.nodes." in str(report.cause)


class Forgets(StatefulIterable):
    """Has a state without the generator that it draws from."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(lengths)
        self.generator = random.Random(3)

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            yield sample, self.generator.random()


def test_a_state_that_lacks_something() -> None:
    make = lambda: StatefulGPULoader(Forgets([9, 9]), batch_size=2)  # noqa: E731
    report = verify_resume(make, batches=BATCHES)
    assert report.cause is not None
    assert report.cause.kind == "a state that is not saved", report
    assert "dataset.generator" in report.cause.what


@pytest.mark.processes
def test_the_order_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    report = verify_resume(faults.make_of_sets, batches=BATCHES)
    found = outcomes(report)
    assert found.pop("a new Python process, batch 2") == "differs"
    assert "differs" not in found.values()
    assert report.cause is not None
    assert report.cause.kind == "the order of a set", report
    assert os.environ.get("PYTHONHASHSEED") is None


# Where and what differs


def test_the_first_sample_that_differs(spawns: None) -> None:
    report = verify_resume(without_processes(faults.counted, shuffle=True, seed=3), batches=BATCHES)
    order = [int(i) for batch in map_style(int, shuffle=True, seed=3)() for i in batch["index"]]
    assert report.sample is not None
    # The counter continues, so the very first sample after the first state differs.
    place = report.sample.batch, report.sample.place_in_batch
    assert (*place, report.sample.position, report.sample.index) == (1, 0, 4, str(order[4]))
    assert "1 of 1 values differ, by" in report.sample.fields[0].what


# Other loaders


def test_a_plain_loader_is_converted_and_the_report_says_so() -> None:
    data = faults.Applied(faults.augmented)
    report = verify_resume(
        lambda: DataLoader(data, batch_size=4, shuffle=True, drop_last=True), batches=BATCHES
    )
    assert report
    assert "a DataLoader has no state" in report.notes[0]
    assert report.loader.startswith("StatefulGPULoader of Applied")


def plain_pictures(root: Path, **arguments: Any) -> DataLoader[Any]:
    steps = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage()])
    return DataLoader(ImageFolder(str(root), steps), 2, shuffle=True, **arguments)


def converted_pictures(root: Path) -> StatefulGPULoader[Any]:
    return StatefulGPULoader.from_dataloader(plain_pictures(root, num_workers=1))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("make", "loader"),
    [
        (plain_pictures, "StatefulGPULoader of ImageFolder, inline"),
        (converted_pictures, "StatefulGPULoader of FolderSource, 1 threads"),
    ],
    ids=["given", "converted"],
)
def test_a_loader_of_files_is_verified_as_it_is_given_and_converted(
    make: Callable[[Path], Any], loader: str, tmp_path: Path
) -> None:
    write_photo_folder(tmp_path, num_classes=2, per_class=4)
    report = verify_resume(partial(make, tmp_path), batches=6)
    assert report.check() is report
    assert report.loader == loader
    assert len(report.notes) == (make is plain_pictures)
    assert outcomes(report)["a new Python process, batch 3"] == "exact"
    assert outcomes(report)["2 processes, batch 3"] == "exact"


@pytest.mark.parametrize("sampler", [SequentialSampler(range(5)), RandomSampler(range(5))])
def test_a_sampler_of_a_part_of_the_dataset_is_kept(sampler: Any) -> None:
    loader = fresh(lambda: DataLoader(Indices(9), batch_size=2, sampler=sampler))
    assert sorted(int(index) for batch in loader for index in batch) == [0, 1, 2, 3, 4]


def test_a_stateful_data_loader_is_verified_as_it_is() -> None:
    report = verify_resume(lambda: StatefulDataLoader(Indices(12), batch_size=4), batches=BATCHES)
    assert report
    assert report.notes == ()
    reasons = {check.name: check.reason for check in report.checks}
    assert "StatefulDataLoader does not replace" in str(reasons["a worker process is killed"])


def test_a_loader_that_cannot_be_pickled_skips_processes_where_none_is_forked(
    spawns: None,
) -> None:
    report = verify_resume(map_style(lambda index: index), batches=BATCHES)
    assert report
    reasons = {check.name: check.reason for check in report.checks if check.outcome == "skipped"}
    sentence = (
        "worker processes are started with 'spawn' here, and the loader's dataset cannot be "
        "pickled (Can't "
    )
    for name in ("2 processes", "a worker process is killed"):
        assert str(reasons[name]).startswith(sentence)


def test_a_loader_whose_own_processes_cannot_be_started() -> None:
    processes = {"num_workers": 1, "multiprocessing_context": "spawn"}
    make = map_style(faults.augmented, collate_fn=lambda batch: batch, **processes)
    with pytest.raises(VerifyError, match=r"collate_fn"):
        verify_resume(make, batches=BATCHES)


def test_a_dataset_without_an_end() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from iter(lambda: 1, 2)

    report = verify_resume(lambda: StatefulGPULoader(Endless(), batch_size=2), batches=BATCHES)
    assert report
    assert outcomes(report)["a new loader, an epoch's end"] == "skipped"


def test_epochs_of_one_batch(spawns: None) -> None:
    report = verify_resume(without_processes(faults.augmented, batch_size=20), batches=BATCHES)
    assert report
    assert report.batches == BATCHES


@pytest.mark.parametrize("batches", [0, 1])
def test_a_loader_of_one_batch_has_no_rest(batches: int) -> None:
    with pytest.raises(ValueError, match=r"\b2\b"):
        verify_resume(map_style(faults.augmented), batches=batches)


def test_an_empty_dataset_proves_nothing() -> None:
    with pytest.raises(VerifyError, match="no batch"):
        verify_resume(lambda: StatefulGPULoader([], batch_size=2))


def fails() -> Any:
    raise RuntimeError("no data here")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (fails, "RuntimeError: no data here"),
        (lambda: None, "returned NoneType"),
        (map_style(lambda index: 1 // index), "ZeroDivisionError"),
    ],
)
def test_a_loader_that_cannot_be_run(make: MakeLoader, says: str) -> None:
    with pytest.raises(VerifyError, match=says):
        verify_resume(make)


def test_a_resume_that_raises_is_a_difference() -> None:
    class Refuses(StatefulIterable):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise KeyError("nothing of this")

    report = verify_resume(
        lambda: StatefulGPULoader(Refuses([9, 9]), batch_size=2), batches=BATCHES
    )
    assert not report
    assert "raises KeyError" in str(report.checks[0].difference)
