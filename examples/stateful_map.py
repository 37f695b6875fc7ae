"""A dataset with noise from torch's generator and a sampler with a private one: saved and resumed.

Based on torchdata's StatefulDataLoader tutorial, the part on map-style datasets.

Safer here:
- A dataset like this needs no state. Without its two methods, its draws from `random`,
  `numpy.random` and torch are keyed by the sample, and are the same on any number of workers.
- A killed worker is replaced, and continues from the last state that it sent.
- Another number of workers is refused by name, before anything is changed. torchdata ends with an
  assertion without a message.
"""

import io
from collections.abc import Iterator
from typing import Any

import torch

from stateful_gpu_loader import StatefulGPULoader


class Draws(torch.utils.data.Sampler[int]):
    def __init__(self) -> None:
        self.drawn, self.generator = 0, torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[int]:
        while self.drawn < 10:
            self.drawn += 1
            yield int(torch.randint(100, (), generator=self.generator))
        self.drawn = 0

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.drawn = state["drawn"]


class NoisyNumbers(torch.utils.data.Dataset[float]):
    def __getitem__(self, index: int) -> float:
        return index + torch.randn(()).item()

    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["generator"])


def build(num_workers: int) -> StatefulGPULoader[torch.Tensor]:
    return StatefulGPULoader(NoisyNumbers(), 2, sampler=Draws(), num_workers=num_workers)


def main(num_workers: int) -> None:
    batches = iter(loader := build(num_workers))
    next(batches), next(batches)  # a training run is stopped here
    torch.save(loader.state_dict(), file := io.BytesIO())
    file.seek(0)
    (resumed := build(num_workers)).load_state_dict(torch.load(file, weights_only=True))
    for batch, again in zip(list(batches), resumed, strict=True):
        print(
            f"{num_workers} workers", batch, "the same" if torch.equal(batch, again) else "ANOTHER"
        )


if __name__ == "__main__":
    main(num_workers=0)
    main(num_workers=2)
