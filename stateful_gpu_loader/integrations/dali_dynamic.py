"""Readers of DALI's dynamic mode that resume only the remainder of an interrupted epoch."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from stateful_gpu_loader.errors import LoaderError, StateMismatch
from stateful_gpu_loader.integrations.dali_identity import (
    DATA,
    NOT_GIVEN,
    Differences,
    brief,
    check_accept,
    check_header,
    differences,
    digest,
    foreign,
    refuse,
    report,
)
from stateful_gpu_loader.integrations.dali_pipeline.description import (
    IGNORED,
    Operator,
    contents_of,
)
from stateful_gpu_loader.state.descriptions import describe
from stateful_gpu_loader.state.schema import as_int
from stateful_gpu_loader.state.text_state import TextState


class StatefulReader(TextState):
    """Wraps a reader of ``ndd.readers`` with state methods, and with epochs that resume.

    A reader that DALI itself restores continues at the right sample, but its first epoch has the
    full length again, and it no longer knows its shard. It also accepts the state of a reader of
    other data, shards or order. This class counts delivered samples: a resumed epoch has only its
    remainder, and differences are refused by name. ``get_state`` and ``set_state`` serve DALI's own
    ``Checkpoint``.

    Nothing is read before the first ``next()``.

    Args:
        reader_type: class of the reader, such as ``ndd.readers.File``; not a reader, because
            DALI restores only a reader that was not iterated.
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
would silently continue in another one; if it is meant to differ, load_state_dict(state, \
accept={'files'})
    """

    def __init__(self, reader_type: type, **arguments: Any) -> None:
        self.reader_type = reader_type
        self.arguments = {**arguments, "enable_checkpointing": True}
        self._place = Place(shard_id=int(arguments.get("shard_id") or 0))
        self._has_begun = False
        """Whether the next pass follows the place's pass."""
        self._outputs: Generator[Any, None, None] | None = None
        """Outputs of the pass that began last."""
        self._reader: Any = self._new_reader(self._place)

    def next_epoch(self, batch_size: int | None = None, *, ctx: Any = None) -> Iterator[Any]:
        """Return the reader's next epoch or, after a resume, the remainder of the present one.

        The epoch begins at the first ``next()``. After the last batch of an epoch the remainder is
        empty, as with torchdata. An epoch left with ``break`` counts, and the next one begins with
        the following sample, as in DALI.

        Args:
            batch_size: number of samples in a batch, always the same; None yields single samples.
            ctx: the ``EvalContext``; None is the current one.

        Yields:
            Outputs of the reader.

        Raises:
            StateMismatch: the batch size changed, or the data differ from the state's.
            LoaderError: a later epoch was already asked for a batch.
            RuntimeError: an error of DALI; the next epoch is then the remainder of this one.
        """
        size = 1 if batch_size is None else as_int("batch_size", batch_size)
        self._check_batch_size(size)
        return self._epoch(size, {"batch_size": batch_size, "ctx": ctx})

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last delivered batch."""
        return ReaderState(place=self._place, configuration=self._configuration).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Resume from a result of ``state_dict``, whatever was read before.

        Args:
            state_dict: the state.
            accept: arguments that select the data and may differ, such as ``{"file_root"}``. The
                number of samples must still be the same.

        Raises:
            StateMismatch: this is not such a state, or belongs to another reader; nothing was
                changed.
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
        """Yield outputs, each counted before its delivery."""
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
                # The reader's next output is unknown, so make a new reader.
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
                remedy="continue with batches of the same size: what a reader pads and where its "
                "epochs end follow from it",
            )


def _endless(reader: Any, how: dict[str, Any]) -> Generator[Any, None, None]:
    """Yield outputs without end, across DALI's own epochs."""
    while True:
        yield from reader.next_epoch(**how)


def _length(output: Any) -> int:
    """Return the number of samples in an output: a tuple or dict of batches or samples."""
    first = output[0] if isinstance(output, tuple) else next(iter(output.values()))
    return int(getattr(first, "batch_size", 1))


FORMAT = "stateful_gpu_loader DALI reader"
VERSION = 1

