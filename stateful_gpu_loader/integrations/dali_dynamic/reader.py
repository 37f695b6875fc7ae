"""StatefulReader: a reader of dynamic mode whose state brings back exactly the rest."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from stateful_gpu_loader.errors import LoaderError, StateMismatch
from stateful_gpu_loader.integrations.dali_dynamic.configuration import changes, configuration_of
from stateful_gpu_loader.integrations.dali_dynamic.state import Place, ReaderState
from stateful_gpu_loader.integrations.dali_identity import DATA, check_accept, refuse, report
from stateful_gpu_loader.state.schema import as_int
from stateful_gpu_loader.state.text_state import TextState


class StatefulReader(TextState):
    """One of ``ndd.readers``, with torch's two methods of state and epochs that resume.

    A reader that DALI itself restores goes on at the right sample, but its first epoch has full
    length again, it does not know any more which shard it reads, and it takes the state of a
    reader of other data, shards or order in silence. This one counts what it delivered: a resumed
    epoch has its remainder only, and what differs is refused by name. Its ``get_state`` and
    ``set_state`` make it an object for DALI's own ``Checkpoint``, too.

    Nothing is read before the first ``next()``, and no thread started.

    Args:
        reader_type: the class, such as ``ndd.readers.File``. It, not a reader, because DALI puts a
            state only into a reader that has not begun.
        arguments: of the class.

    Raises:
        TypeError: the class does not take these arguments.

    >>> import nvidia.dali.experimental.dynamic as ndd
    >>> reader = StatefulReader(ndd.readers.File, files=["a.jpg", "b.jpg"], seed=7)
    >>> state = reader.state_dict()
    >>> state["epoch"], state["position"]
    (0, 0)
    >>> StatefulReader(ndd.readers.File, files=["b.jpg", "a.jpg"], seed=7).load_state_dict(state)
    Traceback (most recent call last):
        ...
    stateful_gpu_loader.errors.StateMismatch: files differs: the state has ['a.jpg', 'b.jpg'], \
