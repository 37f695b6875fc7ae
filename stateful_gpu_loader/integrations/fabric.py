"""``fabric.setup_dataloaders`` for StatefulGPULoaders, with exact resume in every epoch.

This file imports nothing from Lightning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch.distributed as dist

from stateful_gpu_loader.integrations.shared.dividing import divided
from stateful_gpu_loader.integrations.shared.every_rank import load_own_state, state_of_all_ranks
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.samplers import OWN_SAMPLERS


def setup_dataloaders(
    fabric: Any,
    *dataloaders: StatefulGPULoader[Any],
    use_distributed_sampler: bool = True,
    move_to_device: bool = True,
) -> Any:
    """Use this instead of ``fabric.setup_dataloaders(*dataloaders)``, with the same arguments.

    Fabric's own function counts epochs from 0 in every process, divides an undivided loader by
    torch's DistributedSampler, and saves only the state of rank 0.

    Args:
        fabric: a launched ``lightning.fabric.Fabric``.
        dataloaders: one or more loaders.
        use_distributed_sampler: divide undivided loaders, by their own order, among the
            data-parallel ranks of Fabric's strategy. Any number of ranks then delivers the same
            global batches. ``False`` leaves the loaders unchanged.
        move_to_device: move batches to ``fabric.device``.

    Returns:
        A :class:`FabricLoader`, or a list of them for several loaders.

    Raises:
        TypeError: a loader is not a StatefulGPULoader.
        ValueError: no loader is given, or your sampler would give every rank the same samples.
        RuntimeError: ``fabric.launch()`` was not called.

    >>> from lightning.fabric import Fabric
    >>> fabric = Fabric(accelerator="cpu", devices=1)
    >>> loader = setup_dataloaders(fabric, StatefulGPULoader(range(6), batch_size=2))
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4, 5]]
    """
    if not dataloaders:
        raise ValueError("no loader was given. Remedy: setup_dataloaders(fabric, loader)")
    for loader in dataloaders:
        if not isinstance(loader, StatefulGPULoader):
            raise TypeError(
                f"{type(loader).__name__} is not a StatefulGPULoader. Remedy: pass the loader "
                "before Fabric or this function has wrapped it; "
                "fabric.setup_dataloaders() is for other loaders"
            )
    if fabric.world_size > 1 and not dist.is_initialized():
        raise RuntimeError(
            f"{fabric.world_size = }, and the processes have not joined. Remedy: call "
            "fabric.launch() first"
        )
    ranks = getattr(fabric.strategy, "distributed_sampler_kwargs", None)
    set_up = [
        FabricLoader(
            fabric,
            loader
            if ranks is None or not use_distributed_sampler
            else divided(loader, num_replicas=ranks["num_replicas"], rank=ranks["rank"]),
            move_to_device=move_to_device,
        )
        for loader in dataloaders
    ]
    return set_up[0] if len(set_up) == 1 else set_up


class FabricLoader:
    """A loader that belongs to a Fabric, made by :func:`setup_dataloaders`.

    Iterate it, and put it into the dictionary for ``fabric.save`` and ``fabric.load``. From a
    sharded checkpoint (a folder, as of FSDP and ModelParallelStrategy) Fabric restores only the
    value in the dictionary: call ``loader.load_state_dict(state["loader"])`` after ``fabric.load``.
    All other attributes are those of the StatefulGPULoader.

    Args:
        fabric: a ``lightning.fabric.Fabric``.
        loader: this rank's loader.
        move_to_device: whether batches are moved to ``fabric.device``.
    """

    def __init__(
        self, fabric: Any, loader: StatefulGPULoader[Any], *, move_to_device: bool
    ) -> None:
        self._fabric = fabric
        self._loader = loader
        self._moves = move_to_device
        self._next_epoch = 0

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch on this rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Begin a new pass; the user's samplers receive its epoch, as with Fabric."""
        for sampler in _samplers_of(self._loader):
            sampler.set_epoch(self._next_epoch)
        self._next_epoch += 1
        for batch in self._loader:
            yield self._fabric.to_device(batch) if self._moves else batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, as in :meth:`StatefulGPULoader.set_epoch`."""
        self._loader.set_epoch(epoch)
        self._next_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks after the last delivered batch; a collective call.

        Raises:
            StateMismatch: the ranks are not at the same step.
        """
        return state_of_all_ranks(self._loader)

    def load_state_dict(self, state_dict: dict[str, Any], accept: Collection[str] = ()) -> None:
        """Continue from a state, in its epoch, on any number of ranks.

        Args:
            state_dict: state of a FabricLoader or a StatefulGPULoader.
            accept: as for :meth:`StatefulGPULoader.load_state_dict`.

        Raises:
            StateMismatch: the state is damaged, or belongs to another loader; nothing was changed.
        """
        load_own_state(self._loader, state_dict, accept=accept)
        self._next_epoch = int(self._loader.state_dict()["epoch"])


def _samplers_of(loader: StatefulGPULoader[Any]) -> list[Any]:
    """Return the user's samplers with ``set_epoch``; this package's get the loader's epoch."""
    given = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = {id(sampler): sampler for sampler in given if hasattr(sampler, "set_epoch")}
    return [sampler for sampler in found.values() if not isinstance(sampler, OWN_SAMPLERS)]
