"""Checkpoints in ``saved_before/``, of the first release with the callback, still resume exactly.

:func:`tests.integrations.lightning.recorded_fits.saved_everywhere` wrote them, with the jobs below,
torch 2.15 and Lightning 2.6.6. Never rewrite them: they stand for users' files.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.lightning.recorded_fits import (
    OF_LIGHTNING,
    READS_AGAIN,
    assert_same,
    fit,
)
from tests.integrations.lightning.streams import StatefulStream, called, noisy, stream

pytestmark = [pytest.mark.filterwarnings(text) for text in (*OF_LIGHTNING, READS_AGAIN)]
FOLDER = Path(__file__).with_name("saved_before")


def cycled() -> list[Any]:
    return [stream(8), stream(20, StatefulStream), noisy(8), called()]


def two_validations() -> list[Any]:
    return [noisy(12, shuffle=False), stream(10)]


JOBS: dict[str, tuple[Any, dict[str, Any]]] = {
    "in_a_validation": (
        partial(noisy, 16),
        {"validation": two_validations, "limit_val_batches": 2, "max_epochs": 2},
    ),
    "unsized_with_state": (partial(stream, 10, StatefulStream), {"max_epochs": 2}),
    "cycled_in_an_epoch": (cycled, {"max_epochs": 2}),
    "cycled_at_an_epochs_end": (cycled, {"max_epochs": 2}),
    "stopped_by_max_steps": (
        partial(stream, 10),
        {"max_steps": 10, "max_epochs": -1, "validation": partial(noisy, 12)},
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_saved_checkpoint_still_resumes(name: str) -> None:
    make, arguments = JOBS[name]
    uninterrupted = fit(make, **arguments)
    saved = torch.load(FOLDER / f"{name}.ckpt", weights_only=True)
    assert 0 < len(saved["trained"]) < len(uninterrupted.trained) or name == "in_a_validation"
    resumed = fit(make, resume=FOLDER / f"{name}.ckpt", **arguments)
    assert_same(resumed, uninterrupted)
