"""batch_transform: what is done to a finished batch, keyed by its first position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from stateful_gpu_loader.engine.surroundings import workers_surroundings
from stateful_gpu_loader.randomness import (
    Stream,
    sample_seeds,
    seed_global_generators,
    uniforms,
)
from stateful_gpu_loader.state import describe
from stateful_gpu_loader.transforms.mixing.batch_recipe import BatchRecipe


class BatchTransform:
    """Callables on the whole batch, on the device, one after the other.

    They run in the user's own thread, where alone the global generators may be seeded (DESIGN.md,
    Randomness), and the caller's generators are put back. Batch recipes draw from streams of
    their own and leave them alone.

    Args:
        given: a batch recipe, a callable, or a list of them.
        device: of the batches; None is the CPU.

    Raises:
        TypeError: something in it cannot be called.
    """

    def __init__(self, given: Any, device: torch.device | None) -> None:
        self._steps = list(given) if isinstance(given, (list, tuple)) else [given]
        for step in self._steps:
            if not callable(step):
                raise TypeError(
                    f"batch_transform has {step!r} of type {type(step).__name__}, which is not "
                    "callable. Remedy: pass MixUp, CutMix, or a callable on the batch"
                )
        self._draws = not all(isinstance(step, BatchRecipe) for step in self._steps)
        self._device = device

    def __call__(self, batch: Any, *, seed: int, epoch: int, position: int) -> Any:
        """The transformed batch.

        Args:
            batch: as it would be delivered.
            seed: of the loader.
            epoch: of the batch.
            position: of its first sample.
        """
        with ExitStack() as stack:
            stack.enter_context(workers_surroundings(draws=self._draws))
            if self._draws:
                if self._device is not None and self._device.type == "cuda":
                    stack.enter_context(_cuda_generator_restored(self._device))
                self._seed(seed, epoch, position)
            used = 0
            for step in self._steps:
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
        """The steps as text, for the state."""
        return ", ".join(describe(step) for step in self._steps)

    def _seed(self, seed: int, epoch: int, position: int) -> None:
        (keyed,) = sample_seeds(seed, epoch, [position], Stream.BATCH_TRANSFORM)
        seed_global_generators(keyed)
        if self._device is not None and self._device.type == "cuda":
            cuda_generator(self._device).manual_seed(keyed)


@contextmanager
def _cuda_generator_restored(device: torch.device) -> Iterator[None]:
    generator = cuda_generator(device)
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)


def cuda_generator(device: torch.device) -> torch.Generator:
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