expected was ['b.jpg', 'a.jpg']. Remedy: build the reader as it was when the state was saved: DALI \
would go on in another one without a word; if it is meant to differ, load_state_dict(state, \
accept={'files'})
    """

    def __init__(self, reader_type: type, **arguments: Any) -> None:
        self.reader_type = reader_type
        self.arguments = {**arguments, "enable_checkpointing": True}
        self._place = Place(shard_id=int(arguments.get("shard_id") or 0))
        self._has_begun = False
        """Whether the next pass is another one than that of the place."""
        self._outputs: Generator[Any, None, None] | None = None
        """Of the pass that was begun last."""
        self._reader: Any = self._new_reader(self._place)

    def next_epoch(self, batch_size: int | None = None, *, ctx: Any = None) -> Iterator[Any]:
        """The reader's ``next_epoch``: its next epoch, or after a resume the remainder of one.

        It counts from its first ``next()``. Behind the last batch of an epoch, and before the
        iterator was asked for more, the remainder is empty, as with torchdata. An epoch that is
        left with ``break`` counts, and the one after it begins with the sample that comes next,
        both as DALI has it.

        Args:
            batch_size: samples of a batch, always the same; None gives samples one by one.
            ctx: the ``EvalContext``; None is the current one.

        Yields:
            What the reader yields.

        Raises:
            StateMismatch: another batch size than before, or other data than the state's.
            LoaderError: an epoch that began later has been asked for a batch.
            RuntimeError: of DALI's. What was delivered stays delivered, and the next epoch is the
                remainder of this one.
        """
        size = 1 if batch_size is None else as_int("batch_size", batch_size)
        self._check_batch_size(size)
        return self._epoch(size, {"batch_size": batch_size, "ctx": ctx})

    def state_dict(self) -> dict[str, Any]:
        """Where the reader stands, with the batch that was delivered last."""
        return ReaderState(place=self._place, configuration=self._configuration).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Go on from what ``state_dict`` returned, whatever was read before.

        Args:
            state_dict: the state.
            accept: arguments that say which data are read and are meant to differ, such as
                ``{"file_root"}``. The number of samples must be the same even so.

        Raises:
            StateMismatch: it is no such state, or that of another reader; nothing was changed.
            ValueError: ``accept`` names something else.
        """
        saved = ReaderState.from_dict(state_dict)
        brings_seed = saved.place.reader is not None
        acceptable = DATA & {*saved.configuration, *self._configuration}
        check_accept(accept, acceptable)
        found = changes(saved.configuration, self._configuration, brings_seed=brings_seed)
        refuse(found, what="reader", accept=accept, acceptable=acceptable)
        reader = self._new_reader(saved.place)
        self._leave_epoch()
        self._place, self._reader, self._has_begun = saved.place, reader, False
        report(found)

    def __repr__(self) -> str:
        place = self._place
        name = self.reader_type.__name__
        return f"<StatefulReader {name} epoch={place.epoch} position={place.position}>"

    @functools.cached_property
    def _configuration(self) -> dict[str, Any]:
        configuration = configuration_of(self.reader_type, self.arguments)
        return json.loads(json.dumps(configuration))  # type: ignore[no-any-return]

    def _new_reader(self, place: Place) -> Any:
        reader = self.reader_type(**self.arguments)
        if place.reader is not None:
            reader.set_state(place.reader)
        return reader

    def _epoch(self, size: int, how: dict[str, Any]) -> Iterator[Any]:
        self._leave_epoch()
        self._check_batch_size(size)
        if self._has_begun:
            self._place = replace(self._place, epoch=self._place.epoch + 1, position=0)
        self._has_begun = True
        if not self._is_at_end():
            outputs = self._outputs = _endless(self._reader, how)
            try:
                for output in self._counted(outputs, how["batch_size"]):
                    yield output
                    if self._outputs is not outputs:
                        raise LoaderError(
                            f"this epoch of {self} was left: another one has begun, or a state was "
                            "loaded. Remedy: use one iterator at a time"
                        )
                    if self._is_at_end():
                        break
            finally:
                outputs.close()
        self._end_epoch()

    def _counted(self, outputs: Iterator[Any], batch_size: int | None) -> Iterator[Any]:
        """Outputs, each counted before it is delivered."""
        while True:
            try:
                output = next(outputs)
                epoch_size = self._reader.get_metadata(batch_size)["epoch_size_padded"]
                if self._place.epoch_size not in (None, epoch_size):
                    raise StateMismatch(
                        "epoch_size",
                        saved=self._place.epoch_size,
                        present=epoch_size,
                        remedy="read the data that were read when the state was saved",
                    )
                self._place = replace(
                    self._place,
                    position=self._place.position + _length(output),
                    batch_size=batch_size or 1,
                    epoch_size=epoch_size,
                    reader=str(self._reader.get_state()),
                )
            except BaseException:
                # What it would deliver next is not known any more.
                self._reader, self._has_begun = self._new_reader(self._place), False
                raise
            yield output

    def _leave_epoch(self) -> None:
        outputs, self._outputs = self._outputs, None
        if outputs is not None:
            outputs.close()

    def _end_epoch(self) -> None:
        place, num_shards = self._place, self._num_shards
        shard_id = place.shard_id
        if not self.arguments.get("stick_to_shard"):
            shard_id = (shard_id + 1) % num_shards
        self._place = replace(place, epoch=place.epoch + 1, position=0, shard_id=shard_id)
        self._has_begun = False

    def _is_at_end(self) -> bool:
        place, num_shards = self._place, self._num_shards
        if place.epoch_size is None:
            return False
        first = place.shard_id * place.epoch_size // num_shards
        end = (place.shard_id + 1) * place.epoch_size // num_shards
        return place.position >= end - first

    @property
    def _num_shards(self) -> int:
        return int(self.arguments.get("num_shards") or 1)

    def _check_batch_size(self, size: int) -> None:
        if self._place.batch_size not in (None, size):
            raise StateMismatch(
                "batch_size",
                saved=self._place.batch_size,
                present=size,
                remedy="go on with batches of the same size: what a reader pads and where its "
                "epochs end follow from it",
            )


def _endless(reader: Any, how: dict[str, Any]) -> Generator[Any, None, None]:
    """Outputs without end: where DALI's own epochs begin is of no importance."""
    while True:
        yield from reader.next_epoch(**how)


def _length(output: Any) -> int:
    """Samples in what a reader yields, a tuple or a dictionary of batches or of single samples."""
    first = output[0] if isinstance(output, tuple) else next(iter(output.values()))
    return int(getattr(first, "batch_size", 1))