_foreign = partial(foreign, of="StatefulReader")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Position of a reader in delivered samples."""

    epoch: int = 0
    """Number of the epoch, counted from 0; an epoch that was left early counts."""
    position: int = 0
    """Number of delivered samples of the epoch."""
    shard_id: int = 0
    """Shard that the epoch reads."""
    batch_size: int | None = None
    """Batch size; None before the first delivery, 1 for single samples."""
    epoch_size: int | None = None
    """Number of samples in all shards, with DALI's padding; None before the first delivery."""
    reader: str | None = None
    """DALI's own state; None before the first delivery."""


@dataclass(frozen=True, kw_only=True)
class ReaderState:
    """Contents of ``StatefulReader.state_dict()``: small, flat and plain."""

    place: Place
    configuration: Mapping[str, Any]
    """Configuration that must not change, as JSON values."""

    def to_dict(self) -> dict[str, Any]:
        """Return a new dictionary of plain values.

        >>> state = ReaderState(place=Place(epoch=3), configuration={"seed": 7})
        >>> ReaderState.from_dict(state.to_dict()) == state
        True
        """
        state = {
            "format": FORMAT,
            "version": VERSION,
            **asdict(self.place),
            "configuration": json.dumps(self.configuration),
        }
        return {**state, "digest": digest(dict(sorted(state.items())))}

    @classmethod
    def from_dict(cls, state: Any) -> ReaderState:
        """Check ``state`` and return it; DALI may hang on an altered reader state.

        Raises:
            StateMismatch: this is not such a state, comes from a later version, or was altered.
        """
        keys = {*_TYPES, "digest"}
        check_header(state, format=FORMAT, version=VERSION, keys=keys, of="StatefulReader")
        for name, kinds in _TYPES.items():
            if type(state[name]) not in kinds:
                raise _foreign(name, state[name], " or ".join(kind.__name__ for kind in kinds))
        expected = digest({name: state[name] for name in sorted(state) if name != "digest"})
        if state["digest"] != expected:
            raise _foreign("digest", state["digest"], expected)
        configuration = json.loads(state["configuration"])
        place = {name: state[name] for name in _TYPES if name != "configuration"}
        return cls(place=Place(**place), configuration=configuration)


_TYPES: dict[str, tuple[type, ...]] = {
    "epoch": (int,),
    "position": (int,),
    "shard_id": (int,),
    "batch_size": (int, type(None)),
    "epoch_size": (int, type(None)),
    "reader": (str, type(None)),
    "configuration": (str,),
}


_FREE = IGNORED | {"name", "enable_checkpointing", "max_batch_size", "num_inputs"}
_DEFAULTS: dict[str, Any] = {
    "device": "cpu",
    "initial_fill": 1024,
    "num_shards": 1,
    "pad_last_batch": False,
    "random_shuffle": False,
    "shard_id": 0,
    "shuffle_after_epoch": False,
    "stick_to_shard": False,
}
"""DALI's defaults, which may be passed explicitly."""


def configuration_of(reader_type: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that determines a reader's outputs before it reads, as JSON values.

    Paths are described by their data; options of speed are left out.

    >>> class File: ...
    >>> configuration_of(File, {"random_shuffle": True, "seed": 7, "read_ahead": True})["seed"]
    7
    """
    given = {
        name: _plain(value)
        for name, value in arguments.items()
        if value is not None and name not in _FREE
    }
    reader = Operator("reader", f"readers.{reader_type.__name__}", (), given)
    described = {**_DEFAULTS, **given, **contents_of(reader)}
    return {
        "reader": f"{reader_type.__module__}.{reader_type.__qualname__}",
        **{name: brief(described[name]) for name in sorted(described)},
    }


def changes(
    saved: Mapping[str, Any], present: Mapping[str, Any], *, brings_seed: bool
) -> Differences:
    """Return the differences between two configurations.

    Args:
        saved: configuration in a state.
        present: configuration of a reader.
        brings_seed: whether the state contains DALI's own state, which replaces a seed that was not
            given.
    """
    found = differences(saved, present)
    if brings_seed and NOT_GIVEN in found.get("seed", ()):
        del found["seed"]
    return found


def _plain(value: Any) -> Any:
    """Return the value as JSON would restore it, or a description."""
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "__fspath__"):
        return str(value)
    if hasattr(value, "tolist"):  # arrays of NumPy and torch
        return _plain(value.tolist())
    return describe(value)
