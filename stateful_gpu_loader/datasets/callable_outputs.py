"""What a user's function returned: parts of a sample, their dtypes and dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from stateful_gpu_loader.records import BatchInfo, EncodedSample, SampleInfo
from stateful_gpu_loader.state.schema import as_int

Spec: TypeAlias = Any
"""One value for a single output, or a tuple or dict of them; None is not checked."""

_BYTES = (bytes, bytearray, memoryview)
_Info = SampleInfo | BatchInfo


def check_spec(name: str, spec: Spec) -> Spec:
    """The ``dtype`` or ``ndim`` that outputs must have, as :func:`check_output` takes it.

    Raises:
        TypeError: a value is no dtype of torch or NumPy, or no number of dimensions.

    >>> check_spec("dtype", (torch.uint8, "int64", None))
    ('uint8', 'int64', None)
    """
    if isinstance(spec, Mapping):
        return {key: _checked(name, value) for key, value in spec.items()}
    if isinstance(spec, (tuple, list)):
        return tuple(_checked(name, value) for value in spec)
    return _checked(name, spec)


def _checked(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "ndim":
        if as_int("ndim", value) < 0:
            raise TypeError(f"ndim has {value}. Remedy: ints from 0, or None")
        return int(value)
    of_torch = getattr(torch, value, None) if isinstance(value, str) else value
    if isinstance(of_torch, torch.dtype):
        return str(of_torch).removeprefix("torch.")
    try:
        dtype = np.dtype(value)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind in "OSUV":
        raise TypeError(
            f"dtype has {value!r}, which is none of numbers. Remedy: dtypes of torch or NumPy, or "
            "None for what is not checked"
        )
    return dtype.name


def check_output(output: Any, dtype: Spec, ndim: Spec, info: _Info, *, is_batch: bool) -> None:
    """Compare one call's outputs with what was declared.

    Args:
        dtype, ndim: as :func:`check_spec` gives them.
        is_batch: the arrays have a first dimension of samples, or are lists of samples.

    Raises:
        TypeError: an output differs; it names the output, both values and the call.
    """
    checks: tuple[tuple[str, Spec, Callable[[Any], Any]], ...] = (
        ("dtype", dtype, _dtype_of),
        ("ndim", ndim, _ndim_of),
    )
    for name, spec, of in checks:
        for place, expected, part in _pairs(output, spec, info, name):
            if expected is None:
                continue
            is_list = is_batch and isinstance(part, (list, tuple))
            for row in part if is_list else [part]:
                found = of(row)
                if name == "ndim" and is_batch and not is_list:
                    found -= 1
                if found != expected:
                    raise TypeError(
                        f"{place} for {info} has {name} {found}, and {name}={expected} was "
                        f"declared. Remedy: convert it in the function, or declare {name}={found}"
                    )


def check_alike(samples: Sequence[Any], names: Sequence[Any]) -> None:
    """The samples of a batch have the same outputs, each of one dtype and shape.

    Args:
        names: of the samples, for the message.

    Raises:
        TypeError: one differs from the first.
    """
    first = _signature(samples[0])
    for sample, name in zip(samples[1:], names[1:], strict=True):
        if _signature(sample) != first:
            expected, found = _layout(samples[0]), _layout(sample)
            differing = (key for key in expected | found if expected.get(key) != found.get(key))
            place = next(differing, "the sample")
            raise TypeError(
                f"{place} of {name} is {found.get(place, 'missing')}, and that of {names[0]} is "
                f"{expected.get(place, 'missing')}: they cannot be one batch. Remedy: return alike "
                "outputs for every sample, or pass a collate_fn that takes them as they are"
            )


def split_batch(output: Any, info: BatchInfo) -> list[Any]:
    """The samples of a batch: tuples or dicts of one row of each output.

    Raises:
        TypeError: an output has no samples.
        ValueError: the outputs have different numbers of samples.

    >>> split_batch(([b"1", b"2"], [5, 6]), BatchInfo(0, 0))
    [(b'1', 5), (b'2', 6)]
    """
    if isinstance(output, Mapping):
        rows = split_batch(tuple(output.values()), info)
        return [dict(zip(output, row, strict=True)) for row in rows]
    if not isinstance(output, tuple):
        return list(output)
    for i, part in enumerate(output):
        if not hasattr(part, "__len__"):
            raise TypeError(
                f"output {i} for {info} is {_kind(part)}, and a batch has one for each sample. "
                "Remedy: return a list or an array"
            )
    lengths = [len(part) for part in output]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"the outputs for {info} have {lengths} samples. Remedy: return as many of each"
        )
    return list(zip(*output, strict=True))


def encoded_sample(sample: Any, image: int | str | None, name: str) -> EncodedSample:
    """One encoded image and its target.

    Raises:
        TypeError: there is none at ``image``.

    >>> encoded_sample((b"abc", 7), 0, "call 0").target
    7
    """
    if isinstance(sample, Mapping):
        rest: Any = {key: value for key, value in sample.items() if key != image}
        has_image = image in sample
    elif isinstance(sample, tuple):
        has_image = isinstance(image, int) and -len(sample) <= image < len(sample)
        rest = (
            tuple(part for i, part in enumerate(sample) if i != image % len(sample))
            if (has_image and isinstance(image, int))
            else ()
        )
    else:
        has_image, rest = False, ()
    if not has_image or not rest:
        raise TypeError(
            f"{name}: image={image!r} names no output beside a target in {_kind(sample)}. Remedy: "
            "return (image, target), or a dict of the image and targets, and say which is the image"
        )
    data = _encoded(sample[image], name)
    target = next(iter(rest)) if isinstance(rest, tuple) and len(rest) == 1 else rest
    return EncodedSample(data, target, name)


def _encoded(data: Any, name: str) -> torch.Tensor:
    if isinstance(data, _BYTES):
        # Memory of its own, which torch may write to.
        return torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else _NO_BYTES
    if isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1:
        return torch.from_numpy(np.array(data))
    if isinstance(data, torch.Tensor) and data.dtype == torch.uint8 and data.ndim == 1:
        return data.cpu().contiguous()
    raise TypeError(
        f"{name}: the image is {_kind(data)}, and encoded images are bytes or one-dimensional "
        "uint8. Remedy: return the file's bytes, or leave image= out for decoded pixels"
    )


_NO_BYTES = torch.empty(0, dtype=torch.uint8, device="cpu")


def _pairs(output: Any, spec: Spec, info: _Info, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Each output with what it is called and what was declared for it."""
    if spec is None:
        return
    if isinstance(spec, dict):
        keys = list(output) if isinstance(output, Mapping) else None
        if keys is None or set(keys) != set(spec):
            raise _other_outputs(output, spec, info, name)
        for key, expected in spec.items():
            yield f"output {key!r}", expected, output[key]
    elif isinstance(spec, tuple):
        if not isinstance(output, tuple) or len(output) != len(spec):
            raise _other_outputs(output, spec, info, name)
        for i, expected in enumerate(spec):
            yield f"output {i}", expected, output[i]
    elif isinstance(output, (tuple, Mapping)):
        raise _other_outputs(output, spec, info, name)
    else:
        yield "the output", spec, output


