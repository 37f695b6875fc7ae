"""Composer, in one process: a resumed fit trains on what an undisturbed one does.

Compared are the samples and pixels of each batch whose step was made, and the weights at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StateMismatch
from tests.trainers_apart.composer_runs import (
    KINDS,
    Data,
    Undisturbed,
    assert_same_from,
    fitted,
    trainer_of,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:No batches were trained for global rank"),
    pytest.mark.filterwarnings("ignore:Cannot split tensor of length"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(data, tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("spin", [True, False])
@pytest.mark.parametrize("place", ["ep0-ba4", "ep0-ba6", "ep1-ba9"])
@pytest.mark.parametrize("kind", KINDS)
def test_resumes_exactly(
    kind: str, place: str, spin: bool, data: Data, undisturbed: Undisturbed
) -> None:
    """Mid-epoch, behind an epoch's last batch, and in the second epoch; each kind of loader."""
    whole, folder = undisturbed(kind)
    resumed = fitted(
        data.loader(kind), "12ba", load_path=str(folder / f"{place}.pt"), spin_dataloaders=spin
    )
    assert_same_from(int(place.partition("ba")[2]), resumed, whole)


@pytest.mark.parametrize("kind", ["photographs", "lanes"])
def test_resumes_exactly_between_epochs(
    kind: str, data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A checkpoint saved at the epoch's end, where Composer has not seen the loader's end."""
    whole, _ = undisturbed(kind)
    fitted(data.loader(kind), "7ba", tmp_path, save_interval="1ep")
    resumed = fitted(data.loader(kind), "12ba", load_path=str(tmp_path / "ep1-ba6.pt"))
    assert_same_from(6, resumed, whole)


def test_resumes_exactly_after_max_duration_in_batches(
    data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The last checkpoint of a run that ended in the middle of an epoch; and twice in one epoch."""
    whole, _ = undisturbed("photographs")
    arguments = {"save_interval": "100ba"}
    fitted(data.loader(), "2ba", tmp_path, **arguments)
    second = fitted(
        data.loader(), "5ba", tmp_path, load_path=str(tmp_path / "ep0-ba2.pt"), **arguments
    )
    assert second.trained == whole.trained[2:5]
    resumed = fitted(data.loader(), "12ba", load_path=str(tmp_path / "ep0-ba5.pt"))
    assert_same_from(5, resumed, whole)


@pytest.mark.parametrize("place", ["ep0-ba4", "ep0-ba6", "ep1-ba9"])
def test_a_checkpoint_loaded_and_saved_before_fit_is_the_same(
    place: str, data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The loader has not taken the state yet, while Composer's timestamp has."""
    whole, folder = undisturbed("photographs")
    trainer, _ = trainer_of(data.loader(), "12ba", load_path=str(folder / f"{place}.pt"))
    trainer.save_checkpoint(str(tmp_path / "again.pt"))
    trainer.close()
    resumed = fitted(data.loader(), "12ba", load_path=str(tmp_path / "again.pt"))
    assert_same_from(int(place.partition("ba")[2]), resumed, whole)


def test_autoresume_goes_on_exactly(data: Data, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """The newest checkpoint of the run, found by its name."""
    whole, _ = undisturbed("photographs")
    named = {"run_name": "nightly", "autoresume": True, "save_overwrite": False}
    first = fitted(data.loader(), "5ba", tmp_path, **named)
    resumed = fitted(data.loader(), "12ba", tmp_path, **named)
    assert first.trained == whole.trained[:5]
    assert_same_from(5, resumed, whole)


@pytest.mark.parametrize("kind", ["photographs", "lanes"])
def test_a_second_fit_goes_on_where_the_first_ended(
    kind: str, data: Data, undisturbed: Undisturbed
) -> None:
    """One trainer and one loader: in the middle of an epoch, and at its end."""
    whole, _ = undisturbed(kind)
    trainer, recorder = trainer_of(data.loader(kind), "4ba")
    trainer.fit()
    trainer.fit(duration="2ba")
    trainer.fit(duration="6ba")
    trainer.close()
    assert recorder.trained == whole.trained


def test_a_new_loader_for_a_second_fit_is_left_to_composer(
    data: Data, undisturbed: Undisturbed
) -> None:
    """It has no place yet: Composer reads up to the trainer's."""
    whole, _ = undisturbed("photographs")
    trainer, recorder = trainer_of(data.loader(), "2ba")
    trainer.fit()
    trainer.fit(duration="2ba")
    trainer.fit(train_dataloader=data.loader(), duration="2ba")
    trainer.close()
    assert recorder.trained == whole.trained[:6]


def test_the_loader_may_be_given_to_fit(data: Data, undisturbed: Undisturbed) -> None:
    """The state waits until the loader is known; in a DataSpec, too."""
    from composer.core import DataSpec

    whole, folder = undisturbed("photographs")
    trainer, recorder = trainer_of(None, "12ba", load_path=str(folder / "ep0-ba4.pt"))
    trainer.fit(train_dataloader=DataSpec(data.loader()))
    trainer.close()
    assert recorder.trained == whole.trained[4:]


def test_batches_read_before_fit_change_nothing(
    data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Somebody has looked at a batch: an epoch of the training is the loader's of that number."""
    whole, _ = undisturbed("photographs")
    loader = data.loader()
    next(iter(loader))
    assert fitted(loader, "12ba", tmp_path).trained == whole.trained
    loader = data.loader()
    next(iter(loader))
    resumed = fitted(loader, "12ba", load_path=str(tmp_path / "ep0-ba6.pt"))
    assert_same_from(6, resumed, whole)


def test_microbatches_resume_exactly(data: Data, undisturbed: Undisturbed) -> None:
    """Gradients accumulate within a batch, so that a checkpoint never falls between."""
    whole, folder = undisturbed("photographs", device_train_microbatch_size=2)
    resumed = fitted(
        data.loader(),
        "12ba",
        load_path=str(folder / "ep0-ba4.pt"),
        device_train_microbatch_size=2,
    )
    assert_same_from(4, resumed, whole)


@pytest.mark.parametrize("batch", [2, 4, 6])
def test_an_epoch_cut_short_resumes_exactly(
    batch: int, data: Data, undisturbed: Undisturbed
) -> None:
    """train_subset_num_batches=4: what is left of the epoch is shorter, too."""
    whole, folder = undisturbed("photographs", train_subset_num_batches=4)
    assert len({sample for batch in whole.trained[:4] for sample in batch}) == 16
    resumed = fitted(
        data.loader(),
        "12ba",
        load_path=str(folder / f"ep{int(batch > 4)}-ba{batch}.pt"),
        train_subset_num_batches=4,
    )
    assert_same_from(batch, resumed, whole)


@pytest.mark.parametrize("batch", [3, 4, 8])
def test_evaluators_go_on_with_their_epochs(
    batch: int, data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Each evaluation is shuffled and augmented anew, and the resumed ones as they were to be."""
    given = {"eval_interval": "2ba", "eval_subset_num_batches": 3}
    whole = fitted(data.loader(), "12ba", tmp_path, eval_dataloader=data.loader(seed=5), **given)
    resumed = fitted(
        data.loader(),
        "12ba",
        eval_dataloader=data.loader(seed=5),
        load_path=str(tmp_path / f"ep{int(batch > 6)}-ba{batch}.pt"),
        **given,
    )
    assert len(set(whole.evaluated)) == 6 * 3
    assert resumed.evaluated == whole.evaluated[batch // 2 * 3 :]
    assert_same_from(batch, resumed, whole)
    assert whole.trained == undisturbed("photographs")[0].trained


@pytest.mark.parametrize("place", ["ep0-ba4", "ep0-ba6", "ep1-ba9"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_the_callback_composer_reads_everything_again(
    kind: str, place: str, data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Exact by replay, from a checkpoint with the callback's state, and that from one without."""
    whole, folder = undisturbed(kind)
    batch = int(place.partition("ba")[2])
    with pytest.MonkeyPatch.context() as patch:
        loader = data.loader(kind)
        passes = []
        begin = type(loader).__iter__
        patch.setattr(type(loader), "__iter__", lambda one: passes.append(one) or begin(one))
        resumed = fitted(loader, "12ba", load_path=str(folder / f"{place}.pt"), has_callback=False)
        # One for each epoch before the place, besides those that were trained on.
        assert len(passes) == 2
    assert_same_from(batch, resumed, whole)
    fitted(data.loader(kind), f"{batch}ba", tmp_path, has_callback=False)
    with pytest.warns(UserWarning, match="LoaderStateCallback is not in the state_dict"):
        resumed = fitted(data.loader(kind), "12ba", load_path=str(tmp_path / f"{place}.pt"))
    assert_same_from(batch, resumed, whole)


def test_without_the_callback_and_without_spinning_batches_come_twice(
    data: Data, undisturbed: Undisturbed
) -> None:
    """spin_dataloaders=False: the loader begins anew, in epoch 0."""
    whole, folder = undisturbed("photographs")
    resumed = fitted(
        data.loader(),
        "12ba",
        load_path=str(folder / "ep0-ba4.pt"),
        has_callback=False,
        spin_dataloaders=False,
    )
    assert resumed.trained[:6] == whole.trained[:6]


def test_without_the_callback_evaluators_begin_anew(data: Data, tmp_path: Path) -> None:
    """Composer reads one batch of the first epoch, however many there were."""
    given = {"eval_interval": "2ba", "eval_subset_num_batches": 3, "has_callback": False}
    whole = fitted(data.loader(), "12ba", tmp_path, eval_dataloader=data.loader(seed=5), **given)
    resumed = fitted(
        data.loader(),
        "12ba",
        eval_dataloader=data.loader(seed=5),
        load_path=str(tmp_path / "ep0-ba4.pt"),
        **given,
    )
    assert resumed.evaluated == whole.evaluated[: 4 * 3]


def test_a_datasets_own_state_is_called_with_composers_arguments(
    data: Data, tmp_path: Path
) -> None:
    """Composer wants ``state_dict(num_samples, from_beginning)`` of a dataset, not torchdata's."""
    loader = data.loader("2 processes", num_workers=0)
    loader.dataset.state_dict = list
    with pytest.raises(TypeError, match="expected at most 1 argument, got 2"):
        fitted(loader, "1ba", tmp_path)


def test_the_state_is_plain_and_small(undisturbed: Undisturbed) -> None:
    """All but Composer's own copy of the global generators."""
    _, folder = undisturbed("photographs")
    saved = torch.load(folder / "ep0-ba4.pt", weights_only=False)
    state = saved["state"]["callbacks"]["LoaderStateCallback"]
    torch.save(state["loaders"], folder / "loaders.pt")
    assert torch.load(folder / "loaders.pt", weights_only=True) == state["loaders"]
    assert len(str(state["loaders"])) < 1000


def assert_refused(loader: Any, path: Path, field: str, words: str, **arguments: Any) -> None:
    """Before a batch is read, and with the loader as it was."""
    before = loader.state_dict()
    trainer, recorder = trainer_of(loader, "12ba", load_path=str(path), **arguments)
    with pytest.raises(StateMismatch, match=words) as caught:
        trainer.fit()
    trainer.close()
    assert caught.value.field == field
    assert loader.state_dict() == before
    assert recorder.trained == []


def test_other_loaders_are_refused(data: Data, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """More or fewer of them, another dataset, and one under another's name."""
    _, folder = undisturbed("photographs")
    path = folder / "ep0-ba4.pt"
    words = r"\['train'\], expected was \['eval/eval', 'train'\]"
    assert_refused(data.loader(), path, "loaders", words, eval_dataloader=data.loader())
    fewer = data.loader("2 processes", num_workers=0)
    assert_refused(fewer, path, "transform", "differs")
    two = fitted(
        data.loader(),
        "1ba",
        tmp_path,
        eval_dataloader=data.loader("lanes"),
        eval_interval=0,
        eval_subset_num_batches=1,
    )
    assert two.trained
    changed = data.loader("lanes")
    assert_refused(
        changed, tmp_path / "ep0-ba1.pt", "dataset", "differs", eval_dataloader=data.loader()
    )
    assert_refused(data.loader(), tmp_path / "ep0-ba1.pt", "loaders", "eval/eval")


def test_the_second_of_two_states_being_wrong_leaves_the_first_loader_as_it_was(
    data: Data, tmp_path: Path
) -> None:
    fitted(
        data.loader(),
        "1ba",
        tmp_path,
        eval_dataloader=data.loader("lanes"),
        eval_interval=0,
        eval_subset_num_batches=1,
    )
    evaluator = data.loader("2 processes", num_workers=0)
    assert_refused(
        data.loader(), tmp_path / "ep0-ba1.pt", "order", "differs", eval_dataloader=evaluator
    )
