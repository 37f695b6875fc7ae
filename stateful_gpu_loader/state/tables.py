"""Tables of pandas, pyarrow and polars as lists and arrays, equal across package versions.

Tables are recognised by the modules of their classes, without an import.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_PANDAS = {"DataFrame", "Series", "Index", "ExtensionArray"}
_ARROW = {"_Tabular", "Table", "RecordBatch", "ChunkedArray", "Array"}
_POLARS = {"DataFrame", "Series"}
_PANDAS_SCALARS = {"Timestamp", "Timedelta", "Period", "Interval", "NaTType", "NAType"}


def is_table(cls: type) -> bool:
    """Whether a class is a table or a column of pandas, pyarrow or polars.

    >>> is_table(list)
    False
    """
    return _package_of(cls) is not None


def is_scalar(cls: type) -> bool:
    """Whether a class is a pandas scalar, whose text is its value."""
    return _has_base(cls, "pandas", _PANDAS_SCALARS)


def shape_of(table: Any) -> tuple[int, int]:
    """Return the numbers of rows and columns."""
    shape = getattr(table, "shape", (len(table), 1))
    return int(shape[0]), int(math.prod(shape[1:]))


def some_rows(table: Any, rows: Sequence[int]) -> Any:
    """Return a table of the given rows."""
    package = _package_of(type(table))
    if package == "pandas":
        return getattr(table, "iloc", table)[list(rows)]
    return table.take(list(rows)) if package == "pyarrow" else table[list(rows)]


def columns_of(table: Any) -> list[Any]:
    """Return names and values as nested lists and arrays, equal for equal tables."""
    package = _package_of(type(table))
    if package == "pandas":
        return _of_pandas(table)
    return _of_pyarrow(table) if package == "pyarrow" else _of_polars(table)


def _package_of(cls: type) -> str | None:
    for package, names in (("pandas", _PANDAS), ("pyarrow", _ARROW), ("polars", _POLARS)):
        if _has_base(cls, package, names):
            return package
    return None


def _has_base(cls: type, package: str, names: set[str]) -> bool:
    return any(
        base.__name__ in names and base.__module__.partition(".")[0] == package
        for base in cls.__mro__
    )


def _of_pandas(table: Any) -> list[Any]:
    if hasattr(table, "columns"):
        columns = [_pandas_values(table.iloc[:, i]) for i in range(table.shape[1])]
        return ["frame", _of_pandas(table.columns), _of_pandas(table.index), columns]
    if hasattr(table, "index"):
        return ["series", table.name, _of_pandas(table.index), _pandas_values(table)]
    return ["values", list(getattr(table, "names", ())), _pandas_values(table)]


def _pandas_values(values: Any) -> Any:
    """Return the values of a pandas series, index or array.

    Text counts by its values alone, because its dtype differs between pandas versions.
    """
    if getattr(values, "nlevels", 1) > 1:
        return values.tolist()  # tuples
    dtype, held = values.dtype, getattr(values, "array", values)
    if isinstance(dtype, np.dtype) and not dtype.hasobject:
        return values.to_numpy()
    if hasattr(held, "categories") and hasattr(held, "codes"):
        categories = _pandas_values(held.categories)
        return ["categories", np.asarray(held.codes, "<i8"), categories, bool(held.ordered)]
    if dtype.kind == "M":  # with a time zone
        return [str(dtype), np.asarray(held.astype("int64"))]
    missing = np.asarray(values.isna(), bool)
    return ["values", missing, values[~missing].tolist()]


def _of_pyarrow(table: Any) -> list[Any]:
    names = getattr(table, "column_names", None)
    if names is None:
        return ["values", _pyarrow_values(table)]
    return ["table", list(names), [_pyarrow_values(table.column(i)) for i in range(len(names))]]


def _pyarrow_values(column: Any) -> list[Any]:
    """Return the type, the places of nulls, and the other values, for any memory layout."""
    if str(column.type).startswith("dictionary<"):
        column = column.cast(column.type.value_type)
    kind = str(column.type).removeprefix("large_").removesuffix("_view")
    missing = column.is_null().to_numpy(zero_copy_only=False)
    present = column.drop_null()
    if column.type.num_fields or hasattr(column.type, "extension_name"):
        return [kind, missing, present.to_pylist()]
    values = present.to_numpy(zero_copy_only=False)
    return [kind, missing, values.tolist() if values.dtype.hasobject else values]


def _of_polars(table: Any) -> list[Any]:
    if hasattr(table, "get_columns"):
        return ["table", list(table.columns), list(map(_polars_values, table.get_columns()))]
    return ["values", table.name, _polars_values(table)]


def _polars_values(column: Any) -> Any:
    is_numeric = column.dtype.is_numeric() and not column.dtype.is_decimal()
    return column.to_numpy() if is_numeric and not column.null_count() else column.to_list()
