"""Compares two samples bit for bit and field by field."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from types import FunctionType
from typing import Any

import numpy as np
import torch

_LONGEST = 60
"""Maximum number of characters of a value that are shown."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One field that differs."""

    field: str
    """Path in the sample, in Python's notation: ``['image']``; "" for the whole sample."""
    what: str
    """Description of the values that differ, and by how much."""

    def __str__(self) -> str:
        return f"{self.field or 'the value'}: {self.what}"


def copied(batch: Any) -> Any:
    """Return a copy, or a batch that cannot be copied."""
    try:
        return copy.deepcopy(batch)
    except Exception:
        return batch


def differences(expected: Any, found: Any, field: str = "") -> Iterator[Difference]:
    """Yield the fields in which two values differ bit for bit.

    Dictionaries, lists, tuples, dataclasses and objects are compared by their content. Tensors,
    arrays and PIL images are compared by dtype, shape and bytes, so NaN equals NaN, and 0.0 does
    not equal -0.0. A class or function equals only itself.

    >>> [str(each) for each in differences({"x": [1, 2]}, {"x": [1, 3]})]
    ["['x'][1]: 3, not 2"]
    >>> print(next(differences(torch.zeros(2, 3), torch.eye(2, 3))))
    the value: 2 of 6 values differ, by 1 at most; the first at [0, 0]: 1.0, not 0.0
    """
    if isinstance(expected, torch.Tensor) and expected.is_nested:
        expected, found = _unbound(expected), _unbound(found)
    if type(expected) is not type(found):
        yield Difference(field, f"{_shown(found)}, not {_shown(expected)}")
    elif isinstance(expected, (torch.Tensor, np.ndarray, np.generic)):
        yield from _of_arrays(expected, found, field)
    elif isinstance(expected, Mapping):
        yield from _of_mappings(expected, found, field)
    elif isinstance(expected, (list, tuple)):
        yield from _of_sequences(expected, found, field)
    elif isinstance(expected, (str, bytes)):
        yield from _of_texts(expected, found, field)
    elif _is_pil(expected):
        yield from _of_mappings(_pil_fields(expected), _pil_fields(found), field)
    elif isinstance(expected, (int, float, complex, type(None), Set)):
        if expected != found if isinstance(expected, Set) else repr(expected) != repr(found):
            yield Difference(field, f"{_shown(found)}, not {_shown(expected)}")
    elif isinstance(expected, (type, FunctionType)):
        if expected is not found:
            yield Difference(field, f"{_shown(found)}, not {_shown(expected)}")
    else:
        yield from _of_objects(expected, found, field)


def same(expected: Any, found: Any) -> bool:
    """Return whether two values are equal bit for bit.

    >>> same(float("nan"), float("nan")), same(0.0, -0.0)
    (True, False)
    """
    return next(differences(expected, found), None) is None


def num_samples(batch: Any) -> int | None:
    """Return the number of samples in a collated batch: the length of its first tensor.

    >>> num_samples({"name": ["a", "b"], "image": torch.zeros(2, 3)})
    2
    """
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return len(batch) if batch.ndim else None
    parts: Any = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, (Mapping, list, tuple)):
        return None
    found = (num_samples(part) for part in parts)
    return next((n for n in found if n is not None), None)


