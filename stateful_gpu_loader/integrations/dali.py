"""DALILoader: a DALI pipeline as a loader whose state resumes exactly."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from stateful_gpu_loader.decoders.dali import require_dali
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.integrations.dali_identity import check_accept, refuse, report
from stateful_gpu_loader.integrations.dali_pipeline import opening, own_checkpoint
from stateful_gpu_loader.integrations.dali_pipeline.description import (
    Description,
    acceptable,
    before_build,
    changes,
    describe,
    of_readers,
)
from stateful_gpu_loader.integrations.dali_pipeline.state import DALIState, Place
from stateful_gpu_loader.integrations.dali_pipeline.stream import (
    Batch,
    Cuts,
    PipelineStream,
    check_place,
)
from stateful_gpu_loader.samplers.sharded import LastBatchPolicy
from stateful_gpu_loader.state.text_state import TextState


class DALILoader(TextState):
    """Yields the batches of a DALI pipeline, epoch by epoch, with a state that resumes.

    Each rank has its own pipeline and loader. Nothing is built before the first batch or ``len()``.
    As with ``DALIGenericIterator``, a pipeline is one stream of batches, divided into the same
    epochs: an iterator after a ``break`` continues the present epoch. After a resume, an epoch has
    only its remainder.

    Args:
        pipeline: result of ``@pipeline_def``, a ``functools.partial`` of it, or any function that
            passes its keyword arguments to it. It is called with ``enable_checkpointing=True`` and,
            to resume, with ``checkpoint=...``. A ``Pipeline`` itself can be iterated and saved, but
            not resumed, because DALI restores a pipeline only while building it.
        output_map: a name for each output, in order.
        reader_name: name of the reader that an epoch reads once. None takes the only reader or, in
            a pipeline without readers, the external source that raises StopIteration.
        last_batch_policy: see :class:`LastBatchPolicy`; for epochs of a reader. DALI's class is
            also accepted.

    Raises:
        TypeError: the pipeline or the policy is of a wrong type.
        ValueError: two outputs have the same name.

    >>> import tempfile
    >>> from functools import partial
    >>> import numpy
    >>> from nvidia.dali import fn, pipeline_def
    >>> @pipeline_def(batch_size=2, num_threads=1, device_id=None, seed=7)
    ... def numbers(folder):
    ...     return fn.readers.numpy(file_root=folder, random_shuffle=True, initial_fill=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in range(9):
    ...         numpy.save(f"{folder}/{number}.npy", numpy.array([number]))
    ...     loader = DALILoader(partial(numbers, folder), ["number"])
    ...     batches = iter(loader)
    ...     first = next(batches)
    ...     state = loader.state_dict()
    ...     resumed = DALILoader(partial(numbers, folder), ["number"])
    ...     resumed.load_state_dict(state)
    ...     rest = [batch["number"].tolist() for batch in batches]
    ...     len(rest), [batch["number"].tolist() for batch in resumed] == rest
    (4, True)
    """

    def __init__(
        self,
        pipeline: Any,
        output_map: Sequence[str],
        *,
        reader_name: str | None = None,
        last_batch_policy: LastBatchPolicy | Enum = LastBatchPolicy.FILL,
    ) -> None:
        if not callable(pipeline) and not isinstance(pipeline, _dali().Pipeline):
            raise TypeError(
                f"pipeline = {pipeline!r} is a {type(pipeline).__name__}. Remedy: pass a function "
                "that makes a pipeline, as @pipeline_def does"
            )
        self.output_map = list(output_map)
        if len(set(self.output_map)) < len(self.output_map):
            raise ValueError(f"two outputs have one name: {self.output_map}. Remedy: one for each")
        self.reader_name = reader_name
        self.last_batch_policy = _policy(last_batch_policy)
        self._pipeline = pipeline
        self._description: Description | None = None
        self._stream: PipelineStream | None = None
        self._started: Any = None
        """An unbuilt pipeline whose worker processes have started."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rest of the present epoch, or the next one: tensors by output name."""
        stream = self._settled()
        number = stream.begin_pass()
        while (batch := stream.next(number)) is not None:
            yield batch

    def __len__(self) -> int:
        """Return the number of batches in the whole present or next epoch; epochs may differ.

        Raises:
            TypeError: an external source ends the epochs.
        """
        stream = self._settled()
        if stream.cuts is None:
            raise TypeError(
                "the epochs of an external source have no length before they end. Remedy: iterate"
            )
        return stream.cuts.batches(stream.place.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last delivered batch in a new dictionary; starts nothing.

        Before the pipeline is built, the state means "from the beginning", with other batches each
        time if the pipeline draws its seed.
        """
        if self._stream is None:
            return DALIState(place=None, description=None, dali=None).to_dict()
        return DALIState(
            place=self._stream.place, description=self._description, dali=_version()
        ).to_dict()

    def load_state_dict(self, state_dict: dict[str, Any], accept: Collection[str] = ()) -> None:
        """Resume from a state; this builds a new pipeline.

        It applies to the next iterator; existing iterators finish their own pipeline. Everything is
        checked before anything is changed.

        Args:
            state_dict: result of ``state_dict()``.
            accept: arguments that may differ, such as ``{"reader.file_root", "crop.size"}``:
                arguments of operators that read nothing, and those that select a reader's data. The
                number of samples must still be the same.

        Raises:
            StateMismatch: the state is damaged or belongs to another pipeline; the message names
                the field, both values and the remedy.
            ValueError: ``accept`` contains another name.
            LoaderError: the loader has a built pipeline, or one that cannot be restored.
        """
        state = DALIState.from_dict(state_dict)
        self._check_restorable()
        if state.place is None or state.description is None:
            self._stream = None
            return
        stream, description = self._open(state.place, state.description, accept)
        if state.dali != _version():
            warnings.warn(
                f"the state was saved with DALI {state.dali}, this is {_version()}: batches may "
                "differ",
                stacklevel=2,
            )
        self._stream, self._description = stream, description

    def load_checkpoint(self, checkpoint: bytes | str | os.PathLike[str]) -> None:
        """Resume from one of DALI's own checkpoints, after the last batch that it counts.

        It applies to the next iterator. The checks are weaker than those of
        :meth:`load_state_dict`. They cover the names of the operators and, from each reader's
        position, batch size, shards, padding and number of samples. Changes of other arguments
        (shuffle, crops, angles), of seeds, and of files in equal number are not noticed.

        Args:
            checkpoint: result of ``Pipeline.checkpoint()``, or the path of its file;
                ``DALIGenericIterator.checkpoints()`` has one for each pipeline.

        Raises:
            StateMismatch: it is not a checkpoint, or belongs to another pipeline; the message
                names the difference.
            LoaderError: as for :meth:`load_state_dict`.
            OSError: the file cannot be read.
        """
        self._check_restorable()
        place = own_checkpoint.read(checkpoint)
        self._stream, self._description = self._open(place, None, ())

    def start_py_workers(self) -> None:
        """Start the worker processes of parallel external sources, before anything uses the GPU.

        Forked workers must not inherit a GPU in use. These workers serve the pipeline that is built
        next, at the first batch or load. If the pipeline is already built, nothing happens.

        :func:`stateful_gpu_loader.start_workers` calls this, and starts the workers of other
        loaders.

        Raises:
            LoaderError: the workers would be forked, and CUDA was initialised in this process.
        """
        if self._stream is not None or self._started is not None:
            return
        if not callable(self._pipeline):
            opening.start_py_workers(self._pipeline)
            return
        started = opening.make_pipeline(self._pipeline, None)
        opening.start_py_workers(started)
        self._started = started

    def _check_restorable(self) -> None:
        if not callable(self._pipeline):
            raise LoaderError(
                "this loader was given a Pipeline, and DALI restores one only while it is built. "
                "Remedy: give it the function that makes the pipeline"
            )

    def _settled(self) -> PipelineStream:
        """Return the stream of batches; build the pipeline if necessary."""
        if self._stream is None:
            self._stream, self._description = self._open(None, None, ())
        return self._stream

    def _open(
        self, place: Place | None, saved: Description | None, accept: Collection[str]
    ) -> tuple[PipelineStream, Description]:
        """Open a stream at a place of a described pipeline, or at the beginning.

        A place without a description comes from one of DALI's own checkpoints.
        """
        pipeline = self._pipeline
        checkpoint = None if place is None else place.checkpoint
        if self._started is not None:
            pipeline = opening.put_checkpoint(self._started, checkpoint)
        elif callable(pipeline):
            pipeline = opening.make_pipeline(pipeline, checkpoint)
        policy = self.last_batch_policy
        graph = opening.graph_of(pipeline)
        description = describe(graph, last_batch_policy=policy.value)
        is_own = place is not None and saved is None
        if place is not None and is_own:
            own_checkpoint.check_operators(place, graph)
        if saved is not None:
            # Check before the build, whose errors say less.
            check_accept(accept, acceptable(saved, description))
            _refuse(before_build(saved), description, accept)
        self._started = None
        opening.build(pipeline, place)
        metas = pipeline.reader_meta()
        reader = opening.ending_reader(pipeline, metas, self.reader_name)
        description |= of_readers(metas, reader)
        if saved is not None:
            _refuse(saved, description, accept)
        cuts = None
        if reader is not None:
            batch_size = pipeline.max_batch_size
            cuts = Cuts(metas[reader], batch_size=batch_size, last_batch_policy=policy)
        if place is not None and is_own:
            own_checkpoint.check_readers(place, graph, metas)
            if cuts is not None:
                epoch, position = cuts.place_after(place.runs)
                place = replace(place, epoch=epoch, position=position)
        if place is not None:
            check_place(place, cuts)
        beginning = opening.beginning_of(pipeline) if place is None else place
        names = self.output_map
        stream = PipelineStream(pipeline, names, cuts, beginning, loaded=saved is not None)
        if saved is not None:
            report(changes(saved, description))
        return stream, description


def _refuse(saved: Description, present: Description, accept: Collection[str]) -> None:
    names = acceptable(saved, present)
    refuse(changes(saved, present), what="pipeline", accept=accept, acceptable=names)


def _policy(given: Any) -> LastBatchPolicy:
    """Convert DALI's policy of the same name to this package's."""
    is_policy = isinstance(given, Enum) and type(given).__name__ == LastBatchPolicy.__name__
    if not is_policy or given.name not in LastBatchPolicy.__members__:
        raise TypeError(
            f"last_batch_policy = {given!r} is of {type(given)}. Remedy: pass one of "
            f"{', '.join(map(str, LastBatchPolicy))}, of stateful_gpu_loader.samplers"
        )
    return LastBatchPolicy[given.name]


def _version() -> str:
    return str(_dali().__version__)


def _dali() -> Any:
    return require_dali("DALILoader")
