"""ShardedDataset: named shards, and one generator that reads a shard from a cursor on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.content_id import ContentDigest

DEFAULT_LANES = 64


class ShardedDataset(IterableDataset[Any], ABC):
    """An iterable dataset that resumes on any number of workers, and of ranks.

    A subclass names its shards and reads one of them. A loader deals the shards into lanes, reads
    each lane in order and keeps a cursor for each, so that nothing is read twice.

    Attributes:
        num_lanes: how many shards are read at a time, all workers and ranks together; None is 64,
            or the number of shards if there are fewer. A number of ranks must divide it.
        shuffle_buffer: with ``shuffle=True`` samples are shuffled in windows of
            ``shuffle_buffer // num_lanes`` of a lane; ``shuffle_buffer`` is how many are in memory
            at a time, in all workers together.

    >>> class Squares(ShardedDataset):
    ...     def shards(self):
    ...         return ["0", "100", "200"]
    ...     def read_shard(self, shard, cursor):
    ...         for number in range(cursor, 4):
    ...             yield (int(shard) + number) ** 2, number + 1
    >>> list(Squares())[:6]
    [0, 1, 4, 9, 10000, 10201]
    """

    num_lanes: int | None = None
    shuffle_buffer: int = 8192

    @abstractmethod
    def shards(self) -> Sequence[str]:
        """The names of the shards, none twice, in the same order in every process."""

    @abstractmethod
    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        """Each sample from ``cursor`` on, with the cursor of the next sample.

        Where a single sample is malformed, it may yield the ValueError instead of the sample: the
        loader then raises it or leaves out this sample alone, and reading goes on.

        The loader seeds the global generators anew for each sample. So draw from them for a sample,
        and not once for a shard, since a resume begins in its middle. A sample may be read twice.

        Args:
            shard: one of :meth:`shards`.
            cursor: 0 for the beginning, else what came with an earlier sample: a count of samples,
                or an offset in bytes, as suits the format; 0 <= cursor < 2**63.

        Raises:
            OSError: the storage failed.
            ValueError: the shard is damaged from here on.
        """

    def num_samples(self, shard: str) -> int | None:
        """How many samples a shard has, where that is known without reading it.

        Where it is for all shards, every rank delivers as many batches, and ``len(loader)`` is
        known.
        """
        return None

    def fingerprint(self) -> str:
        """The content id: by default of the names of the shards, in order."""
        digest = ContentDigest("shards 1")
        for name in self.shards():
            digest.add_name(name)
        return f"{len(self.shards())} shards, {digest.text()}"

    def __iter__(self) -> Iterator[Any]:
        """All samples in order, without a loader of this package; workers divide the shards."""
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for shard in self.shards()[first::step]:
            for sample, _ in self.read_shard(shard, 0):
                if isinstance(sample, ValueError):
                    raise sample
                yield sample


class EncodedShards(ShardedDataset):
    """Shards of encoded images: the loader decodes and augments them as those of a Source.

    ``read_shard`` yields :class:`EncodedSample`, and draws nothing from the global generators.
    Iterated without a loader it gives ``(data, target)``, as a Source does.
    """

    @abstractmethod
    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]: ...

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            yield sample.data, sample.target


def sample_or_error(make: Callable[..., Any], *arguments: Any) -> Any:
    """What ``make`` returns, or the ValueError that it raises.

    >>> sample_or_error(int, "seven")
    ValueError("invalid literal for int() with base 10: 'seven'")
    """
    try:
        return make(*arguments)
    except ValueError as error:
        return error
