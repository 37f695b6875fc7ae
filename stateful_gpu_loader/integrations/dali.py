"""DALILoader: a DALI pipeline as a loader whose state brings back exactly the rest."""

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
    """Batches of a DALI pipeline, epoch by epoch, with torch's two methods of state.

    One pipeline, so one loader for each rank. Nothing is built before the first batch or
    ``len()``. Epochs are those of ``DALIGenericIterator``, and so is this: a pipeline is one
    stream of batches, and an iterator that begins after a ``break`` goes on with the epoch under
    way. After a resume an epoch has its remainder only.

    Args:
        pipeline: what ``@pipeline_def`` makes, ``functools.partial`` of it, or any function that
            hands its keyword arguments on to it: it is called with ``enable_checkpointing=True``
            and, to resume, with ``checkpoint=...``, because DALI restores a pipeline only while it
            is built. A ``Pipeline`` itself can be iterated and saved, but not resumed.
        output_map: a name for each output, in their order.
        reader_name: of the reader that an epoch goes through once; None is the only one, or, in a
            pipeline without readers, the external source that raises StopIteration.
        last_batch_policy: see :class:`LastBatchPolicy`; for epochs of a reader. DALI's own of the
            same name will do.

    Raises:
        TypeError: the pipeline or the policy is none.
        ValueError: two outputs have one name.

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
        """A pipeline that is not built, and has its worker processes."""

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch under way, or the next epoch: tensors by the names of outputs."""
        stream = self._settled()
        number = stream.begin_pass()
        while (batch := stream.next(number)) is not None:
            yield batch

    def __len__(self) -> int:
        """Batches of the whole epoch that is under way, or comes next; they may differ.

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
        """The state after the last delivered batch: a fresh dictionary; it starts nothing.

        Before the pipeline is built it says "from the beginning": with a pipeline that draws its
        seed, that is another stream each time.
        """
        if self._stream is None:
            return DALIState(place=None, description=None, dali=None).to_dict()
        return DALIState(
            place=self._stream.place, description=self._description, dali=_version()
        ).to_dict()

    def load_state_dict(self, state_dict: dict[str, Any], accept: Collection[str] = ()) -> None:
        """Go on from a state: builds the pipeline anew.

        It acts on the next iterator; those under way finish their own pipeline. Everything is
        checked before anything is changed.

        Args:
            state_dict: what ``state_dict()`` returned.
            accept: arguments that are meant to differ, as ``{"reader.file_root", "crop.size"}``:
                of operators that read nothing, and those that say which data a reader reads. The
                number of samples must be the same even so.

        Raises:
            StateMismatch: the state is damaged, or belongs to another pipeline; it names the
                field, both values and the remedy.
            ValueError: ``accept`` names something else.
            LoaderError: the loader was given a built pipeline, or one that cannot be restored.
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
        """Go on from a checkpoint of DALI's own, behind the last batch that it counts.

        It acts on the next iterator, and what is known is checked before anything is changed. That
        is less than a :meth:`state_dict` tells: the operators by their names, and by the place of
        each reader the batch size, the shards, the padding and the number of samples. Other
        arguments (shuffle, crops, angles), seeds and files of the same number go unnoticed.

        Args:
            checkpoint: what ``Pipeline.checkpoint()`` returned, or the path of the file that it
                wrote; ``DALIGenericIterator.checkpoints()`` has one for each pipeline.

        Raises:
            StateMismatch: it is no checkpoint, or of another pipeline; names what differs.
            LoaderError: as :meth:`load_state_dict`.
            OSError: the file cannot be read.
        """
        self._check_restorable()
        place = own_checkpoint.read(checkpoint)
        self._stream, self._description = self._open(place, None, ())

    def start_py_workers(self) -> None:
        """Start the worker processes of parallel external sources, before anything uses the GPU.

        Forked workers must not inherit a GPU in use. These serve the pipeline that is built next:
        at the first batch, or by the first state that is loaded; later ones start theirs when they
        are built. Nothing is done where the pipeline is built already.

        :func:`stateful_gpu_loader.start_workers` calls it, beside the workers of other loaders.

        Raises:
            LoaderError: they would be forked, and CUDA has been initialised in this process.
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
        """The stream of batches; builds the pipeline where that was not done yet."""
        if self._stream is None:
            self._stream, self._description = self._open(None, None, ())
        return self._stream

    def _open(
        self, place: Place | None, saved: Description | None, accept: Collection[str]
    ) -> tuple[PipelineStream, Description]:
        """A stream that begins at a place of a described pipeline, or at the beginning.

        A place without a description is that of a checkpoint of DALI's own.
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
            # Before the build: DALI would say of other operators only that one has no checkpoint.
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
    """Ours, of ours or of DALI's."""
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
