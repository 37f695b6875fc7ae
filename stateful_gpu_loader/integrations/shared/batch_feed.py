"""A dataset whose samples are a loader's batches, for trainers that rebuild DataLoaders.

Accelerate's ``skip_first_batches``, and so the Trainer of transformers, builds another DataLoader
from a loader's dataset and batch sampler. With those of this file, that DataLoader delivers the
loader's own batches. Batches delivered before a resume are skipped without being read.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.integrations.shared.every_rank import load_own_state
from stateful_gpu_loader.loader import StatefulGPULoader


class BatchFeed(Dataset[Any]):
    """Batches of a loader's passes, each by its number in its epoch.

    Args:
        loader: this rank's loader.

    >>> loader = StatefulGPULoader(range(6), batch_size=2)
    >>> feed = BatchFeed(loader)
    >>> [batch.tolist() for batch in torch.utils.data.DataLoader(feed, **feed.arguments())]
    [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(self, loader: StatefulGPULoader[Any]) -> None:
        self.loader = loader
        self.numbers = BatchNumbers(self)
        self.passed_over = 0
        """Number of batches of the next pass delivered before the resume."""
        self.num_batches = 0
        """Number of batches of the present epoch delivered, before or after the resume."""
        self._is_resumed = False
        self._run: weakref.ref[Any] | None = None
        self._requested: int | None = None
        self._held: tuple[int, Any] | None = None
        self._before_last: dict[str, Any] = {}
        self._after_last: dict[str, Any] = {}

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for a DataLoader of this dataset, with a private generator."""
        return {
            "batch_sampler": self.numbers,
            "collate_fn": only_one,
            "generator": torch.Generator(),
        }

    def __len__(self) -> int:
        """Return the number of samples, as trainers expect of a dataset."""
        return len(self.loader.dataset)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loader's own dataset, such as its ``classes``."""
        if name.startswith("_") or name == "loader":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.loader.dataset, name)

    def __getitem__(self, number: int) -> Any:
        """Return the batch that :meth:`run` has just fetched.

        Raises:
            LoaderError: another batch is requested, such as one delivered before the resume.
        """
        if self._held is not None and self._held[0] == number:
            (_, batch), self._held = self._held, None
            return batch
        if isinstance(number, int) and number < self.passed_over:
            raise LoaderError(
                f"batch {number} of the epoch was delivered before the checkpoint, which has "
                f"{self.passed_over} of them. Remedy: skip exactly these, or do not skip at all"
            )
        raise LoaderError(
            f"[{number!r}] of a {type(self).__name__}, which has the batch that a pass has just "
            "fetched, and no samples. Remedy: iterate the loader; samples are those of the "
            "dataset that you gave to it"
        )

    def run(self) -> Iterator[list[int]]:
        """Yield the numbers of one pass's batches; each batch is fetched with its number.

        Raises:
            LoaderError: more batches were skipped than were delivered before the resume.
        """
        is_resumed = self._is_resumed and not self._follows_an_epoch
        if not is_resumed:
            self.passed_over = 0
        first, is_first = self.passed_over, True
        yield from ([number] for number in range(first))
        if self._requested is None:
            # The user's samplers rely on a trainer's set_epoch().
            self.loader.set_epoch(self.next_epoch)
        self.passed_over, self._is_resumed, self._requested = 0, False, None
        run = iter(self.loader)
        # A weak reference, so that a pass left early releases its workers.
        self._run, self.num_batches = weakref.ref(run), first
        while True:
            try:
                batch = next(run)
            except StopIteration:
                # A consumer one batch ahead holds the last batch now.
                self._before_last, self._run = self._after_last, None
                return
            before = self.loader.state_dict(batches_ago=1) if is_first else self._after_last
            self._before_last, self._after_last = before, self.loader.state_dict()
            is_first = False
            self._held = self.num_batches, batch
            self.num_batches += 1
            yield [self.num_batches - 1]
            if is_resumed and self._held is not None:
                raise LoaderError(
                    f"batch {self._held[0]} of the epoch was skipped, and the checkpoint was saved "
                    f"after {first} of them: it would be lost. Remedy: skip as many, or do not "
                    "skip at all"
                )

    def state_before_the_last(self) -> dict[str, Any]:
        """Return the state for a consumer that fetches one batch ahead of the batch in use."""
        return dict(self._before_last or self.loader.state_dict())

    def finish(self) -> None:
        """End the pass of a consumer that has received all its batches."""
        run = None if self._run is None else self._run()
        if run is not None:
            deque(run, maxlen=0)
            self._run = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, as in :meth:`StatefulGPULoader.set_epoch`."""
        self.loader.set_epoch(epoch)
        self._requested = epoch

    @property
    def next_epoch(self) -> int:
        if self._requested is not None:
            return self._requested
        return int(self.loader.state_dict()["epoch"]) + self._follows_an_epoch

    @property
    def next_position(self) -> int:
        """Position in its epoch's order at which the next pass begins."""
        return 0 if self._follows_an_epoch else int(self.loader.state_dict()["position"])

    @property
    def _follows_an_epoch(self) -> bool:
        """Whether the next pass belongs to a later epoch than the loader's state."""
        if self._run is not None or not self._is_resumed:
            return self._run is not None
        return self.loader.epoch > int(self.loader.state_dict()["epoch"])

    def load_state_dict(self, state: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Continue from a state of the loader, or of the loaders of all ranks.

        Raises:
            StateMismatch: the state does not fit; nothing was changed.
        """
        load_own_state(self.loader, dict(state), accept=accept)
        self._run, self._held, self._requested = None, None, None
        self._before_last = self._after_last = {}
        self.passed_over = self.num_batches = self.loader.batches_done or 0
        self._is_resumed = True


class BatchNumbers(Sampler[list[int]]):
    """Batch sampler of a :class:`BatchFeed`, which yields one number for each batch."""

    def __init__(self, feed: BatchFeed) -> None:
        self.feed = feed
        self.length: int | None = None
        """Number of batches of every epoch, for trainers that rely on the first."""

    def __iter__(self) -> Iterator[list[int]]:
        return self.feed.run()

    def __len__(self) -> int:
        """Return the number of batches of an epoch.

        Raises:
            TypeError: the loader has no length.
        """
        return len(self.feed.loader) if self.length is None else self.length

    @property
    def batch_size(self) -> int | None:
        """Number of samples of all ranks in one step, as trainers expect of a prepared loader."""
        size: int | None = self.feed.loader.state_dict()["global_batch_size"]
        return size


def only_one(batches: list[Any]) -> Any:
    """Collate function: each number stands for one whole batch."""
    return batches[0]
