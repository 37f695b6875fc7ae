"""Reads DALI's own checkpoints, from ``Pipeline.checkpoint()`` or the file that it wrote.

A checkpoint is a protocol buffer: field 1 for each operator (1 its name, 2 its state), field 2 for
other data. Field 1 of a reader's state contains the number of its generator (1), its epoch (2), and
the number of samples taken from this epoch (3).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial

from stateful_gpu_loader.checkpoint.files import read_regular
from stateful_gpu_loader.datasets.protobuf import DELIMITED, as_bytes, fields
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.integrations.dali_pipeline.description import (
    NO_OPERATOR,
    Graph,
    Operator,
    unmatched,
)
from stateful_gpu_loader.integrations.dali_pipeline.state import Place
from stateful_gpu_loader.samplers.sharded import least_multiple

_INSERTED = re.compile(r"__(Copy|MakeContiguous)_[CG]puTo[CG]pu_")
"""Matches the names of operators that DALI adds."""

_MAX_FILE_BYTES = 1 << 30

_MODULUS = 2**31 - 1

_REMEDY = (
    "load it into the pipeline that it was taken of, built with the batch size, the shards, the "
    "padding and the data that it had"
)
_mismatch = partial(StateMismatch, remedy=_REMEDY)


def read(checkpoint: bytes | str | os.PathLike[str]) -> Place:
    """Return the place in a checkpoint or its file, counted as for an external source.

    Raises:
        StateMismatch: this is not a DALI checkpoint.
        OSError: the file cannot be read.
    """
    if isinstance(checkpoint, bytes):
        content = checkpoint
    else:
        content = read_regular(checkpoint, _MAX_FILE_BYTES)
    place = Place(0, 0, content)
    try:
        _operators(content)
        return Place(place.source_epoch, place.runs, content)
    except (ValueError, KeyError, RecursionError) as error:
        raise StateMismatch(
            "checkpoint",
            saved=content,
            present=f"one of DALI's ({error})",
            remedy="pass what Pipeline.checkpoint() returned, unchanged, or the path of its file",
        ) from None


def check_operators(place: Place, graph: Graph) -> None:
    """Check everything known before the pipeline is built.

    DALI would at best name an operator, or hang.

    Raises:
        StateMismatch: the pipeline has other operators, a reader's state is not understood, or a
            reader has taken more samples than were delivered.
    """
    saved = _operators(place.checkpoint)
    names = [name for name in saved if not _INSERTED.match(name)]
    present = [operator.name for operator in graph.operators]
    missing, new = unmatched(names, present)
    for name in missing:
        raise _mismatch(f"operator {name}", saved="a state of it", present=NO_OPERATOR)
    for name in new:
        raise _mismatch(f"operator {name}", saved=NO_OPERATOR, present="one of this name")
    given = place.runs * graph.batch_size
    for operator, (epoch, taken) in _readers(place, graph):
        if max(epoch, taken) > given:
            raise _mismatch(
                f"{operator.name}'s place",
                saved=f"{taken} samples of epoch {epoch} after {place.runs} batches",
                present=f"at most {given}, in batches of {graph.batch_size}",
            )


def check_readers(place: Place, graph: Graph, metas: Mapping[str, Mapping[str, int]]) -> None:
    """Check that each reader's place follows from the number of batches of this pipeline.

    Args:
        metas: result of ``Pipeline.reader_meta()``.

    Raises:
        StateMismatch: batch size, shards, padding or the number of samples differ.
    """
    for operator, found in _readers(place, graph):
        meta = metas[operator.name]
        stays = bool(meta["stick_to_shard"] or operator.arguments.get("shuffle_after_epoch"))
        epoch, taken = _place_after(place.runs, meta, graph.batch_size, stays=stays)
        if found != (epoch, taken):
            raise _mismatch(
                f"{operator.name}'s place",
                saved=f"{found[1]} samples of epoch {found[0]} after {place.runs} batches",
                present=f"{taken} of epoch {epoch}, in batches of {graph.batch_size} of "
                f"{meta['epoch_size']} samples in {meta['number_of_shards']} shards",
            )


def _place_after(
    runs: int, meta: Mapping[str, int], batch_size: int, *, stays: bool
) -> tuple[int, int]:
    """Return a reader's epoch and the number of samples taken from it."""
    n, shards, shard = meta["epoch_size"], meta["number_of_shards"], meta["shard_id"]
    taken = runs * batch_size
    if meta["pad_last_batch"]:
        return divmod(taken, least_multiple(-(-n // shards), batch_size))

    def size() -> int:
        return (shard + 1) * n // shards - shard * n // shards

    if stays:
        return divmod(taken, size())
    turns, taken = divmod(taken, n)
    epoch = turns * shards
    while taken >= size():
        taken -= size()
        epoch, shard = epoch + 1, (shard + 1) % shards
    return epoch, taken


def _readers(place: Place, graph: Graph) -> list[tuple[Operator, tuple[int, int]]]:
    states = _operators(place.checkpoint)
    readers = [each for each in graph.operators if each.kind.startswith("readers.")]
    return [(reader, _reader_place(reader.name, states[reader.name])) for reader in readers]


def _reader_place(name: str, state: bytes) -> tuple[int, int]:
    try:
        (snapshot,) = [value for number, _, value in fields(state) if number == 1]
        found = list(fields(as_bytes(DELIMITED, snapshot, name)))
        if [number for number, _, _ in found] != [1, 2, 3]:
            raise ValueError
        generator, epoch, taken = (value for _, _, value in found)
        # Other values may put a linear congruential generator into a fixed point.
        is_one = isinstance(generator, memoryview) and 0 < int(bytes(generator)) < _MODULUS
        if not (is_one and isinstance(epoch, int) and isinstance(taken, int)):
            raise ValueError
    except ValueError:
        raise _mismatch(
            f"{name}'s place", saved=state, present="a generator, an epoch and a number of samples"
        ) from None
    return epoch, taken


def _operators(checkpoint: bytes) -> dict[str, bytes]:
    found = {}
    for number, _, value in fields(checkpoint):
        if number == 1 and isinstance(value, memoryview):
            parts = {
                inner: bytes(part)
                for inner, _, part in fields(value)
                if isinstance(part, memoryview)
            }
            found[parts[1].decode(errors="backslashreplace")] = parts.get(2, b"")
    return found
