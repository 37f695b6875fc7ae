"""StatefulReader: a reader of dynamic mode whose state resumes exactly."""

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
    """Wraps a reader of ``ndd.readers`` with state methods, and with epochs that resume.

    A reader that DALI itself restores continues at the right sample, but its first epoch has the
    full length again, it no longer knows which shard it reads, and it silently takes the state of a
    reader of other data, shards or order. This class counts what it delivered: a resumed epoch has
    only its remainder, and differences are refused by name. Its ``get_state`` and ``set_state``
    make it usable with DALI's own ``Checkpoint``, too.

    Nothing is read, and no thread is started, before the first ``next()``.

    Args:
        reader_type: the class of the reader, such as ``ndd.readers.File``; not a reader, because
            DALI restores the state only of a reader that has not begun.
        arguments: arguments of the class.

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
        """Whether the next pass is the one after that of the place."""
        self._outputs: Generator[Any, None, None] | None = None
        """Outputs of the last pass that was begun."""
        self._reader: Any = self._new_reader(self._place)

    def next_epoch(self, batch_size: int | None = None, *, ctx: Any = None) -> Iterator[Any]:
        """Return the reader's next epoch or, after a resume, the remainder of the present one.

        The epoch begins at the first ``next()``. Between the last batch of an epoch and the next
        request the remainder is empty, as with torchdata. An epoch that is left with ``break``
        counts, and the next one begins with the sample that follows, both as in DALI.

        Args:
            batch_size: number of samples in a batch, always the same; None yields samples one by
                one.
            ctx: the ``EvalContext``; None is the current one.

        Yields:
            What the reader yields.

        Raises:
            StateMismatch: the batch size changed, or the data differ from the state's.
            LoaderError: an epoch that began later has been asked for a batch.
            RuntimeError: an error of DALI. Delivered batches count, and the next epoch is the
                remainder of this one.
        """
        size = 1 if batch_size is None else as_int("batch_size", batch_size)
        self._check_batch_size(size)
        return self._epoch(size, {"batch_size": batch_size, "ctx": ctx})

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last delivered batch."""
        return ReaderState(place=self._place, configuration=self._configuration).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Resume from what ``state_dict`` returned, whatever was read before.

        Args:
            state_dict: the state.
            accept: arguments that tell which data are read and that may differ, such as
                ``{"file_root"}``. The number of samples must be the same nevertheless.

        Raises:
            StateMismatch: it is not such a state, or is of another reader; nothing was changed.
            ValueError: ``accept`` contains another name.
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
        """Yield outputs, each counted before it is delivered."""
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
                # It is not known what the reader would deliver next, so a new one is made at the
                # place.
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
    """Yield outputs without end: where DALI's own epochs begin does not matter here."""
    while True:
        yield from reader.next_epoch(**how)


def _length(output: Any) -> int:
    """Return the number of samples in an output: a tuple or dictionary of batches or of samples."""
    first = output[0] if isinstance(output, tuple) else next(iter(output.values()))
    return int(getattr(first, "batch_size", 1))
