"""Loaders that meet bad samples, and what their runs and states are compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import copy_of, same, through_json, uninterrupted
from tests.engine.makers.damaged import Damaged

N = 22
BAD = {1, 4, 6, 7, 13, 20}
ERRORS: dict[Any, Callable[[], Exception]] = {
    index: partial(ValueError, f"no label {index}") for index in BAD
}
Loader = StatefulGPULoader[Any]
modes = pytest.mark.parametrize("mode", ["replace", "drop"])


def make(dataset: Any = None, **arguments: Any) -> Loader:
    dataset = Damaged(N, ERRORS) if dataset is None else dataset
    return StatefulGPULoader(
        dataset,
        **{"batch_size": 4, "shuffle": True, "seed": 3, "on_bad_sample": "drop"} | arguments,
    )


def assert_same_run(build: Callable[..., Loader], executions: list[dict[str, Any]]) -> None:
    alone = build(num_workers=0)
    wanted = [[copy_of(batch) for batch in alone] for _ in range(2)]
    assert alone.bad_samples.total > len(alone.bad_samples) > 3, "met in both epochs"
    for execution in executions:
        loader = build(**execution)
        assert same([[copy_of(batch) for batch in loader] for _ in range(2)], wanted), execution
        assert loader.bad_samples == alone.bad_samples, execution
        assert loader.state_dict() == alone.state_dict(), execution


def assert_states_follow(build: Callable[..., Loader], executions: list[dict[str, Any]]) -> None:
    """The state behind every batch, with its record, is that of the uninterrupted run."""
    _, states = uninterrupted(build(), 2)
    assert any(state["bad_samples"] for state in states.values())
    for number, (epoch, start) in enumerate(states):
        if epoch == 2:
            continue
        loader = build(**executions[number % len(executions)])
        loader.load_state_dict(through_json(states[epoch, start]))
        for delivered, _ in enumerate(loader, start + 1):
            assert loader.state_dict() == states[epoch, delivered], (epoch, start, delivered)
        assert loader.state_dict() == states[epoch + 1, 0]
