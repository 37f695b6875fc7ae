"""A map-style dataset and a sampler that keep their own random state, saved and resumed.

Both have torchdata's two methods, `state_dict` and `load_state_dict`. The sampler draws indices
from a generator of its own; the dataset adds noise from torch's generator, one in every worker.
"""

import io
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from stateful_gpu_loader import StatefulGPULoader


class Draws(Sampler[int]):
    def __init__(self, high: int) -> None:
        self.high, self.drawn = high, 0
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[int]:
        while self.drawn < 10:
            self.drawn += 1
            yield int(torch.randint(self.high, (), generator=self.generator))
        self.drawn = 0

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]
        self.generator.set_state(state["generator"])


class NoisyNumbers(Dataset[float]):
    def __getitem__(self, index: int) -> float:
        return index + 0.1 * torch.randn(()).item()

    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["generator"])


def build(num_workers: int) -> StatefulGPULoader[torch.Tensor]:
    return StatefulGPULoader(NoisyNumbers(), 2, sampler=Draws(100), num_workers=num_workers)


def main(num_workers: int) -> None:
    batches = iter(loader := build(num_workers))
    next(batches), next(batches)
    torch.save(loader.state_dict(), file := io.BytesIO())
    rest = list(batches)
    file.seek(0)
    resumed = build(num_workers)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for batch, again in zip(rest, resumed, strict=True):
        print(batch.tolist(), "the same" if torch.equal(batch, again) else "ANOTHER")


if __name__ == "__main__":
    for num_workers in (0, 2):
        print(f"{num_workers} workers")
        main(num_workers)
