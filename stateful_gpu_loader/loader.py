"""StatefulGPULoader: the public class, its arguments, ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

import copy
import html
import inspect
import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader
from typing_extensions import TypeVar

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.engine.arguments import as_torch_takes, check_accept, check_arguments
from stateful_gpu_loader.engine.config import ARGUMENTS, Change, LoaderConfig
from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.loader_conversion import LoaderConversion
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.reflection import Rebuildable
from stateful_gpu_loader.engine.run import Run
from stateful_gpu_loader.engine.stats import LoaderStats
from stateful_gpu_loader.engine.workers.choice import runs_in_threads
from stateful_gpu_loader.engine.workers.cluster import RemoteWorkers
from stateful_gpu_loader.randomness.global_generators import caller_generators_restored
from stateful_gpu_loader.samplers import is_map
from stateful_gpu_loader.state.bad_samples import BadSamples
from stateful_gpu_loader.state.schema import as_epoch, as_int
from stateful_gpu_loader.state.text_state import TextState

logger = logging.getLogger(__name__)

_T_co = TypeVar("_T_co", covariant=True, default=Any)
_OF_TORCH = ARGUMENTS.keys() & inspect.signature(StatefulDataLoader).parameters
"""Names of the arguments that torchdata's class takes as well."""


class HasBatchType(Protocol[_T_co]):
    """A dataset for which a type checker knows the type of the loader's batches."""

    @property
    def _batch_type(self) -> _T_co: ...


