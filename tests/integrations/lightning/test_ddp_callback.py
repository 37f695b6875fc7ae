"""DDP with LoaderStateCallback; its checkpoints without it, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.lightning.ddp_jobs import (
    LENGTHS,
    Batches,
    Found,
    Loading,
    Run,
    fits,
    state_callback,
    trained_on,
)
from tests.integrations.lightning.recorded_fits import OF_LIGHTNING
from tests.trainer_data import photos, tars

pytestmark = [pytest.mark.filterwarnings(text) for text in OF_LIGHTNING]

DIVIDED = Loading("divided")
DEFAULT = Loading("default")
LANES = Loading("lanes")
STEPS = 2, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    photos(folder)
    tars(folder, LENGTHS)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def undisturbed(folder: Path, saved: Path) -> dict[str, list[Found]]:
    """On 2 ranks, with a checkpoint after every step."""
    runs = {
        "with": Run(loading=DIVIDED, save=saved / "with", callbacks=state_callback),
        "without": Run(loading=DIVIDED, save=saved / "without"),
        "default": Run(loading=DEFAULT, save=saved / "default", callbacks=state_callback),
        "lanes": Run(loading=LANES, save=saved / "lanes", callbacks=state_callback, epochs=1),
    }
    return fits(folder, 2, runs)


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda n: f"on {n}")
def resumed(
    request: pytest.FixtureRequest, folder: Path, saved: Path, undisturbed: dict[str, list[Found]]
) -> dict[str, list[Found]]:
    def resume(loading: Loading, name: str, step: int, *, has: bool, epochs: int = 3) -> Run:
        path = saved / name / f"step={step}.ckpt"
        return Run(
            loading=loading, resume=path, epochs=epochs, callbacks=state_callback if has else list
        )

    runs = {}
    for step in STEPS:
        runs[f"with, with {step}"] = resume(DIVIDED, "with", step, has=True)
        runs[f"with, without {step}"] = resume(DIVIDED, "with", step, has=False)
        runs[f"without, with {step}"] = resume(DIVIDED, "without", step, has=True)
        if request.param == 2:
            runs[f"default {step}"] = resume(DEFAULT, "default", step, has=True)
    runs["lanes"] = resume(LANES, "lanes", 2, has=True, epochs=1)
    return fits(folder, request.param, runs)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["with, with", "with, without", "without, with"])
def test_saved_and_resumed(
    resumed: dict[str, list[Found]], undisturbed: dict[str, list[Found]], how: str, step: int
) -> None:
    """With the callback or without it, on any number of ranks."""
    expected: Batches = trained_on(undisturbed["with"])
    assert len(expected) == 9
    assert trained_on(resumed[f"{how} {step}"]) == expected[step:]


@pytest.mark.parametrize("step", STEPS)
def test_torchs_order_on_as_many_ranks(
    resumed: dict[str, list[Found]], undisturbed: dict[str, list[Found]], step: int
) -> None:
    """An undivided loader, which Lightning has divided."""
    if "default 2" not in resumed:
        pytest.skip("torch's DistributedSampler has another order on each number of ranks")
    expected = trained_on(undisturbed["default"])[step:]
    assert trained_on(resumed[f"default {step}"]) == expected


def test_lanes_give_every_sample_once(
    resumed: dict[str, list[Found]], undisturbed: dict[str, list[Found]]
) -> None:
    """Two steps on 2 ranks, and the rest of the epoch on any number that the lanes allow."""
    batches = [batch for rank in undisturbed["lanes"] for batch in rank.seen[:2]]
    batches += [batch for rank in resumed["lanes"] for batch in rank.seen]
    numbers = [number for batch in batches for number, _ in batch]
    assert sorted(numbers) == list(range(sum(LENGTHS)))
