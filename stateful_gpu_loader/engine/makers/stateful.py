"""Batches of a map-style dataset that carries state of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateful_gpu_loader.engine.pipeline import Maker
from stateful_gpu_loader.engine.user_objects import load_user_state, state_of
from stateful_gpu_loader.records import Request, WorkerStart
from stateful_gpu_loader.state.snapshot import freeze, thaw
from stateful_gpu_loader.state.user_states import worker_state


class DatasetStateMaker:
    """Another maker, and the state of its dataset around it.

    Generators stay keyed by the sample: a dataset whose state is that of a global generator is
    exact with it and without it.
    """

    def __init__(self, dataset: Any, maker: Maker) -> None:
        self._dataset = dataset
        self._maker = maker
        self.uses_global_generators = maker.uses_global_generators

    def begin(self, start: WorkerStart) -> None:
        """Load the dataset's state, if the pass goes on from one."""
        if start.state is not None:
            load_user_state("dataset", self._dataset, thaw(start.state)["dataset"])

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        return self._maker(request, check)

    def snapshot(self) -> bytes:
        """The dataset's frozen state."""
        state = worker_state(dataset=state_of(self._dataset))
        return freeze(state, type(self._dataset).__name__)