def _other_outputs(output: Any, spec: Spec, info: _Info, name: str) -> TypeError:
    return TypeError(
        f"the output for {info} is {_kind(output)}, and {name}={spec} was declared. Remedy: "
        "declare it as the outputs are"
    )


def _signature(value: Any) -> Any:
    """Equal for alike samples: :func:`_layout` in few steps."""
    if isinstance(value, (np.ndarray, torch.Tensor, np.generic)):
        return type(value), value.dtype, value.shape
    if isinstance(value, Mapping):
        return {key: _signature(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value), [_signature(part) for part in value]
    return type(value)


def _layout(sample: Any, place: str = "the sample") -> dict[str, str]:
    """What each output is, by its place."""
    if isinstance(sample, Mapping):
        parts = {f"output {key!r}": value for key, value in sample.items()}
    elif isinstance(sample, (tuple, list)):
        parts = {f"output {i}": value for i, value in enumerate(sample)}
    else:
        return {place: _kind(sample)}
    found = {place: f"{type(sample).__name__} of {len(parts)}"}
    for name, part in parts.items():
        inner = name if place == "the sample" else f"{place}, {name}"
        found |= _layout(part, inner)
    return found


def _kind(value: Any) -> str:
    if isinstance(value, (np.ndarray, torch.Tensor, np.generic)):
        return f"{type(value).__name__} of {_dtype_of(value)}, shape {list(value.shape)}"
    if isinstance(value, tuple):
        return f"tuple of {len(value)}"
    if isinstance(value, Mapping):
        return f"dict of {sorted(map(str, value))}"
    return type(value).__name__


def _dtype_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch.")
    if isinstance(value, _BYTES):
        return "uint8"
    return str(np.asarray(value).dtype.name)


def _ndim_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.ndim
    return 1 if isinstance(value, _BYTES) else np.ndim(value)
