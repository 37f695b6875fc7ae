"""ParallelAwareLoader: this package's loader in place of torchtitan's ParallelAwareDataloader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader.integrations.dcp import RankedState
from stateful_gpu_loader.loader import StatefulGPULoader


class ParallelAwareLoader(RankedState):
    """The dataloader that torchtitan iterates and saves in its checkpoints.

    Like ``ParallelAwareDataloader``, it keeps one state for each data-parallel rank, which ranks of
    tensor and pipeline parallelism share, and ignores an empty state. Unlike it, the state resumes
    on another data-parallel degree, or is refused with both numbers named. A rank's missing state
    is an error, and nothing is pickled.

    torchtitan iterates a loader once and has no epochs, so give the loader a sampler as long as the
    run, ``ShuffledSampler(dataset, num_samples=steps * global_batch_size)``.

    Args:
        loader: built with ``rank=dp_rank, num_replicas=dp_world_size``.
        dp_rank, dp_world_size: values that torchtitan passes to the dataloader's builder.
        group: for the exchange of states; None is all processes. A smaller group is sufficient if
            it contains each data-parallel rank: ``mesh["dp"].get_group()``.

    Raises:
        ValueError: ``dp_rank`` is out of range.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> def build_dataloader(dp_world_size, dp_rank):
    ...     loader = StatefulGPULoader(
    ...         range(8), batch_size=4, seed=1, rank=dp_rank, num_replicas=dp_world_size
    ...     )
    ...     return ParallelAwareLoader(loader, dp_rank, dp_world_size)
    >>> dataloader = build_dataloader(dp_world_size=1, dp_rank=0)
    >>> next(iter(dataloader)).tolist()
    [0, 1, 2, 3]
    >>> resumed = build_dataloader(dp_world_size=1, dp_rank=0)
    >>> resumed.load_state_dict(dataloader.state_dict())
    >>> next(iter(resumed)).tolist()
    [4, 5, 6, 7]
    """

    def __init__(
        self, loader: StatefulGPULoader[Any], dp_rank: int, dp_world_size: int, *, group: Any = None
    ) -> None:
        super().__init__(loader, group, dp_rank=dp_rank, dp_world_size=dp_world_size)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
