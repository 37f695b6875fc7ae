"""Data of every kind that a dataset may hold: constructors, and data that differs."""

from __future__ import annotations

import array
import dataclasses
import datetime
import decimal
import enum
import importlib.util
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.state.descriptions import Description, describe_dataset

Make = Callable[..., Any]

LETTERS = ("alpha", "beta", "gamma", "delta")
MANY = tuple(f"{number:05d}.jpg" for number in range(5000))


class Holding:
    """A user's dataset, with its content in an attribute of a usual name."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Record:
    path: str
    label: int


Named = namedtuple("Named", ["path", "label"])


def described(thing: Any) -> Description:
    return describe_dataset(Holding(thing))


def _pandas() -> Any:
    import pandas

    return pandas


def _pyarrow() -> Any:
    import pyarrow

    return pyarrow


def _polars() -> Any:
    import polars

    return polars


def _padded(letters: Any) -> Any:
    """Return records with padding between their fields, which may hold any bytes."""
    dtype = np.dtype({"names": ["label", "size"], "formats": ["u1", "f8"]}, align=True)
    records = np.frombuffer(np.random.bytes(dtype.itemsize * len(letters)), dtype).copy()
    records["label"] = [len(each) for each in letters]
    records["size"] = [ord(each[0]) for each in letters]
    return records


ORDERED: dict[str, Make] = {
    "array of objects": lambda given: np.array(list(given), object),
    "deque": deque,
    "text": "\n".join,
    "bytes": lambda given: " ".join(given).encode(),
    "bytearray": lambda given: bytearray(" ".join(given).encode()),
    "memoryview": lambda given: memoryview(" ".join(given).encode()),
    "array.array": lambda given: array.array("l", [ord(each[0]) for each in given]),
    "values of a dict": lambda given: dict(enumerate(given)).values(),
    "OrderedDict": lambda given: OrderedDict((each, len(each)) for each in given),
    "dataclasses": lambda given: [Record(each, len(each)) for each in given],
    "namedtuples": lambda given: deque(Named(each, len(each)) for each in given),
    "dates": lambda given: [
        datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=ord(each[0])) for each in given
    ],
    "decimals": lambda given: [decimal.Decimal(ord(each[0])) for each in given],
    "Enum members": lambda given: deque(Color(1 + (len(each) == 5)) for each in given),
    "nested mixtures": lambda given: deque(
        [None, True, 2**70, 1.5, 1j, {"a": [each, np.float32(2)]}, (each, b"", np.ones(2))]
        for each in given
    ),
    "a set inside": lambda given: deque({each, "x"} for each in given),
}
"""Made of a list of names; another order is another value."""

LONG: dict[str, Make] = {
    "list": list,
    "tuple": tuple,
    "list of pairs": lambda given: [(each, len(each)) for each in given],
    "list of dicts": lambda given: [{"path": each, "label": len(each)} for each in given],
    "list of uneven dicts": lambda given: [
        {"path": each, **({} if i % 2 else {"crowd": None})} for i, each in enumerate(given)
    ],
    "list of uneven lists": lambda given: [[each] * (1 + i % 3) for i, each in enumerate(given)],
    "list of Paths": lambda given: [Path(each) for each in given],
    "list of arrays": lambda given: [np.array([ord(c) for c in each]) for each in given],
    "tuple of arrays": lambda given: (np.array([int(each[:5]) for each in given]), np.arange(9)),
    "array of text": lambda given: np.array(given),
    "array of dates": lambda given: np.array([int(each[:5]) for each in given], "datetime64[s]"),
    "array of records": lambda given: _padded([chr(32 + i % 89) for i in map(_number, given)]),
    "tensor": lambda given: torch.tensor([_number(each) for each in given]).repeat(3),
    "half tensor": lambda given: torch.tensor([_number(each) for each in given] * 2).half(),
    "list of dataclasses": lambda given: [Record(each, len(each)) for each in given],
    "a list in a Subset": lambda given: torch.utils.data.Subset(
        list(given),
        range(len(given)),  # type: ignore[arg-type]
    ),
}
"""Described by text today. The text of a long one shows only a sample."""


def _number(name: str) -> int:
    return int(name[:5])


UNORDERED: dict[str, Make] = {
    "set": set,
    "frozenset": frozenset,
    "set of pairs": lambda given: {(each, len(each)) for each in given},
    "set of mixtures": lambda given: {*given, None, 1, 2.5, (1, "a"), frozenset(given)},
    "keys of a dict": lambda given: dict.fromkeys(given).keys(),
    "items of a dict": lambda given: {each: [each] for each in given}.items(),
}
"""Equal in any order of their entries."""

UNORDERED_LONG: dict[str, Make] = {
    "dict": lambda given: {each: len(each) for each in sorted(given)},
    "defaultdict": lambda given: defaultdict(int, {each: len(each) for each in sorted(given)}),
    "list of sets": lambda given: [{each, "x"} for each in sorted(given)],
}

PANDAS: dict[str, Make] = {
    "DataFrame": lambda given: _pandas().DataFrame({"path": list(given), "label": range(4)}),
    "DataFrame with gaps": lambda given: _pandas().DataFrame(
        {"path": [*given, None], "size": [*map(len, given), None]}
    ),
    "Series": lambda given: _pandas().Series(list(given)),
    "Series of numbers": lambda given: _pandas().Series([ord(each[0]) for each in given]),
    "Series with an index": lambda given: _pandas().Series(1, index=list(given)),
    "Index": lambda given: _pandas().Index(list(given)),
    "MultiIndex": lambda given: _pandas().MultiIndex.from_tuples([(each, 1) for each in given]),
    "Categorical": lambda given: _pandas().Categorical(list(given)),
    "Series of categories": lambda given: _pandas().Series(list(given), dtype="category"),
    "nullable numbers": lambda given: _pandas().array(
        [*(ord(each[0]) for each in given), None], dtype="Int64"
    ),
    "moments": lambda given: _pandas().Series(
        _pandas().to_datetime([ord(each[0]) for each in given], unit="s", utc=True)
    ),
    "Timestamps": lambda given: [_pandas().Timestamp(ord(each[0]), unit="s") for each in given],
    "Periods": lambda given: _pandas().Series(
        [_pandas().Period(year=2000 + ord(each[0]), freq="Y") for each in given]
    ),
}
PYARROW: dict[str, Make] = {
    "Table": lambda given: _pyarrow().table({"path": list(given), "label": range(4)}),
    "Table with gaps": lambda given: _pyarrow().table({"path": [*given, None]}),
    "RecordBatch": lambda given: _pyarrow().record_batch({"path": list(given)}),
    "Array": lambda given: _pyarrow().array(list(given)),
    "Array of numbers": lambda given: _pyarrow().array([ord(each[0]) for each in given]),
    "Array of lists": lambda given: _pyarrow().array([[each, None] for each in given]),
    "Array of bools": lambda given: _pyarrow().array([len(each) == 5 for each in given]),
    "dictionary": lambda given: _pyarrow().array(list(given)).dictionary_encode(),
    "ChunkedArray": lambda given: _pyarrow().chunked_array([list(given[:1]), list(given[1:])]),
}
POLARS: dict[str, Make] = {
    "polars.DataFrame": lambda given: _polars().DataFrame({"a": list(given), "b": range(4)}),
    "polars.Series": lambda given: _polars().Series(list(given)),
}

SHORT: dict[str, Make] = {}
if hasattr(np, "dtypes") and hasattr(np.dtypes, "StringDType"):
    SHORT["array of variable text"] = lambda given: np.array(given, np.dtypes.StringDType())
for package, kinds in (("pandas", PANDAS), ("pyarrow", PYARROW), ("polars", POLARS)):
    if importlib.util.find_spec(package) is not None:
        SHORT |= kinds
PLAIN: dict[str, tuple[Make, tuple[str, ...]]] = {
    **{name: (make, LETTERS) for name, make in (ORDERED | UNORDERED).items()},
    **{name: (make, MANY) for name, make in (LONG | UNORDERED_LONG).items()},
}
ALL = PLAIN | {name: (make, LETTERS) for name, make in SHORT.items()}
"""How each kind is made, and its entries."""
