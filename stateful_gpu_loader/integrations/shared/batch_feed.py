"""The batches of a loader as samples of a dataset, for trainers that build loaders anew.

Accelerate's ``skip_first_batches``, and so the Trainer of transformers, makes another DataLoader
of a loader's dataset and batch sampler. Here these are the loader itself: whatever is built of
them delivers its batches, and passes over what was delivered before a resume without making it.
"""

from __future__ import annotations

import json
import math
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
    """The batches of a loader's passes, each by its number in its epoch.

    Args:
        loader: this rank's.

    >>> loader = StatefulGPULoader(range(6), batch_size=2)
    >>> feed = BatchFeed(loader)
    >>> [batch.tolist() for batch in torch.utils.data.DataLoader(feed, **feed.arguments())]
    [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(self, loader: StatefulGPULoader[Any]) -> None:
        self.loader = loader
        self.numbers = BatchNumbers(self)
        self.passed_over = 0
        """Batches of the next pass that were delivered before the resume."""
        self.num_batches = 0
        """Of the present epoch, that were handed out, or delivered before the resume."""
        self._is_resumed = False
        self._run: weakref.ref[Any] | None = None
        self._requested: int | None = None
        self._held: tuple[int, Any] | None = None
        self._before: dict[str, Any] = {}
        self._behind: dict[str, Any] = {}

    def arguments(self) -> dict[str, Any]:
        """What a DataLoader of this dataset is built with; it draws from no generator of yours."""
        return {
            "batch_sampler": self.numbers,
            "collate_fn": only_one,
            "generator": torch.Generator(),
        }

    def __len__(self) -> int:
        """Samples, as users and trainers expect of a loader's dataset."""
        return len(self.loader.dataset)

    def __getattr__(self, name: str) -> Any:
        """What users and trainers ask a loader's dataset for, its classes, say."""
        if name.startswith("_") or name == "loader":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.loader.dataset, name)

    def __getitem__(self, number: int) -> Any:
        """The batch that :meth:`run` has just fetched.

        Raises:
            LoaderError: it asks for another, as one that was delivered before the resume.
        """
        if self._held is not None and self._held[0] == number:
            (_, batch), self._held = self._held, None
            return batch
        if isinstance(number, int) and number < self.passed_over:
            raise LoaderError(
                f"batch {number} of the epoch was delivered before the checkpoint, which has "
                f"{self.passed_over} of them. Remedy: skip as many, or do not skip at all"
            )
        raise LoaderError(
            f"[{number!r}] of a {type(self).__name__}, which has the batch that a pass has just "
            "fetched, and no samples. Remedy: iterate the loader; samples are those of the "
            "dataset that you gave to it"
        )

    def run(self) -> Iterator[list[int]]:
        """A pass: the numbers of its batches, each of which is fetched when its number is.

        Raises:
            LoaderError: more batches were skipped than were delivered before the resume.
        """
        is_resumed = self._is_resumed and not self._follows_an_epoch
        if not is_resumed:
            self.passed_over = 0
        first, is_first = self.passed_over, True
        yield from ([number] for number in range(first))
        if self._requested is None:
            # A sampler of the user's is told its epoch, as trainers do.
            self.loader.set_epoch(self.next_epoch)
        self.passed_over, self._is_resumed, self._requested = 0, False, None
        run = iter(self.loader)
        # Weakly: a pass that is broken off gives its workers back.
        self._run, self.num_batches = weakref.ref(run), first
        while True:
            try:
                batch = next(run)
            except StopIteration:
                # Whoever looks one batch ahead is in the last one now.
                self._before, self._run = self._behind, None
                return
            self._before = self.loader.state_dict(batches_ago=1) if is_first else self._behind
            self._behind, is_first = self.loader.state_dict(), False
            self._held = self.num_batches, batch
            self.num_batches += 1
            yield [self.num_batches - 1]
            if is_resumed and self._held is not None:
                raise LoaderError(
                    f"batch {self._held[0]} of the epoch was skipped, and the checkpoint was saved "
                    f"behind {first} of them: it would be lost. Remedy: skip as many, or do not "
                    "skip at all"
                )

    def state_before_the_last(self) -> dict[str, Any]:
        """The state of a consumer that has one batch less than was fetched."""
        return dict(self._before or self.loader.state_dict())

    def finish(self) -> None:
        """End a pass whose consumer has all the batches that it wants of the epoch."""
        run = None if self._run is None else self._run()
        if run is not None:
            deque(run, maxlen=0)
            self._run = None

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one of this epoch, as :meth:`StatefulGPULoader.set_epoch`."""
        self.loader.set_epoch(epoch)
        self._requested = epoch

    @property
    def next_epoch(self) -> int:
        """The epoch that the next pass is asked to take."""
        if self._requested is not None:
            return self._requested
        return int(self.loader.state_dict()["epoch"]) + self._follows_an_epoch

    @property
    def next_position(self) -> int:
        """Where the next pass begins in its epoch's order."""
        return 0 if self._follows_an_epoch else int(self.loader.state_dict()["position"])

    @property
    def _follows_an_epoch(self) -> bool:
        """Whether the next pass is of a later epoch than the state is."""
        if self._run is not None or not self._is_resumed:
            return self._run is not None
        place = self.loader._engine.passes.address()
        skips = self.loader.on_epoch_boundary == "next_epoch" or self._requested == place.epoch + 1
        return skips and _is_over(self.loader, place)

    def load_state_dict(self, state: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Go on from a state of the loader, or of all ranks' loaders.

        Raises:
            StateMismatch: it does not fit; nothing was changed.
        """
        load_own_state(self.loader, dict(state), accept=accept)
        self._run, self._held, self._requested = None, None, None
        self._before = self._behind = {}
        self.passed_over = self.num_batches = batches_before(self.loader)
        self._is_resumed = True


class BatchNumbers(Sampler[list[int]]):
    """The batch sampler of a :class:`BatchFeed`: a number a batch."""

    def __init__(self, feed: BatchFeed) -> None:
        self.feed = feed
        self.length: int | None = None
        """Of all epochs, where a trainer counts on the first one's."""

    def __iter__(self) -> Iterator[list[int]]:
        return self.feed.run()

    def __len__(self) -> int:
        """Batches of an epoch.

        Raises:
            TypeError: nobody knows.
        """
        return len(self.feed.loader) if self.length is None else self.length

    @property
    def batch_size(self) -> int | None:
        """Samples of all ranks in one step, as trainers understand a prepared loader's."""
        size: int | None = self.feed.loader.state_dict()["global_batch_size"]
        return size


def batches_before(loader: StatefulGPULoader[Any]) -> int:
    """Batches of its epoch that were delivered before a loader's place.

    >>> loader = StatefulGPULoader(range(6), batch_size=2)
    >>> batch = next(iter(loader))
    >>> batches_before(loader)
    1
    """
    state = loader.state_dict()
    order = json.loads(state["fingerprint"])["order"]
    position, size = int(state["position"]), state["global_batch_size"]
    if size is None or order == "iterable" or order.startswith("lanes"):
        return position
    number = math.ceil(position / int(size))
    # Behind a tail that is left out, the position is the epoch's end.
    return min(number, len(loader)) if loader.drop_last else number


def _is_over(loader: StatefulGPULoader[Any], place: Any) -> bool:
    """Whether nothing is left of an epoch, as the loader itself sees it when a pass begins."""
    division, order = loader._engine.plan.division, loader._engine.plan.order
    if division is None or order is None or place.user is not None or not place.position:
        return False
    return not division.num_steps(order.of_epoch(0, place.epoch).n - place.position)


def only_one(batches: list[Any]) -> Any:
    """The batch, of which there is one for each number."""
    return batches[0]
