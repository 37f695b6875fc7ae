"""StatefulGPULoader: the public class, its arguments, ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader.engine.arguments import as_torch_takes, check_accept, check_arguments
from stateful_gpu_loader.engine.config import ARGUMENTS, Change, LoaderConfig
from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.reflection import Rebuildable
from stateful_gpu_loader.engine.run import Run
from stateful_gpu_loader.engine.stats import LoaderStats
from stateful_gpu_loader.engine.workers.choice import runs_in_threads
from stateful_gpu_loader.randomness.global_generators import caller_generators_restored
from stateful_gpu_loader.samplers import is_map
from stateful_gpu_loader.state.bad_samples import BadSamples
from stateful_gpu_loader.state.schema import as_epoch, as_int
from stateful_gpu_loader.state.text_state import TextState

_T_co = TypeVar("_T_co", covariant=True)
_OF_TORCH = ARGUMENTS.keys() & inspect.signature(StatefulDataLoader).parameters
"""Names of the arguments that are passed on to torchdata's class."""


class StatefulGPULoader(Rebuildable, TextState, StatefulDataLoader[_T_co]):
    """A DataLoader whose state resumes an interrupted pass exactly.

    It replaces ``torch.utils.data.DataLoader`` and torchdata's ``StatefulDataLoader``, whose
    arguments it takes with the same meaning. Given a :class:`Source`, it also decodes and augments
    the images, and yields ``[images, targets]``.

    Args:
        dataset: any dataset; a Source of encoded images is decoded and augmented by the loader.
        batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last,
            timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor,
            persistent_workers, pin_memory_device, in_order, snapshot_every_n_steps: as in
            StatefulDataLoader.
        seed: seed of the order and the augmentations. None draws one, once, from ``generator`` or
            torch's default generator, and keeps it in the state. It is 0 if ranks divide the data:
            by ``num_replicas``, or by a sampler that has ``rank`` and ``num_replicas``.
        rank, num_replicas: as in DistributedSampler. None does not divide the dataset, and
            ``num_replicas="auto"`` asks torch.distributed at the first ``next()``.
        device: device that batches are delivered on: ``"cuda"``, ``"cuda:1"``, a ``torch.device``,
            or None for the CPU. Images of a Source are decoded and augmented there, ahead of the
            loop. With a callable as ``transform``, with a ``collate_fn``, and for any other
            dataset, the workers make the batch and it is only moved there.
        decoder: decoder of a Source's images: ``"auto"`` or a name of
            :mod:`stateful_gpu_loader.decoders`.
        cpu_share: share of the images that a GPU could decode which the workers' CPUs decode
            instead, from 0 to 1. The bytes of an image decide which ones.
        scaled_decoding: whether large JPEGs are decoded at 1/2, 1/4 or 1/8 of their size where the
            recipes make them smaller still. It is faster and changes the pixels a little, so a
            state names it; docs/decoders.md shows by how much. For recipes on the CPU; needs
            Pillow.
        transform: a list of recipes of :mod:`stateful_gpu_loader.transforms`, or any callable;
            applied to the image of a Source, or to the whole sample of another dataset.
        batch_transform: MixUp, CutMix, any callable on the finished batch, or a list of them. It
            runs when the batch is delivered, on the device, with the global generators (including
            the device's) seeded from the batch's first position; the caller's are restored.
        worker_type: ``"thread"``, ``"process"``, or ``"auto"``: threads if recipes on a Source do
            all the work, otherwise processes. More than 4 such workers are threads of several
            processes, unless ``device`` does the work, the source does not say that it suits
            processes, or these are not forked here. ``"ray"``, or a
            :class:`~stateful_gpu_loader.integrations.ray.RayWorkers`: actors of a Ray cluster.
        threads_per_process: most workers that are threads of one process, for work that threads
            can do: with 4, ``num_workers=8`` are 2 processes, and 6 are 2 of 3 threads. They share
            the memory of a process, and one that dies takes the batches of all of them with it.
            None is 4 where ``worker_type="auto"`` takes threads of several processes, otherwise 1.
        on_bad_sample: ``"raise"``, ``"replace"`` by another sample of the same order, or
            ``"drop"``. Only its bytes make a sample bad: an OSError is tried again, then raised.
        max_worker_restarts: number of workers that one batch may lose; the next loss raises
            WorkerLost. The default of 3 tells a batch that always kills its worker from workers
            that die for other reasons. With 0 any lost worker raises.
        on_epoch_boundary: what a state that was saved after an epoch's last batch, but before its
            end, resumes: ``"empty"``, an empty rest of that epoch, or ``"next_epoch"``, the next
            one.
        strict: whether ``load_state_dict`` raises StateMismatch for what :attr:`unverified` names
            and for what an older state lacks, rather than log it. It is an argument of the loader
            because trainers call ``load_state_dict(state)``.

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
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
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
        num_replicas: int | str | None = None,
        device: torch.device | str | int | None = None,
        decoder: str = "auto",
        cpu_share: float = 0.0,
        scaled_decoding: bool = False,
        transform: Any = None,
        batch_transform: Any = None,
        worker_type: Any = "auto",
        threads_per_process: int | None = None,
        on_bad_sample: str = "raise",
        max_worker_restarts: int = 3,
        on_epoch_boundary: str = "empty",
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
            runs_in_threads(plan)  # which refuses threads that cannot do the work

    @property
    def _engine(self) -> Engine:
        """The engine, which follows samplers that a program has put in place of the loader's.

        Programs replace ``batch_sampler`` by ``object.__setattr__``, or override
        ``_index_sampler``. torch's DataLoader takes what it finds there at ``iter()``.

        Raises:
            LoaderError: a replaced object came too late, or cannot be taken.
        """
        engine: Engine = self.__dict__["_built_engine"]
        engine.follow(self._index_sampler, dataset=self.dataset, collate_fn=self.collate_fn)
        return engine

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless it decides what the batches are, which raises a ValueError.

        torch's DataLoader protects ``batch_size`` in the same way. Attributes of the workers take
        effect in the next pass.
        """
        engine: Engine | None = self.__dict__.get("_built_engine")
        change = ARGUMENTS.get(name)
        if engine is None or change is None:
            super().__setattr__(name, value)
            return
        if change is Change.NEVER and value is not getattr(self, name):
            raise ValueError(
                f"{name} cannot be set after {type(self).__name__} is built. Remedy: build a "
                f"new loader with {name}=, and let it go on with "
                "load_state_dict(loader.state_dict()), with accept= where it asks for that"
            )
        if name == "num_workers" and value != self.num_workers:
            self._check_free_workers()
        super().__setattr__(name, value)
        if change in (Change.WITH_WORKERS, Change.ANY_TIME):
            engine.change(name, getattr(self, name))

    def __copy__(self) -> StatefulGPULoader[_T_co]:
        """Return a copy that shares the passes; attributes of workers are changed separately."""
        twin: StatefulGPULoader[_T_co] = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _built_engine=copy.copy(self._engine))
        return twin

    def __iter__(self) -> Any:
        """Return an iterator over a new pass, which begins at its first ``next()``."""
        if self.pin_memory and not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=2,
            )
        return self._get_iterator()

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, for the present batch size and ranks."""
        engine = self._engine
        num_steps = engine.plan.num_steps(engine.seed, engine.passes)
        if num_steps is not None:
            return num_steps
        length = int(super().__len__())
        engine.promised_length = self._IterableDataset_len_called
        return length

    @property
    def epoch(self) -> int:
        """The epoch of the present pass or, between two passes, of the next one.

        A pass lasts from its first batch until it ends or its iterator is dropped, as by ``break``
        in a ``for`` loop.
        """
        return self._engine.present_place().epoch

    @property
    def batches_done(self) -> int | None:
        """Number of batches of :attr:`epoch` that this rank has delivered: the next one's index.

        It is also exact right after ``load_state_dict()``, for ``enumerate(loader,
        loader.batches_done)`` and tqdm's ``initial=``. A batch counts once it was delivered; of a
        :class:`CallableSource` also if it was left out because all of its samples were bad. With
        another batch size than the state's it is ``len(loader) - batches_left``. None for a batch
        sampler of yours if an older state was loaded, which does not count its batches.

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
        are not known.
        """
        return self._engine.batches()[1]

    @property
    def worker_restarts(self) -> int:
        """Number of times that lost workers were replaced since the loader was built."""
        return self._engine.tally.worker_restarts

    @property
    def bad_samples(self) -> BadSamples:
        """Record of the samples that could not be used, as it stands at the delivered place."""
        return self._engine.passes.bad_samples

    def stats(self) -> LoaderStats:
        """Return how much was delivered since the loader was built, and where the time went.

        The difference of two is what happened in between. It changes nothing and takes some
        microseconds. See docs/finding-the-bottleneck.md.

        >>> loader = StatefulGPULoader(range(10), batch_size=4)
        >>> first = next(iter(loader))
        >>> loader.stats().batches, loader.stats().samples
        (1, 4)
        """
        return self._engine.stats()

    def draws(self) -> list[dict[str, Any]]:
        """Return what the recipes of ``transform`` drew for the last delivered batch, in order.

        It is computed on demand: the numbers depend on the samples' keys and sizes, so the images'
        headers are read again in this thread, and nothing is decoded. A sharded dataset reads up to
        a shuffle window again, and a CallableSource's function is called again. What
        ``batch_transform`` drew is not included. A trainer that prefetches is training on an
        earlier batch than the last delivered one.

        Returns:
            A dictionary for each recipe: its name under ``"recipe"``, and the numbers that its
            class documents under their names: int64 or float64 [n], for the n samples of the batch
            in order. A recipe of yours without ``number_names`` has ``"numbers"`` [n, k].

        Raises:
            LoaderError: no batch was delivered yet; the images are not from a Source, or go through
                a callable, so only that code knows what was drawn; or the batch cannot be read
                again as it was.

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
        """What stands for the persistent workers that wait for the next pass, or None.

        Programs look for persistent workers here, and end them. It may also be what a program has
        set.
        """
        if self._placed_iterator is not None:
            return self._placed_iterator
        return self._engine.workers.idle_processes

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        """Set to None, end the workers that wait for the next pass, as Lightning does after a fit.

        As in torch, an iterator that is still referenced goes on, and its workers end with it.
        """
        self._placed_iterator = iterator
        engine: Engine | None = self.__dict__.get("_built_engine")
        if iterator is None and engine is not None:
            engine.dismiss_workers()

    def _get_iterator(self) -> Any:
        """Return a new iterator; subclasses call it in their ``__iter__``, as torch's."""
        return Run(self._engine, self.__len__)

    @property
    def unverified(self) -> tuple[str, ...]:
        """What a state cannot verify: ``"dataset"``, ``"collate_fn"``, ``"sampler"``...

        These are objects known only by a name, which may do something else under the same name. A
        method ``fingerprint()`` that returns a text identifies an object instead. A name such as
        ``"dataset (sampled)"`` stands for data that is too long to be compared in full.

        >>> StatefulGPULoader(range(10), collate_fn=lambda samples: samples).unverified
        ('collate_fn',)
        """
        return tuple(self._engine.identity.unverified)

    def set_epoch(self, epoch: int) -> None:
        """Start the next pass in this epoch; a resumed pass keeps its own, with a warning.

        Raises:
            ValueError: the epoch is no int from 0 to 2**32 - 2.
        """
        epoch = as_epoch(epoch)
        own_sampler = self._engine.plan.config.own_sampler
        for sampler in {id(each): each for each in (self.sampler, own_sampler)}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        self._engine.passes.request_epoch(epoch)

    def peek(self) -> Any:
        """Return the batch that ``next()`` will give, without changing anything.

        If a pass is under way it is the next batch of its iterator, otherwise the first of the next
        pass. Position, epoch, generators, sampler and dataset stay as they are, and the loader's
        workers are not used: a copy of the loader makes the batch, in this thread, or in worker
        processes of its own if the loader uses processes. Each call makes the batch again. An
        iterable without state is read again from the beginning of the pass. With ``in_order=False``
        it is the oldest missing batch, and after an exception in the pass the batch that a resume
        would deliver. A dataset, function or transform that counts or draws by itself, and has no
        state, is changed as by any call.

        Raises:
            StateMismatch: an iterable without state yields other samples when it is read again.
            StopIteration: the pass has no batch left, as in ``next()``.
            LoaderError: a sampler, or a dataset that is iterated or has a state, cannot be copied.

        >>> loader = StatefulGPULoader(range(10), batch_size=4)
        >>> loader.peek(), loader.epoch, loader.batches_done
        (tensor([0, 1, 2, 3]), 0, 0)
        """
        self._engine.take_requested_epoch()
        twin = self._engine.twin()
        with caller_generators_restored(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*iterable dataset are read again")
            return next(Run(twin, self.__len__))

    def state_dict(self, batches_ago: int = 0) -> dict[str, Any]:
        """Return the state after the last delivered batch, or after one of the 16 before it.

        It starts nothing and changes nothing. Each call returns a new dictionary of about a
        kilobyte, the same on every rank. States of the user's own objects are under ``user``.

        Args:
            batches_ago: number of batches to go back, for trainers that prefetch.

        Raises:
            ValueError: ``batches_ago`` reaches further back than the loader remembers.
        """
        return self._engine.state(as_int("batches_ago", batches_ago)).to_dict()

    def load_state_dict(self, state_dict: dict[str, Any], accept: Collection[str] = ()) -> None:
        """Resume from a state, with any number of workers and ranks and any batch size.

        It applies to the next iterator, and to those that have delivered nothing. Everything is
        checked before anything is changed. A state of torchdata's ``StatefulDataLoader`` is
        accepted, too; the epoch it was saved in is finished.

        Args:
            state_dict: what ``state_dict()`` returned.
            accept: fields of the fingerprint, or ``"seed"``, that may differ; ``"iterable"``, if
                its samples may differ when it is read again; with ``strict=True`` also names of
                :attr:`unverified` that need not be verified.

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
        """Go to a place of the stream: the next iterator delivers what an uninterrupted run would.

        It is as ``load_state_dict()`` of a state that was saved there, and applies to the same
        iterators; nothing in between is read. Every rank seeks the same place. The record of bad
        samples is kept. Exactly one of ``position``, ``samples`` and ``percent`` is given.

        Args:
            epoch: epoch of the place, counted from 0.
            position: position in the epoch's global order, as in a state; 0 is its beginning. Of a
                sharded dataset only that can be sought.
            samples: number of samples of the epoch that all ranks together have delivered by then.
            percent: share of the epoch, from 0 to 100, rounded down to where a batch begins if all
                batches of the epoch have the present size.

        Raises:
            NoSuchPlace: the place lies outside the epoch, or its state cannot be computed: inside
                an epoch of a sharded dataset or one of unknown length, or with an iterable dataset,
                a dataset with state or a sampler of yours. Nothing was changed.

        >>> loader = StatefulGPULoader(range(10), batch_size=4)
        >>> loader.seek(epoch=2, samples=8)
        >>> [batch.tolist() for batch in loader], loader.epoch
        ([[8, 9]], 3)
        """
        self._engine.seek(epoch=epoch, position=position, samples=samples, percent=percent)

    def _check_free_workers(self) -> None:
        """Refuse to change the number of workers if each has a state of its own.

        Raises:
            ValueError: later passes resume from the states of the present number of workers.
        """
        if self._engine.plan.has_worker_states:
            raise ValueError(
                f"num_workers cannot be set once {type(self).__name__} is built over "
                f"{type(self.dataset).__name__}, which is iterated, or has a state, in each worker "
                "by itself. Remedy: build a new loader with num_workers="
            )
