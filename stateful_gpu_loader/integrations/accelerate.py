"""``accelerator.prepare`` for a StatefulGPULoader, which Accelerate then saves and restores."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection
from functools import partial
from typing import Any

from stateful_gpu_loader.errors import MissingDependency
from stateful_gpu_loader.integrations.shared.batch_feed import BatchFeed
from stateful_gpu_loader.integrations.shared.dividing import (
    check_divides_itself,
    divided,
    was_loaded,
)
from stateful_gpu_loader.integrations.shared.every_rank import (
    load_all,
    read_states,
    state_for_all_ranks,
    write_states,
)
from stateful_gpu_loader.loader import StatefulGPULoader

try:
    from accelerate.data_loader import DataLoaderShard
except ImportError as error:
    raise MissingDependency(
        "accelerate", needed_for="prepare_loader()", extra="accelerate"
    ) from error

_with_hooks: weakref.WeakSet[Any] = weakref.WeakSet()


def prepare_loader(accelerator: Any, loader: StatefulGPULoader[Any]) -> PreparedLoader:
    """Use this instead of ``accelerator.prepare(loader)``, which would build a plain DataLoader.

    ``accelerator.prepare()`` leaves the result unchanged. ``accelerator.save_state()`` writes the
    loader's state after the batch in use to loader_state.json, and ``accelerator.load_state()``
    loads it, on any number of ranks that the loader allows.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        loader: an undivided loader is divided among the ranks by its own order, as with
            ``num_replicas="auto"``; ``batch_size`` is that of one process.

    Raises:
        TypeError: ``loader`` is not a StatefulGPULoader.
        ValueError: the accelerator's way of dividing batches is not supported, or each process
            would get the same samples.

    >>> from accelerate import Accelerator
    >>> accelerator = Accelerator(cpu=True)
    >>> loader = prepare_loader(accelerator, StatefulGPULoader(range(6), batch_size=2))
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4, 5]]
    """
    if isinstance(loader, PreparedLoader):
        return loader
    if not isinstance(loader, StatefulGPULoader):
        raise TypeError(
            f"{type(loader).__name__} is not a StatefulGPULoader. Remedy: accelerator.prepare() is "
            "for other loaders"
        )
    ranks = {"num_replicas": accelerator.num_processes, "rank": accelerator.process_index}
    if ranks["num_replicas"] > 1:
        _check_ways(accelerator)
        check_divides_itself(loader, ranks["num_replicas"])
    prepared = PreparedLoader(accelerator, divided(loader, **ranks))
    accelerator.prepare_data_loader(prepared)
    if accelerator not in _with_hooks:
        _with_hooks.add(accelerator)
        hooks = _Hooks(accelerator)
        accelerator.register_save_state_pre_hook(hooks.save)
        accelerator.register_load_state_pre_hook(hooks.load)
    return prepared


class PreparedLoader(DataLoaderShard):  # type: ignore[misc]
    """A loader in the form that Accelerate expects, made by :func:`prepare_loader`.

    Accelerate fetches one batch ahead, to synchronize gradients at the last batch of an epoch
    without a known length. ``skip_first_batches`` counts from the beginning of the epoch. Batches
    delivered before a resume are skipped without being read again.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        loader: this process's loader.
    """

    def __init__(self, accelerator: Any, loader: StatefulGPULoader[Any]) -> None:
        self.loader = loader
        self.feed = BatchFeed(loader)
        if was_loaded(loader):
            self.feed.load_state_dict(loader.state_dict())
        # Accelerate would synchronize the order's generator, which all ranks share anyway.
        kinds = [
            kind for kind in accelerator.rng_types if getattr(kind, "value", kind) != "generator"
        ]
        super().__init__(
            self.feed,
            device=accelerator.device if accelerator.device_placement else None,
            rng_types=kinds or None,
            _drop_last=loader.drop_last,
            _non_blocking=accelerator.non_blocking,
            **self.feed.arguments(),
        )
        self._last_batch = 0, 0
        self._is_accelerate_prepared = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("base_dataloader", "loader", "feed"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        ours = name in ("bad_samples", "worker_restarts", "batch_size")
        return getattr(self.loader if ours else self.base_dataloader, name)

    def __iter__(self) -> Any:
        self.feed.passed_over = 0
        return super().__iter__()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled: it belongs to its accelerator. Remedy: "
            "prepare_loader() in the process that iterates it"
        )

    def begin(self) -> None:
        """Prepare a pass; Accelerate calls this before its first batch."""
        super().begin()
        self._last_batch = _last_batch(self.loader, self.feed.next_position)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, as in :meth:`StatefulGPULoader.set_epoch`."""
        self.feed.set_epoch(epoch)

    @property
    def iteration(self) -> int:
        """Epoch that Accelerate sets."""
        return self.feed.next_epoch

    @iteration.setter
    def iteration(self, value: int) -> None:
        """Ignored: the loader knows its epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return this process's state after the last batch that the loop received."""
        references = self.gradient_state.dataloader_references
        if any(getattr(other, "dataset", None) is self.feed for other in references):
            return self.feed.state_before_the_last()
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any], accept: Collection[str] = ()) -> None:
        """Continue from a state of this loader, of a StatefulGPULoader, or of all ranks.

        Raises:
            StateMismatch: the state does not fit; nothing was changed.
        """
        self.feed.load_state_dict(state_dict, accept=accept)


