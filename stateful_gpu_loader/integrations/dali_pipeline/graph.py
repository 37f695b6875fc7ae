"""The graph of a DALI pipeline as names and values, read from ``Pipeline.serialize()``.

It is a protocol buffer, of which these fields are used: of the pipeline 2 (batch size), 5
(operators), 7 (outputs) and 9 (seed); of an operator 1 (kind), 2 (inputs), 4 (arguments) and 5
(name); of an argument 1 (name), 3 (float), 4 (int), 5 (string), 6 (bool) and 7 (elements).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import pack, unpack
from typing import Any

from stateful_gpu_loader.datasets.protobuf import fields, signed

IGNORED = frozenset(
    {
        "preserve_name",
        # These change the speed, but not the batches.
        "bytes_per_sample_hint",
        "dont_use_mmap",
        "lazy_init",
        "prefetch_queue_depth",
        "read_ahead",
        "tensor_init_bytes",
        "use_o_direct",
    }
)
"""Arguments that change no batch.

Arguments that begin with an underscore are ignored, too: they contain source lines, and a comment
above the pipeline must not make it another one.
"""


@dataclass(frozen=True)
class Operator:
    """One operator of a pipeline."""

    name: str
    """The user's name, or one like ``__Rotate_3``; DALI's checkpoints identify operators by it."""
    kind: str
    """Kind of operator, such as ``readers.File``."""
    inputs: tuple[str, ...]
    """Edges that it takes; ``angle=__Uniform_2`` for one that is an argument."""
    arguments: dict[str, Any]
    """Arguments that were given and that change the batches."""


@dataclass(frozen=True)
class Graph:
    """A whole pipeline."""

    batch_size: int
    seed: int | None
    """Seed of the pipeline; None if DALI draws one."""
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]

    @classmethod
    def from_serialized(cls, serialized: bytes) -> Graph:
        """Read what ``Pipeline.serialize()`` returned."""
        batch_size, seed = 0, None
        operators, outputs = [], []
        for number, _, value in fields(serialized):
            if isinstance(value, memoryview):
                if number == 5:
                    operators.append(_operator(value))
                elif number == 7:
                    outputs.append(_text(value, 1))
            elif number == 2:
                batch_size = value
            elif number == 9:
                seed = signed(value)
        return cls(batch_size, seed, tuple(operators), tuple(outputs))


def _operator(message: memoryview) -> Operator:
    inputs, arguments = [], {}
    for number, _, value in fields(message):
        if not isinstance(value, memoryview):
            continue
        if number == 2:
            argument = _text(value, 4)
            inputs.append(f"{argument}={_text(value, 1)}" if argument else _text(value, 1))
        elif number == 4:
            name = _text(value, 1)
            if name not in IGNORED and not name.startswith("_"):
                arguments[name] = _value(value)
    kind = _text(message, 1).replace("__", ".")
    return Operator(_text(message, 5), kind, tuple(inputs), arguments)


def _value(message: memoryview) -> Any:
    values = list(_values(message))
    return values[0] if len(values) == 1 else values


def _values(message: memoryview) -> Iterator[Any]:
    """Yield the value of an argument, or its list of elements, or nothing if that is empty."""
    elements = []
    for number, _, value in fields(message):
        if isinstance(value, memoryview):
            if number == 5:
                yield bytes(value).decode(errors="backslashreplace")
            elif number == 7:
                elements.append(_value(value))
        elif number == 3:
            yield unpack("<f", pack("<I", value))[0]
        elif number == 4:
            yield signed(value)
        elif number == 6:
            yield bool(value)
    if elements:
        yield elements


def _text(message: memoryview, wanted: int) -> str:
    for number, _, value in fields(message):
        if number == wanted and isinstance(value, memoryview):
            return bytes(value).decode(errors="backslashreplace")
    return ""
