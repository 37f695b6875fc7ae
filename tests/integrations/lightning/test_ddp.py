"""DDP without a callback: rank 0's state serves every rank, on any number of them.

Three epochs of three global batches, in 1, 2 and 4 gloo processes.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.integrations.lightning.ddp_jobs import (
    LENGTHS,
    Batches,
    Found,
    Loading,
    Run,
    fit_all,
    fits,
    trained_on,
)
from tests.integrations.lightning.recorded_fits import OF_LIGHTNING
from tests.rank_processes import RankFailed, on_ranks
from tests.trainer_data import photos, tars

pytestmark = [pytest.mark.filterwarnings(text) for text in OF_LIGHTNING]

DIVIDED = Loading("divided", use_distributed_sampler=False)
LOADINGS = {
    "divided": DIVIDED,
    "divided, use_distributed_sampler": Loading("divided"),
    "DistributedShuffledSampler": Loading("given"),
    "undivided, use_distributed_sampler": Loading("default"),
}
STEPS = 2, 3
"""After which a run is resumed: in the middle of the first epoch, and at its last batch."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    photos(folder)
    tars(folder, LENGTHS)
    return folder


@pytest.fixture(scope="module")
def on_one(folder: Path) -> Batches:
    """The global batches of one process, undisturbed."""
    return trained_on(fits(folder, 1, {"one": Run(loading=DIVIDED)})["one"])


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints after every step on 2 ranks, what these found, and a run that was killed."""
    saved = tmp_path_factory.mktemp("checkpoints")
    runs = [Run(loading=each, save=saved / name) for name, each in LOADINGS.items()]
    killed = Run(loading=DIVIDED, save=saved / "killed", killed_at=4)
    assert on_ranks(fit_all, 2, folder, [*runs, killed], saved, killed=True) == []
    return saved


@pytest.fixture(scope="module")
def on_two(saved: Path) -> dict[str, list[Found]]:
    """Undisturbed."""
    ranks = [pickle.loads((saved / f"rank-{rank}").read_bytes()) for rank in range(2)]
    return {name: [found[place] for found in ranks] for place, name in enumerate(LOADINGS)}


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda n: f"on {n}")
def resumed(request: pytest.FixtureRequest, folder: Path, saved: Path) -> dict[str, list[Found]]:
    """All checkpoints gone on from, on another number of ranks or the same."""
    runs = {
        f"{name} {step}": Run(loading=each, resume=saved / name / f"step={step}.ckpt")
        for name, each in LOADINGS.items()
        for step in STEPS
        if request.param == 2 or each.kind != "default"
    }
    runs["killed 4"] = Run(loading=DIVIDED, resume=saved / "killed" / "step=4.ckpt")
    return fits(folder, request.param, runs)


def test_ranks_share_the_batches_of_one_process(
    on_one: Batches, on_two: dict[str, list[Found]]
) -> None:
    """Numbers and pixels of the global batches."""
    assert len(on_one) == 9
    for name in list(LOADINGS)[:3]:
        assert trained_on(on_two[name]) == on_one, name


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", list(LOADINGS)[:3])
def test_exact_on_any_number_of_ranks(
    resumed: dict[str, list[Found]], on_one: Batches, name: str, step: int
) -> None:
    """From rank 0's state alone."""
    assert trained_on(resumed[f"{name} {step}"]) == on_one[step:]


def test_killed_and_exact_on_any_number_of_ranks(
    resumed: dict[str, list[Found]], on_one: Batches
) -> None:
    """With SIGKILL, in the middle of a step."""
    assert trained_on(resumed["killed 4"]) == on_one[4:]


@pytest.mark.parametrize("step", STEPS)
def test_torchs_order_on_as_many_ranks(
    resumed: dict[str, list[Found]], on_two: dict[str, list[Found]], step: int
) -> None:
    """An undivided loader, which Lightning has divided."""
    name = "undivided, use_distributed_sampler"
    if f"{name} {step}" not in resumed:
        pytest.skip("torch's DistributedSampler has another order on each number of ranks")
    assert trained_on(resumed[f"{name} {step}"]) == trained_on(on_two[name])[step:]


@pytest.mark.parametrize("name", list(LOADINGS)[:3])
def test_left_untouched(on_two: dict[str, list[Found]], name: str) -> None:
    """A loader that is divided already, Lightning does not rebuild."""
    assert all(found.is_same_loader for found in on_two[name])


def test_rebuilt_with_torchs_sampler(on_two: dict[str, list[Found]], on_one: Batches) -> None:
    """An undivided one is rebuilt, with all its arguments but the sampler: torch's order."""
    for found in on_two["undivided, use_distributed_sampler"]:
        assert not found.is_same_loader
        assert found.public == {
            "class": "StatefulGPULoader",
            "sampler": "DistributedSampler",
            "seed": 11,
            "num_workers": 0,
            "on_epoch_boundary": "next_epoch",
            "has_transform": True,
        }
    batches = trained_on(on_two["undivided, use_distributed_sampler"])
    for epoch in range(3):
        numbers = [number for batch in batches[epoch * 3 : epoch * 3 + 3] for number, _ in batch]
        assert sorted(numbers) == list(range(24))
    assert batches != on_one


@pytest.mark.parametrize("kind", ["lanes"])
def test_states_of_one_rank_alone(folder: Path, tmp_path: Path, kind: str) -> None:
    """Where rank 0's state is not that of the others, they refuse it by name."""
    loading = Loading(kind)
    save = Run(loading=loading, save=tmp_path)
    resume = Run(loading=loading, resume=tmp_path / "step=2.ckpt")
    with pytest.raises(RankFailed, match=r"StateMismatch: lanes differs: .*lanes: \[0, 2\]"):
        on_ranks(fit_all, 2, folder, [save, resume])
