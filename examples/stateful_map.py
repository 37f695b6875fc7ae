"""A map-style dataset and a sampler that keep their own random state, saved and resumed.

Both have torchdata's two methods, `state_dict` and `load_state_dict`. The sampler draws indices
from a generator of its own; the dataset adds noise from torch's generator, one in every worker.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from stateful_gpu_loader import StatefulGPULoader


class Draws(Sampler[int]):
    def __init__(self, high: int, count: int) -> None:
        self.high, self.count, self.drawn = high, count, 0
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[int]:
        while self.drawn < self.count:
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
    sampler = Draws(100, count=10)
    return StatefulGPULoader(
        NoisyNumbers(), batch_size=2, sampler=sampler, num_workers=num_workers, seed=0
    )


def main(num_workers: int) -> None:
    batches = iter(loader := build(num_workers))
    next(batches), next(batches)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(loader.state_dict(), path := Path(folder) / "loader.pt")
        rest = list(batches)
        (resumed := build(num_workers)).load_state_dict(torch.load(path, weights_only=True))
    for batch, again in zip(rest, resumed, strict=True):
        print(batch.tolist(), "the same" if torch.equal(batch, again) else "ANOTHER")


if __name__ == "__main__":
    for num_workers in (0, 2):
        print(f"{num_workers} workers")
        main(num_workers)
