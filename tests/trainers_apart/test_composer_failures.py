"""Composer, after a fit that failed: the batch whose step was not made comes again.

It is saved by whoever caught the exception and resumed, or fitted again, and compared with an
undisturbed run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainers_apart.composer_runs import (
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


@pytest.mark.parametrize("fail_at", [3, 6])
@pytest.mark.parametrize("kind", ["photographs", "2 processes"])
def test_the_batch_of_a_failed_step_comes_again(
    kind: str, fail_at: int, data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Saved by whoever caught the exception, in the middle of an epoch and in its first step."""
    whole, _ = undisturbed(kind)
    trainer, recorder = trainer_of(data.loader(kind), "12ba", fail_at=fail_at)
    with pytest.raises(RuntimeError, match="power failure"):
        trainer.fit()
    trainer.save_checkpoint(str(tmp_path / "failed.pt"))
    trainer.close()
    assert recorder.trained == whole.trained[:fail_at]
    resumed = fitted(data.loader(kind), "12ba", load_path=str(tmp_path / "failed.pt"))
    # The failed step had drawn nothing yet, so that the weights are the same, too.
    assert_same_from(fail_at, resumed, whole)


def test_fit_again_after_a_failed_step_repeats_its_batch(
    data: Data, undisturbed: Undisturbed
) -> None:
    """The same trainer and loader, without a checkpoint."""
    whole, _ = undisturbed("photographs")
    trainer, recorder = trainer_of(data.loader(), "12ba", fail_at=3)
    with pytest.raises(RuntimeError, match="power failure"):
        trainer.fit()
    recorder.fail_at = None
    trainer.fit()
    trainer.close()
    assert recorder.trained == whole.trained


class FailsOnce:
    """Raises when it is called for the ``at``-th batch, as a batch's way to the device may."""

    def __init__(self, at: int) -> None:
        self._before = at

    def __call__(self, batch: Any) -> Any:
        self._before -= 1
        if self._before == -1:
            raise RuntimeError("power failure")
        return batch


@pytest.mark.parametrize("fail_at", [3, 6, 7])
@pytest.mark.parametrize("kind", ["photographs", "2 processes", "lanes"])
def test_the_batch_of_a_failed_transform_comes_again(
    kind: str, fail_at: int, data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """It was fetched, and the callback has not been told: saved and resumed, or fitted again."""
    from composer.core import DataSpec

    whole, _ = undisturbed(kind)
    spec = DataSpec(data.loader(kind), batch_transforms=FailsOnce(fail_at))
    trainer, recorder = trainer_of(spec, "12ba")
    with pytest.raises(RuntimeError, match="power failure"):
        trainer.fit()
    trainer.save_checkpoint(str(tmp_path / "failed.pt"))
    assert recorder.trained == whole.trained[:fail_at]
    resumed = fitted(data.loader(kind), "12ba", load_path=str(tmp_path / "failed.pt"))
    assert_same_from(fail_at, resumed, whole)
    trainer.fit()
    trainer.close()
    assert recorder.trained == whole.trained


def test_an_epochs_end_is_no_batch_in_flight(
    data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A failure between the loader's end, which moves its place, and the trainer's next epoch."""
    whole, _ = undisturbed("unsized")
    trainer, recorder = trainer_of(data.loader("unsized"), "12ba")
    trainer.state.train_metrics = {}
    log_metrics = trainer._compute_and_log_metrics

    def fails_at_the_end(*args: Any, **named: Any) -> None:
        if len(recorder.trained) == 6:
            raise RuntimeError("power failure")
        log_metrics(*args, **named)

    trainer._compute_and_log_metrics = fails_at_the_end
    with pytest.raises(RuntimeError, match="power failure"):
        trainer.fit()
    trainer.save_checkpoint(str(tmp_path / "failed.pt"))
    trainer.close()
    assert recorder.trained == whole.trained[:6]
    resumed = fitted(data.loader("unsized"), "12ba", load_path=str(tmp_path / "failed.pt"))
    assert_same_from(6, resumed, whole)


def test_a_failure_before_the_fetch_leaves_no_batch_in_flight(
    data: Data, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """In a callback behind this one: the loader's last batch was trained on."""
    from composer.core import Callback

    class Fails(Callback):
        def before_dataloader(self, state: Any, logger: Any) -> None:
            if int(state.timestamp.batch) == 3:
                raise RuntimeError("power failure")

    whole, _ = undisturbed("photographs")
    trainer, recorder = trainer_of(data.loader(), "12ba")
    trainer.state.callbacks.append(Fails())
    with pytest.raises(RuntimeError, match="power failure"):
        trainer.fit()
    trainer.save_checkpoint(str(tmp_path / "failed.pt"))
    trainer.close()
    assert recorder.trained == whole.trained[:3]
    resumed = fitted(data.loader(), "12ba", load_path=str(tmp_path / "failed.pt"))
    assert_same_from(3, resumed, whole)
