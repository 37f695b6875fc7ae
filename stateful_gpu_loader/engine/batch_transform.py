"""batch_transform: what is done to a finished batch, keyed by its first position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from stateful_gpu_loader.engine.isolation import isolated
from stateful_gpu_loader.randomness.philox import (
    Stream,
    sample_seeds,
    seed_global_generators,
    uniforms,
)
from stateful_gpu_loader.state.descriptions import describe
from stateful_gpu_loader.transforms.batch_recipe import BatchRecipe


class BatchTransform:
    """Callables on the whole batch, on the device, one after the other.

    They run in the user's own thread, where alone the global generators may be seeded, and the
    caller's generators are put back. Batch recipes draw from streams of their own and leave them
    alone.

    Args:
        given: a batch recipe, a callable, or a list of them.

    Raises:
        TypeError: something in it cannot be called.
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
        """The transformed batch.

        Args:
            batch: as it would be delivered.
            device: where it lies, if that is a GPU.
            seed: of the loader.
            epoch: of the batch.
            position: of its first sample.
        """
        with ExitStack() as stack:
            stack.enter_context(isolated(draws=self._draws))
            keyed = None
            if self._draws:
                (keyed,) = sample_seeds(seed, epoch, [position], Stream.BATCH_TRANSFORM)
                seed_global_generators(keyed)
            if device is not None:
                stack.enter_context(isolated_gpu(device, keyed))
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
        """The steps as text, for the state."""
        return ", ".join(describe(step) for step in self.steps)


@contextmanager
def isolated_gpu(device: torch.device, keyed: int | None) -> Iterator[None]:
    """The GPU of the batch is the current one, its generator seeded; both as before on exit.

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