class _Hooks:
    """Functions that an accelerator calls before it saves and loads its own files."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = weakref.ref(accelerator)

    def save(self, models: Any, weights: Any, output_dir: str) -> None:
        accelerator, loaders = self._all()
        states = [state_for_all_ranks(one.loader, one.state_dict()) for one in loaders]
        on_each_node = accelerator.project_configuration.save_on_each_node
        writes = accelerator.is_local_main_process if on_each_node else accelerator.is_main_process
        if loaders and writes:
            write_states(output_dir, states)

    def load(self, models: Any, input_dir: str) -> None:
        _, loaders = self._all()
        if not loaders:
            return
        states, _ = read_states(input_dir, len(loaders), saved_by="prepare_loader()")
        load_all(
            (loader, partial(loader.load_state_dict, state))
            for loader, state in zip(loaders, states, strict=True)
        )

    def _all(self) -> tuple[Any, list[PreparedLoader]]:
        accelerator: Any = self._accelerator()
        prepared = [one for one in accelerator._dataloaders if type(one) is PreparedLoader]
        return accelerator, prepared


def _check_ways(accelerator: Any) -> None:
    """Check that Accelerate divides batches as the loader does."""
    asked = {
        "split_batches": (accelerator.split_batches, "give the batch size of one process"),
        "dispatch_batches": (accelerator.dispatch_batches, "let each process read its own share"),
    }
    for name, (value, remedy) in asked.items():
        if value:
            raise ValueError(
                f"DataLoaderConfiguration({name}={value}), but this loader delivers separate "
                f"batches to each process. Remedy: {name}=False, and {remedy}"
            )
    if not accelerator.even_batches:
        raise ValueError(
            "DataLoaderConfiguration(even_batches=False), but this loader gives every process "
            "equally many samples in every step. Remedy: even_batches=True; with drop_last=True "
            "nothing is repeated"
        )


def _last_batch(loader: StatefulGPULoader[Any], position: int) -> tuple[int, int]:
    """Return the sizes of the last global batch (0 if it is full) and of its repeated part.

    The ranks take samples in turn. In the last turn, ranks without a sample left repeat one.
    """
    division, length = loader._engine.plan.division, loader._engine.plan.num_positions
    if division is None or length is None or division.drop_last:
        return 0, 0
    rest: int = (length - position) % division.global_batch_size
    return rest, -rest % division.num_replicas


def _get_remainder(prepared: PreparedLoader) -> int:
    """Return how many samples of the last global batch ``gather_for_metrics`` keeps; 0 means all.

    It cuts off one repeated sample at the batch's end, but not several.
    """
    own, repeated = prepared._last_batch
    if repeated > 1:
        warnings.warn(
            f"the last batch of all ranks has {own} samples and {repeated} repeated ones between "
            "them: gather_for_metrics() keeps them all. Remedy: evaluate a number of samples that "
            "the number of processes divides, or drop_last=True",
            stacklevel=3,
        )
        return 0
    return own


def _set_remainder(prepared: PreparedLoader, value: int) -> None:
    """Ignored: Accelerate sets its own count."""


# Set here, because Accelerate replaces an attribute of this name in the class body.
PreparedLoader.remainder = property(_get_remainder, _set_remainder)