class StatefulGPULoader(Rebuildable, TextState, StatefulDataLoader[_T_co]):
    """A DataLoader whose state resumes an interrupted pass exactly.

    It replaces ``torch.utils.data.DataLoader`` and torchdata's ``StatefulDataLoader`` and takes
    their arguments with the same meaning. It also decodes and augments the images of a
    :class:`Source`, and then yields ``[images, targets]``.

    Args:
        dataset: any dataset; a Source of encoded images is decoded and augmented by the loader.
        batch_size: number of samples in a batch; None delivers single samples.
        shuffle: whether each epoch has a new random order.
        sampler: yields the indices of an epoch, in place of ``shuffle``.
        batch_sampler: yields a list of indices for each batch, in place of ``batch_size``,
            ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: number of workers that make batches; with 0 the loop's own thread makes them.
        collate_fn: makes a batch from a list of samples; None stacks them as ``default_collate``.
        pin_memory: whether batches on the CPU are copied to page-locked memory.
        drop_last: whether an incomplete last batch is left out.
        timeout: seconds to wait for a batch before an error is raised; 0 sets no limit.
        worker_init_fn: called with the worker's number in each new worker process.
        multiprocessing_context: start method of worker processes, such as ``"spawn"``, or a
            context of multiprocessing.
        generator: generator from which a missing ``seed`` is drawn.
        prefetch_factor: number of batches that each worker makes ahead; None is 2.
        persistent_workers: whether workers are kept from one epoch to the next.
        pin_memory_device: accepted for compatibility; it has no effect.
        in_order: whether batches are delivered in order, even if a later one is ready first.
        snapshot_every_n_steps: number of batches between two states of workers that keep state.
        seed: seed of the order and the augmentations. If None, the loader draws a seed once, from
            ``generator`` or torch's default generator, and keeps it in the state. The seed is 0
            instead if ranks divide the data by ``num_replicas``, or by a sampler that has ``rank``
            and ``num_replicas``.
        rank, num_replicas: as in DistributedSampler. None does not divide the dataset, and
            ``num_replicas="auto"`` asks torch.distributed at the first ``next()``.
        device: device of the delivered batches: ``"cuda"``, ``"cuda:1"``, a ``torch.device``, or
            None for the CPU. Images of a Source are decoded and augmented there, ahead of the loop.
            With a callable as ``transform``, with a ``collate_fn``, and for any other dataset, the
            workers make the batch and the loader only copies it to the device.
        decoder: decoder of a Source's images: ``"auto"`` or a name of
            :mod:`stateful_gpu_loader.decoders`.
        cpu_share: share of the GPU-decodable images that the workers' CPUs decode instead, from 0
            to 1. An image's bytes decide who decodes it.
        scaled_decoding: whether large JPEGs are decoded at 1/2, 1/4 or 1/8 of their size if the
            recipes make them smaller still. This is faster and changes the pixels a little, so the
            state records it; docs/decoders.md shows by how much. It needs recipes on the CPU, and
            Pillow.
        transform: a list of recipes of :mod:`stateful_gpu_loader.transforms`, or any callable;
            applied to the image of a Source, or to the whole sample of another dataset.
        batch_transform: MixUp, CutMix, any callable on the finished batch, or a list of them. It
            runs on the device when the batch is delivered. During the call the global generators,
            including the device's, are seeded from the batch's first position.
        worker_type: ``"thread"``, ``"process"``, or ``"auto"``, which takes threads if recipes on a
            Source do all the work and processes otherwise. With ``"auto"``, more than 4 threads are
            spread over several processes, unless ``device`` does the work, the source does not
            support this, or processes are not forked. ``"ray"``, or a
            :class:`~stateful_gpu_loader.integrations.ray.RayWorkers`, takes actors of a Ray
            cluster.
        threads_per_process: largest number of workers that are threads of one process, for work
            that threads can do: with 4, ``num_workers=8`` means 2 processes, and 6 means 2 of 3
            threads. Threads share the memory of their process; if it dies, their batches are made
            again. None is 4 if ``worker_type="auto"`` takes threads of several processes, else 1.
        on_bad_sample: ``"raise"``, ``"replace"`` by another sample of the same order, or
            ``"drop"``. Only corrupt data makes a sample bad. An OSError is retried, then raised.
        max_worker_restarts: number of workers that one batch may lose; the next loss raises
            WorkerLost. With the default of 3, a batch that always kills its worker raises;
            unrelated deaths do not. With 0 any lost worker raises.
        on_epoch_boundary: what is resumed from a state saved after an epoch's last batch but before
            its end: ``"empty"``, the empty rest of that epoch, or ``"next_epoch"``.
        strict: whether ``load_state_dict`` raises StateMismatch, rather than logging a warning, for
            parts named by :attr:`unverified` and for fields that an older state lacks. It is an
            argument of the loader because trainers call ``load_state_dict(state)``.

    Raises:
        ValueError, TypeError: an argument is out of range, or two contradict each other.

    >>> loader = StatefulGPULoader(range(10), batch_size=4, shuffle=True, seed=42)
    >>> batches = iter(loader)
    >>> first = next(batches)
    >>> state = loader.state_dict()
    >>> resumed = StatefulGPULoader(range(10), batch_size=4, shuffle=True, seed=42)
    >>> resumed.load_state_dict(state)
    >>> [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]
    True
    """

    def __init__(
        self,
        dataset: HasBatchType[_T_co] | object,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], _T_co] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        seed: int | None = None,
        rank: int | None = None,
        num_replicas: int | Literal["auto"] | None = None,
        device: torch.device | str | int | None = None,
        decoder: Literal["auto", "torchcodec", "torchvision", "nvimgcodec", "dali"] = "auto",
        cpu_share: float = 0.0,
        scaled_decoding: bool = False,
        transform: Any = None,
        batch_transform: Any = None,
        worker_type: Literal["auto", "thread", "process", "ray"] | RemoteWorkers = "auto",
        threads_per_process: int | None = None,
        on_bad_sample: Literal["raise", "replace", "drop"] = "raise",
        max_worker_restarts: int = 3,
        on_epoch_boundary: Literal["empty", "next_epoch"] = "empty",
        strict: bool = False,
    ) -> None:
        given = LoaderConfig(
            has_batch_sampler=batch_sampler is not None,
            **{name: value for name, value in locals().items() if name in ARGUMENTS},
        )
        check_arguments(given)
        passed_on = as_torch_takes(given)
        with warnings.catch_warnings():
            # torchdata calls a function that torch >= 2.15 deprecates; users cannot change that.
            warnings.filterwarnings("ignore", message=".*set_vital.*")
            super().__init__(**{name: getattr(passed_on, name) for name in _OF_TORCH})
        if batch_sampler is None and is_map(dataset) and batch_size is not None:
            # Trainers that rebuild loaders check for torch's own class, not torchdata's.
            plain = BatchSampler(self.sampler, batch_size, drop_last)
            self.__dict__["batch_sampler"] = plain
        self.shuffle, self.in_order, self.strict = shuffle, in_order, strict
        self.seed, self.rank, self.num_replicas = seed, rank, num_replicas
        self.device, self.decoder, self.cpu_share = device, decoder, cpu_share
        self.scaled_decoding = scaled_decoding
        self.transform, self.batch_transform = transform, batch_transform
        self.worker_type, self.threads_per_process = worker_type, threads_per_process
        self.on_bad_sample, self.on_epoch_boundary = on_bad_sample, on_epoch_boundary
        self.max_worker_restarts = max_worker_restarts

        plan = Plan.of(replace(given, **{name: getattr(self, name) for name in ARGUMENTS}))
        self.__dict__["_built_engine"] = Engine(plan)
        if num_workers > 0:
            runs_in_threads(plan)  # raises if threads cannot do the work

    def __repr__(self) -> str:
        """Return the dataset, the main arguments and the place; nothing is started.

        >>> StatefulGPULoader(range(10), batch_size=4)
        StatefulGPULoader(range of 10, batch_size=4, num_workers=0, epoch=0, position=0)
        """
        shown = self._shown()
        dataset = shown.pop("dataset", "not built")
        arguments = [dataset, *(f"{name}={value}" for name, value in shown.items())]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _repr_html_(self) -> str:
        """Return the repr as a table for notebooks."""
        rows = "".join(
            f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self._shown().items()
        )
        return f"<b>{type(self).__name__}</b><table>{rows}</table>"

    def _shown(self) -> dict[str, str]:
        engine: Engine | None = self.__dict__.get("_built_engine")
        if engine is None:
            return {}
        # `epoch` would settle a missing seed, which only an iteration or a state should do.
        place = engine.passes.present()
        device = {} if self.device is None else {"device": repr(str(self.device))}
        return {
            "dataset": _brief(self.dataset),
            "batch_size": str(self.batch_size),
            "num_workers": str(self.num_workers),
            **device,
            "epoch": str(place.epoch),
            "position": str(place.position),
        }

    @classmethod
    def from_dataloader(cls, loader: DataLoader[Any], **changes: Any) -> StatefulGPULoader[Any]:
        """Return an equivalent loader that decodes and augments the images itself.

        The dataset becomes a Source: torchvision's ImageFolder and other datasets of image files,
        timm's ImageDataset over a folder, CIFAR, STL10, SVHN, a TensorDataset of uint8 images, and
        a Subset or ConcatDataset of these.
        Its ``transform`` becomes recipes of the same distributions
        (:func:`stateful_gpu_loader.transforms.from_torchvision`). Samplers, ``collate_fn`` and the
        other arguments are carried over. Shuffled orders and drawn numbers are those of this
        class, and the pixels those of its decoder. Single samples, for ``batch_size=None`` and a
        ``collate_fn``, hold plain tensors, and ints as classes. A line of the log, at INFO, names
        the converted dataset and transform.

        Args:
            loader: a DataLoader or a StatefulDataLoader. It stays as it is.
            changes: arguments of this class that replace the carried ones. A ``dataset`` or
                ``transform`` is taken as it is. A ``dataset`` alone gets the recipes of the
                replaced dataset's ``transform``; if that has none, pass both.

        Raises:
            UnsupportedLoader: a part of the loader has no equivalent; ``refused`` names each one.

        >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        >>> dataset = torch.utils.data.TensorDataset(images, torch.arange(4))
        >>> theirs = torch.utils.data.DataLoader(dataset, batch_size=2)
        >>> ours = StatefulGPULoader.from_dataloader(theirs, seed=42)
        >>> [torch.equal(a, b) for a, b in zip(next(iter(ours)), next(iter(theirs)))]
        [True, True]
        """
        conversion = LoaderConversion.of(loader, changes)
        logger.info("from_dataloader: %s", conversion.summary)
        return cls(**conversion.arguments)

    @property
    def _engine(self) -> Engine:
        """Return the engine, after it adopted a sampler that a program assigned to the loader.

        Programs replace ``batch_sampler`` by ``object.__setattr__``, or override
        ``_index_sampler``. torch's DataLoader uses the present sampler at ``iter()``.

        Raises:
            LoaderError: an object was replaced too late, or the loader cannot take it.
        """
        engine: Engine = self.__dict__["_built_engine"]
        engine.follow(self._index_sampler, dataset=self.dataset, collate_fn=self.collate_fn)
        return engine

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; one that determines the content of batches raises a ValueError.

        So does ``num_workers`` if workers keep states from which later passes resume. torch's
        DataLoader protects ``batch_size`` in the same way. Attributes of workers take effect in the
        next pass.
        """
        engine: Engine | None = self.__dict__.get("_built_engine")
        change = ARGUMENTS.get(name)
        if engine is None or change is None:
            super().__setattr__(name, value)
            return
        if change is Change.NEVER and value is not getattr(self, name):
            raise ValueError(
                f"{name} cannot be set after {type(self).__name__} is built. Remedy: build a "
                f"new loader with {name}=, and resume with load_state_dict(loader.state_dict()), "
                "with accept= if the error asks for it"
            )
        if name == "num_workers" and value != self.num_workers and engine.plan.has_worker_states:
            raise ValueError(
                f"num_workers cannot be set after {type(self).__name__} is built over "
                f"{type(self.dataset).__name__}, because each worker iterates its own copy or "
                "keeps its own state. Remedy: build a new loader with num_workers="
            )
        super().__setattr__(name, value)
        if change in (Change.WITH_WORKERS, Change.ANY_TIME):
            engine.change(name, getattr(self, name))

    def __copy__(self) -> StatefulGPULoader[_T_co]:
        """Return a copy that shares the passes; its worker attributes can be set separately."""
        twin: StatefulGPULoader[_T_co] = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _built_engine=copy.copy(self._engine))
        return twin

    def __iter__(self) -> Iterator[_T_co]:
        """Return an iterator over a new pass, which begins at its first ``next()``."""
        if self.pin_memory and not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=2,
            )
        batches: Iterator[_T_co] = self._get_iterator()
        return batches

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch."""
        engine = self._engine
        num_steps = engine.plan.num_steps(engine.seed, engine.passes)
        if num_steps is not None:
            return num_steps
        length = int(super().__len__())
        engine.promised_length = self._IterableDataset_len_called
        return length

    @property
    def epoch(self) -> int:
        """Epoch of the current pass or, between two passes, of the next one.

        A pass lasts from its first batch until it ends or its iterator is deleted, for example by
        ``break`` in a ``for`` loop.
        """
        return self._engine.present_place().epoch

    @property
    def batches_done(self) -> int | None:
        """Number of batches of :attr:`epoch` that this rank has delivered: the next batch's index.

        It is also exact right after ``load_state_dict()``, for ``enumerate(loader,
        loader.batches_done)`` and tqdm's ``initial=``. It counts delivered batches and, for a
        :class:`CallableSource`, batches that were left out because all their samples were bad.
        If the batch size differs from the state's, it is ``len(loader) - batches_left``. It is None
        for a user's batch sampler after a state of an older version, which has no such count.

        >>> loader = StatefulGPULoader(range(10), batch_size=4)
        >>> loader.load_state_dict(StatefulGPULoader(range(10), batch_size=4).state_dict())
        >>> for i, batch in enumerate(loader, loader.batches_done):
        ...     print(loader.epoch, i, loader.batches_done, loader.batches_left)
        0 0 1 2
        0 1 2 1
        0 2 3 0
        >>> loader.epoch, loader.batches_done
        (1, 0)
        """
        return self._engine.batches()[0]

    @property
    def batches_left(self) -> int | None:
        """Number of batches of :attr:`epoch` that this rank has yet to deliver.

        None if it is not known: for iterable datasets, functions without ``length=``, shards
        without ``num_samples``, samplers without ``__len__``. Samples that will be dropped as bad
        are counted.
        """
        return self._engine.batches()[1]

    @property
    def worker_restarts(self) -> int:
        """Number of times that lost workers were replaced since the loader was built."""
        return self._engine.tally.worker_restarts

    @property
    def bad_samples(self) -> BadSamples:
        """Record of the samples that could not be used, up to the last delivered batch."""
        return self._engine.passes.bad_samples

    def stats(self) -> LoaderStats:
        """Return how much was delivered since the loader was built, and where the time went.

        The difference of two results covers the time between them. The call changes nothing and
        takes a few microseconds. See docs/finding-the-bottleneck.md.

        >>> loader = StatefulGPULoader(range(10), batch_size=4)
        >>> first = next(iter(loader))
        >>> loader.stats().batches, loader.stats().samples
        (1, 4)
        """
        return self._engine.stats()

    def draws(self) -> list[dict[str, Any]]:
        """Return what the recipes of ``transform`` drew for the last delivered batch, in order.

        The numbers are recomputed from the keys and sizes of the samples: this thread reads the
        headers of the images again, and decodes nothing. A sharded dataset reads up to a shuffle
        window again, and the function of a CallableSource is called again. Draws of
        ``batch_transform`` are not included. A trainer that prefetches is training on an earlier
        batch than the last delivered one.

        Returns:
            A dictionary for each recipe: its name under ``"recipe"``, and the numbers that its
            class documents under their names: int64 or float64 [n], for the n samples of the batch
            in order. A user's recipe without ``number_names`` has ``"numbers"`` [n, k].

        Raises:
            LoaderError: no batch was delivered yet; the images are not from a Source, or go through
                a callable whose draws are unknown; or the batch read again is not the same.

        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from stateful_gpu_loader import FolderSource, transforms as T
        >>> folder = tempfile.TemporaryDirectory()
        >>> Path(folder.name, "grey").mkdir()
        >>> for number in range(3):
        ...     Image.new("RGB", (80, 60)).save(f"{folder.name}/grey/{number}.png")
        >>> recipes = [T.RandomRotation(30), T.RandomHorizontalFlip()]
        >>> loader = StatefulGPULoader(
        ...     FolderSource(folder.name), batch_size=3, seed=42, transform=recipes
        ... )
        >>> images, labels = next(iter(loader))
        >>> rotation, flip = loader.draws()
        >>> rotation["recipe"], rotation["angle"].round(2)
        ('RandomRotation', array([-21.6 ,  10.96,  -4.22]))
        >>> flip
        {'recipe': 'RandomHorizontalFlip', 'acts': array([0, 1, 0])}
        >>> folder.cleanup()
        """
        return self._engine.draws()

    @property
    def _iterator(self) -> Any:
        """Idle persistent workers, None, or a value that a program set.

        Programs look for persistent workers here, and end them.
        """
        if self._placed_iterator is not None:
            return self._placed_iterator
        return self._engine.workers.idle_processes

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        """End idle workers if None is set, as Lightning does after a fit.

        As in torch, an iterator that is still referenced goes on, and its workers end with it.
        """
        self._placed_iterator = iterator
        engine: Engine | None = self.__dict__.get("_built_engine")
        if iterator is None and engine is not None:
            engine.dismiss_workers()

    def _get_iterator(self) -> Any:
        """Return a new iterator; subclasses call it in their ``__iter__``, as in torch."""
        return Run(self._engine, self.__len__)

    @property
    def unverified(self) -> tuple[str, ...]:
        """Parts that a state cannot verify, such as ``"dataset"``, ``"collate_fn"``, ``"sampler"``.

        They are known by name only, so a change under the same name goes unnoticed. An object with
        a method ``fingerprint()``, which returns a text, is compared by that text instead. A name
        such as ``"dataset (sampled)"`` stands for data that is too long to be compared in full.

        >>> StatefulGPULoader(range(10), collate_fn=lambda samples: samples).unverified
        ('collate_fn',)
        """
        return tuple(self._engine.identity.unverified)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; a resumed pass keeps its own epoch, with a warning.

        Raises:
            ValueError: the epoch is not an int from 0 to 2**32 - 2.
        """
        epoch = as_epoch(epoch)
        own_sampler = self._engine.plan.config.own_sampler
        for sampler in {id(each): each for each in (self.sampler, own_sampler)}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        self._engine.passes.request_epoch(epoch)

    def peek(self) -> _T_co:
        """Return the batch that ``next()`` will return, without changing anything.

        During a pass it is the next batch of the pass, otherwise the first batch of the next pass.
        A copy of the loader makes the batch, in this thread, or in its own worker processes if the
        loader uses processes. Each call makes the batch again. Position, epoch, generators, sampler
        and dataset stay as they are. A dataset, function or transform that counts or draws by
        itself, and has no state, changes as in any call.

        An iterable without state is read again from the beginning of the pass. With
        ``in_order=False`` the batch is the oldest missing one. After an exception in the pass it is
        the batch that a resume would deliver.

        Raises:
            StateMismatch: an iterable without state yields other samples when it is read again.
            StopIteration: the pass has no batch left, as in ``next()``.
            LoaderError: a sampler, an iterable dataset or a dataset with state cannot be copied.

        >>> loader = StatefulGPULoader(range(10), batch_size=4)
        >>> loader.peek(), loader.epoch, loader.batches_done
        (tensor([0, 1, 2, 3]), 0, 0)
        """
        self._engine.take_requested_epoch()
        twin = self._engine.twin()
        with caller_generators_restored(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*iterable dataset are read again")
            batch: _T_co = next(Run(twin, self.__len__))
            return batch

    def state_dict(self, batches_ago: int = 0) -> dict[str, Any]:
        """Return the state after the last delivered batch, or after one of the 16 before it.

        The call starts and changes nothing. Each call returns a new dictionary of about a kilobyte,
        the same on every rank. States of the user's own objects are under ``user``.

        Args:
            batches_ago: number of batches to go back, for trainers that prefetch.

        Raises:
            ValueError: ``batches_ago`` reaches further back than the loader remembers.
        """
        return self._engine.state(as_int("batches_ago", batches_ago)).to_dict()

    def load_state_dict(self, state_dict: dict[str, Any], accept: Collection[str] = ()) -> None:
        """Resume from a state, with any number of workers and ranks and any batch size.

        The state applies to the next iterator, and to iterators that have delivered nothing.
        Everything is checked before anything is changed. From a state of torchdata's
        ``StatefulDataLoader`` the loader finishes that state's epoch.

        Args:
            state_dict: the result of ``state_dict()``.
            accept: fields of the fingerprint, or ``"seed"``, that may differ; ``"iterable"``, if an
                iterable may yield other samples when it is read again; with ``strict=True`` also
                names of :attr:`unverified` that need not be verified.

        Raises:
            StateMismatch: the state is damaged or belongs to another loader; the message names the
                field, both values and the remedy.
            ValueError: ``accept`` contains a name that is not a field.
        """
        check_accept(accept)
        self._engine.load(state_dict, accept=accept, strict=self.strict)

    def seek(
        self,
        *,
        epoch: int,
        position: int | None = None,
        samples: int | None = None,
        percent: float | None = None,
    ) -> None:
        """Go to a place of the stream, from which the next iterator delivers.

        The effect is that of ``load_state_dict()`` with a state saved at that place. Nothing in
        between is read. Every rank must seek the same place. The record of bad samples is kept.
        Exactly one of ``position``, ``samples`` and ``percent`` must be given.

        Args:
            epoch: epoch of the place, counted from 0.
            position: position in the epoch's global order, as in a state; 0 is its beginning, and
                the only position of a sharded dataset that can be sought.
            samples: number of samples of the epoch that all ranks together deliver before it.
            percent: share of the epoch, from 0 to 100, rounded down to the beginning of a batch of
                the present size.

        Raises:
            NoSuchPlace: the place lies outside the epoch, or its state cannot be computed. That is
                the case inside an epoch of a sharded dataset or of unknown length, and with an
                iterable dataset, a dataset with state or a user's sampler. Nothing was changed.

        >>> loader = StatefulGPULoader(range(10), batch_size=4)
        >>> loader.seek(epoch=2, samples=8)
        >>> [batch.tolist() for batch in loader], loader.epoch
        ([[8, 9]], 3)
        """
        self._engine.seek(epoch=epoch, position=position, samples=samples, percent=percent)


def _brief(dataset: Any) -> str:
    """Describe a dataset in a few words; only a source surely has a short repr."""
    if isinstance(dataset, Source):
        return repr(dataset)
    name = type(dataset).__name__
    try:
        return f"{name} of {len(dataset)}"
    except Exception:  # a dataset without a length, or one that cannot be read here
        return name
