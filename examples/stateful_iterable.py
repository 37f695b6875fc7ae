"""An iterable dataset with its own state, one part in each worker, saved and resumed.

All workers shuffle in the same way, and each takes its part of the order. The dataset's state is
the place in that part; it has torchdata's two methods, `state_dict` and `load_state_dict`. Based on
torchdata's StatefulDataLoader tutorial, the part on iterable datasets.

Safer here:
- A state loaded after `iter()` takes effect, and one loaded with `persistent_workers=True` applies
  only to its pass. torchdata ignores the first and carries the second into later epochs.
- A killed worker is replaced, and continues from the last state that it sent.
- Another number of workers is refused by name, before anything is changed.
"""

import io
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from stateful_gpu_loader import StatefulGPULoader


class Shards(IterableDataset[int]):
    def __init__(self, length: int) -> None:
        self.length, self.place = length, 0

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(1))
        part = order[number::count].tolist()
        while self.place < len(part):
            self.place += 1
            yield part[self.place - 1]
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def build(num_workers: int) -> StatefulGPULoader[torch.Tensor]:
    return StatefulGPULoader(Shards(20), batch_size=3, num_workers=num_workers)


def main(num_workers: int) -> None:
    batches = iter(loader := build(num_workers))
    next(batches), next(batches)  # a training run is stopped here
    torch.save(loader.state_dict(), file := io.BytesIO())
    rest = list(batches)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    (resumed := build(num_workers)).load_state_dict(saved)
    for batch, again in zip(rest, resumed, strict=True):
        print(
            f"{num_workers} workers", batch, "the same" if torch.equal(batch, again) else "ANOTHER"
        )


if __name__ == "__main__":
    main(num_workers=0)
    main(num_workers=2)
