"""Applies ``batch_transform``, with randomness keyed by the first position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from stateful_gpu_loader.engine.isolation import isolated
from stateful_gpu_loader.randomness.global_generators import seed_global_generators
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds, uniforms
from stateful_gpu_loader.state.descriptions import describe
from stateful_gpu_loader.transforms.recipe import BatchRecipe


class BatchTransform:
    """Calls one or several transforms on the whole batch, on its device.

    They run in the user's thread, the only one in which global generators may be seeded, and the
    caller's generators are restored afterwards. Batch recipes do not use global generators.

    Args:
        given: a batch recipe, a callable, or a list of them.

    Raises:
        TypeError: a part of it is not callable.
    """

    def __init__(self, given: Any) -> None:
        self.steps = list(given) if isinstance(given, (list, tuple)) else [given]
        for step in self.steps:
            if not callable(step):
                raise TypeError(
                    f"batch_transform has {step!r} of type {type(step).__name__}, which is not "
                    "callable. Remedy: pass MixUp, CutMix, or a callable on the batch"
                )
        self._draws = not all(isinstance(step, BatchRecipe) for step in self.steps)

    def __call__(
        self, batch: Any, *, device: torch.device | None, seed: int, epoch: int, position: int
    ) -> Any:
        """Return the transformed batch.

        Args:
            batch: the batch as it would be delivered.
            device: device of the batch if it is a GPU, otherwise None.
            position: position of the batch's first sample.
        """
        return isolated(self._transformed, batch, device, seed, epoch, position, draws=self._draws)

    def _transformed(
        self, batch: Any, device: torch.device | None, seed: int, epoch: int, position: int
    ) -> Any:
        keyed = None
        if self._draws:
            (keyed,) = sample_seeds(seed, epoch, [position], Stream.BATCH_TRANSFORM)
            seed_global_generators(keyed)
        with nullcontext() if device is None else isolated_gpu(device, keyed):
            used = 0
            for step in self.steps:
                if isinstance(step, BatchRecipe):
                    numbers = uniforms(
                        seed, epoch, [position], Stream.BATCH_RECIPES, used + step.num_draws
                    )[0, used:]
                    batch = step.transform(batch, numbers)
                    used += step.num_draws
                else:
                    batch = step(batch)
        return batch

    def fingerprint(self) -> str:
        """Return a description of the steps, for the state."""
        return ", ".join(describe(step) for step in self.steps)


@contextmanager
def isolated_gpu(device: torch.device, keyed: int | None) -> Iterator[None]:
    """Make the batch's GPU current and seed its generator; restore both on exit.

    Args:
        device: a CUDA device with its index.
        keyed: the seed, or None to leave the generator alone.
    """
    with torch.cuda.device(device):
        if keyed is None:
            yield
            return
        generator = torch.cuda.default_generators[device.index]
        state = generator.get_state()
        generator.manual_seed(keyed)
        try:
            yield
        finally:
            generator.set_state(state)
