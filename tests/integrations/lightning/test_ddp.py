"""DDP, with and without the callback: saved on 2 ranks, resumed on 1, 2 and 4.

Three epochs of three global batches, in gloo processes.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integrations.lightning.ddp_jobs import (
    LENGTHS,
    Batches,
    Found,
    Run,
    fit_all,
    fits,
    trained_on,
)
from tests.integrations.lightning.recorded_fits import OF_LIGHTNING
from tests.rank_processes import RankFailed, on_ranks
from tests.trainer_data import photos, tars

pytestmark = [pytest.mark.filterwarnings(text) for text in OF_LIGHTNING]

RUNS = {
    "divided": Run(use_distributed_sampler=False),
    "use_distributed_sampler": Run(),
    "DistributedShuffledSampler": Run(kind="given"),
    "callback": Run(callback=True),
    "undivided": Run(kind="undivided"),
    "undivided, callback": Run(kind="undivided", callback=True),
    "lanes, callback": Run(kind="lanes", callback=True, epochs=1),
}
"""Runs that are trained and saved on 2 ranks."""
DIVIDED = list(RUNS)[:4]
RESUMES = {
    **{name: (name, RUNS[name]) for name in RUNS},
    "saved with the callback": ("callback", Run()),
    "saved without the callback": ("use_distributed_sampler", Run(callback=True)),
}
"""Checkpoints to resume, and the runs that resume them."""
STEPS = {name: (2, 3) if name in ("divided", "callback") else (3,) for name in RESUMES}
"""Steps to resume after: in the middle of the first epoch, and at its last batch."""
STEPS |= {"undivided": (2,), "lanes, callback": (2,), "saved without the callback": (2,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    photos(folder)
    tars(folder, LENGTHS)
    return folder


@pytest.fixture(scope="module")
def on_one(folder: Path) -> Batches:
    """The global batches of one uninterrupted process."""
    return trained_on(fits(folder, 1, {"one": RUNS["divided"]})["one"])


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints after every step on 2 ranks, the ranks' records, and a run that was killed."""
    saved = tmp_path_factory.mktemp("checkpoints")
    runs = [replace(run, save=saved / name) for name, run in RUNS.items()]
    killed = replace(RUNS["divided"], save=saved / "killed", killed_at=4)
    assert on_ranks(fit_all, 2, folder, [*runs, killed], saved, killed=True) == []
    return saved


@pytest.fixture(scope="module")
def on_two(saved: Path) -> dict[str, list[Found]]:
    """The records of two uninterrupted ranks."""
    ranks = [pickle.loads((saved / f"rank-{rank}").read_bytes()) for rank in range(2)]
    return {name: [found[place] for found in ranks] for place, name in enumerate(RUNS)}


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda n: f"on {n}")
def resumed(request: pytest.FixtureRequest, folder: Path, saved: Path) -> dict[str, list[Found]]:
    """All checkpoints, resumed on the same and on other numbers of ranks."""
    runs = {
        f"{name} {step}": replace(run, resume=saved / of / f"step={step}.ckpt")
        for name, (of, run) in RESUMES.items()
        for step in STEPS[name]
        # torch's DistributedSampler has another order on each number of ranks.
        if request.param == 2 or run.kind != "undivided"
    }
    runs["killed 4"] = replace(RUNS["divided"], resume=saved / "killed" / "step=4.ckpt")
    return fits(folder, request.param, runs)


def test_ranks_share_the_batches_of_one_process(
    on_one: Batches, on_two: dict[str, list[Found]]
) -> None:
    """Numbers and pixels of the global batches. Lightning does not rebuild the loaders."""
    assert len(on_one) == 9
    for name in DIVIDED:
        assert trained_on(on_two[name]) == on_one, name
        assert all(found.is_same_loader for found in on_two[name]), name


@pytest.mark.parametrize("name", [name for name in RESUMES if RESUMES[name][0] in DIVIDED])
def test_exact_on_any_number_of_ranks(
    resumed: dict[str, list[Found]], on_one: Batches, name: str
) -> None:
    """From rank 0's state alone; with the callback, without it, and across the two."""
    for step in STEPS[name]:
        assert trained_on(resumed[f"{name} {step}"]) == on_one[step:], step


def test_killed_and_exact_on_any_number_of_ranks(
    resumed: dict[str, list[Found]], on_one: Batches
) -> None:
    """With SIGKILL, in the middle of a step."""
    assert trained_on(resumed["killed 4"]) == on_one[4:]


@pytest.mark.parametrize("name", ["undivided", "undivided, callback"])
def test_torchs_order_on_as_many_ranks(
    resumed: dict[str, list[Found]], on_two: dict[str, list[Found]], name: str
) -> None:
    """An undivided loader, divided by Lightning."""
    for step in STEPS[name]:
        if f"{name} {step}" in resumed:
            assert trained_on(resumed[f"{name} {step}"]) == trained_on(on_two[name])[step:], step


def test_rebuilt_with_torchs_sampler(on_two: dict[str, list[Found]], on_one: Batches) -> None:
    """An undivided loader is rebuilt with all its arguments but the sampler: torch's order."""
    for found in on_two["undivided"]:
        assert not found.is_same_loader
        assert found.public == {
            "class": "StatefulGPULoader",
            "sampler": "DistributedSampler",
            "seed": 11,
            "num_workers": 0,
            "on_epoch_boundary": "next_epoch",
            "has_transform": True,
        }
    batches = trained_on(on_two["undivided"])
    for epoch in range(3):
        numbers = [number for batch in batches[epoch * 3 : epoch * 3 + 3] for number, _ in batch]
        assert sorted(numbers) == list(range(24))
    assert batches != on_one


def test_lanes_without_the_callback_are_refused(folder: Path, tmp_path: Path) -> None:
    """If rank 0's state is not theirs, the other ranks refuse it by name."""
    save = Run(kind="lanes", save=tmp_path)
    resume = Run(kind="lanes", resume=tmp_path / "step=2.ckpt")
    with pytest.raises(RankFailed, match=r"StateMismatch: lanes .*\[0, 2\]"):
        on_ranks(fit_all, 2, folder, [save, resume])


def test_lanes_give_every_sample_once(
    resumed: dict[str, list[Found]], on_two: dict[str, list[Found]]
) -> None:
    """Two steps on 2 ranks, and the rest of the epoch on any number that the lanes allow."""
    batches = [batch for rank in on_two["lanes, callback"] for batch in rank.seen[:2]]
    batches += [batch for rank in resumed["lanes, callback 2"] for batch in rank.seen]
    numbers = [number for batch in batches for number, _ in batch]
    assert sorted(numbers) == list(range(sum(LENGTHS)))