def sample_of(batch: Any, i: int, n: int) -> Any:
    """Return the parts of a collated batch that belong to sample ``i`` of ``n``.

    >>> sample_of([torch.tensor([5, 6]), ("a", "b")], 1, 2)
    [tensor(6), 'b']
    """
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return batch[i] if batch.ndim and len(batch) == n else batch
    if isinstance(batch, Mapping):
        return {key: sample_of(part, i, n) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        if len(batch) == n and not all(_is_column(part, n) for part in batch):
            return batch[i]
        return [sample_of(part, i, n) for part in batch]
    return batch


def _is_column(part: Any, n: int) -> bool:
    if isinstance(part, Mapping):
        return all(_is_column(each, n) for each in part.values())
    if isinstance(part, (torch.Tensor, np.ndarray)):
        return part.ndim > 0 and len(part) == n
    return isinstance(part, (list, tuple)) and len(part) == n


def _of_arrays(expected: Any, found: Any, field: str) -> Iterator[Difference]:
    if expected.dtype != found.dtype or expected.shape != found.shape:
        yield Difference(field, f"{_shown(found)}, not {_shown(expected)}")
        return
    one, other = _as_array(expected), _as_array(found)
    if one.dtype.hasobject:
        yield from differences(one.tolist(), other.tolist(), field)
        return
    differs = (_bytes(one) != _bytes(other)).any(axis=1).reshape(one.shape)
    count = int(differs.sum())
    if not count:
        return
    place = [int(axis[0]) for axis in np.nonzero(differs)] if one.ndim else []
    at, what = tuple(place), f"{count} of {one.size} values differ"
    channels = _channels(one.shape)
    if channels is not None:
        pixels = differs.any(axis=channels)
        what = f"{int(pixels.sum())} of {pixels.size} pixels differ"
    if np.issubdtype(one.dtype, np.number) and not np.iscomplexobj(one):
        distance = np.abs(one[differs].astype(np.float64) - other[differs].astype(np.float64))
        what += f", by {np.nanmax(distance):.6g} at most" if np.isfinite(distance).any() else ""
    what += f"; the first at {place}: " if place else ": "
    yield Difference(field, f"{what}{other[at].item()}, not {one[at].item()}")


def _of_mappings(expected: Any, found: Any, field: str) -> Iterator[Difference]:
    lacking = [key for key in expected if key not in found]
    added = [key for key in found if key not in expected]
    if lacking or added:
        yield Difference(field, f"the keys {list(found)!r}, not {list(expected)!r}")
    elif list(expected) != list(found):
        yield Difference(field, f"the order of the keys: {list(found)!r}, not {list(expected)!r}")
    for key in expected:
        if key in found:
            yield from differences(expected[key], found[key], f"{field}[{key!r}]")


def _of_sequences(
    expected: Sequence[Any], found: Sequence[Any], field: str
) -> Iterator[Difference]:
    if len(expected) != len(found):
        yield Difference(field, f"{len(found)} elements, not {len(expected)}")
        return
    inner = [
        each
        for i, (one, other) in enumerate(zip(expected, found, strict=True))
        for each in differences(one, other, f"{field}[{i}]")
    ]
    if len(inner) > 1 and Counter(map(repr, expected)) == Counter(map(repr, found)):
        text = f"{_shown(found)}, not {_shown(expected)}: the same elements in another order"
        yield Difference(field, text)
    else:
        yield from inner


def _of_texts(expected: Any, found: Any, field: str) -> Iterator[Difference]:
    if expected == found:
        return
    place = next(
        (i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]),
        min(len(expected), len(found)),
    )
    what = f"{_shown(found)}, not {_shown(expected)}; the first difference at {place}"
    yield Difference(field, what)


def _of_objects(expected: Any, found: Any, field: str) -> Iterator[Difference]:
    if dataclasses.is_dataclass(expected):
        fields = [each.name for each in dataclasses.fields(expected)]
        for name in fields:
            one, other = getattr(expected, name), getattr(found, name)
            yield from differences(one, other, f"{field}.{name}")
    elif _has_own_equality(expected):
        if not bool(expected == found):
            yield Difference(field, f"{_shown(found)}, not {_shown(expected)}")
    elif hasattr(expected, "__dict__"):
        yield from differences(vars(expected), vars(found), field)
    else:
        try:
            is_same = pickle.dumps(expected) == pickle.dumps(found)
        except Exception as error:
            yield Difference(field, f"a {type(found).__name__} cannot be compared: {error}")
        else:
            if not is_same:
                yield Difference(field, f"{_shown(found)}, not {_shown(expected)}")


def _has_own_equality(value: Any) -> bool:
    own: Any = type(value).__eq__
    return own is not object.__eq__


def _unbound(value: Any) -> Any:
    nested = isinstance(value, torch.Tensor) and value.is_nested
    return list(value.unbind()) if nested else value


def _is_pil(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.") and hasattr(value, "getpalette")


def _pil_fields(image: Any) -> dict[str, Any]:
    return {"mode": image.mode, "size": image.size, "pixels": np.asarray(image)}


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    dense = value.detach().cpu()
    dense = dense if dense.layout == torch.strided else dense.to_dense()
    dense = dense.resolve_conj().resolve_neg()
    try:
        array: np.ndarray[Any, Any] = dense.numpy()
    except TypeError:  # NumPy lacks the dtype; distinct values stay distinct as float64
        array = dense.double().numpy()
    return array


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bytes of each element, uint8 [number of elements, bytes of one]."""
    flat = np.frombuffer(array.tobytes(), np.uint8)
    return flat.reshape(array.size, array.itemsize)


def _channels(shape: tuple[int, ...]) -> int | None:
    """Return the axis of the channels if the shape is that of an image, (C, H, W) or (H, W, C)."""
    if len(shape) == 3:
        return next((axis for axis in (0, 2) if shape[axis] in (1, 3, 4)), None)
    return None


def _shown(value: Any) -> str:
    if isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim:
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
