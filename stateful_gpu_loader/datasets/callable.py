"""CallableSource: samples or whole batches made by a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from stateful_gpu_loader.records import BatchInfo, EncodedSample, SampleInfo
from stateful_gpu_loader.state.descriptions import describe
from stateful_gpu_loader.state.schema import Stateful, as_int


class CallableSource(IterableDataset[Any]):
    """A dataset whose samples or batches are the results of a function.

    The function ends an epoch by raising StopIteration at one place and at every later place. The
    samples before the end form a short last batch (none with ``drop_last=True``). The function may
    be called in any worker, in any order, and again after a resume or a lost worker, so its result
    must depend on its argument alone. The global generators (``random``, ``numpy.random``, torch)
    are seeded from the argument, so draws from them repeat. Batches keep their order even under
    ``in_order=False``, because the first end counts.

    Args:
        function: called with a :class:`SampleInfo` for one sample, or a :class:`BatchInfo` for a
            batch. A sample is an array, tensor, number, bytes, or a tuple or dict of them, with the
            same structure in a whole batch. A function of ``idx_in_epoch`` and ``epoch_idx`` alone
            can resume with another batch size. An iterator is accepted only if it has
            ``state_dict`` and ``load_state_dict``: one worker iterates it, and its state is part of
            the loader's.
        batch: whether a call makes a whole batch; the loader then has ``batch_size=None``.
        image: the output that is an encoded image: an index into the tuple or a key of the dict.
            The loader decodes and augments it as a Source's image, and yields ``[images,
            targets]``. The target is the other output, or a tuple or dict of several. In a batch
            the output is a list of images, and the others are arrays or lists of the same length.
            None passes samples to ``transform`` and ``collate_fn`` unchanged.
        length: number of samples (with ``batch``, of batches) in every epoch, if known.
            ``len(loader)`` and several ranks need it. An earlier StopIteration is an error.
        dtype, ndim: expected dtype and number of dimensions of each output, checked in every
            sample: one value for a single output, otherwise a tuple or dict like the outputs. None
            skips the check. In a batch, ``ndim`` does not count an array's first dimension.

    Raises:
        TypeError: the function cannot be called with one argument, or has state, which calls in any
            order corrupt.
        ValueError: an argument is out of range.

    >>> def squares(info):
    ...     if info.idx_in_epoch >= 5:
    ...         raise StopIteration
    ...     return info.idx_in_epoch**2
    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> [batch.tolist() for batch in StatefulGPULoader(CallableSource(squares), batch_size=2)]
    [[0, 1], [4, 9], [16]]
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        batch: bool = False,
        image: int | str | None = None,
        length: int | None = None,
        dtype: Spec = None,
        ndim: Spec = None,
    ) -> None:
        if length is not None and as_int("length", length) < 0:
            raise ValueError(f"{length = } must be an int from 0, or None")
        if image is not None and (isinstance(image, bool) or not isinstance(image, (int, str))):
            raise TypeError(
                f"{image = } names no output. Remedy: pass an index in the tuple that the function "
                "returns, or a key of its dict"
            )
        if isinstance(self, Stateful):
            raise TypeError(
                f"{type(self).__name__} has state_dict(), and is called in any worker in any "
                "order, so its state would mean nothing. Remedy: leave it out"
            )
        self.is_iterated = _is_stateful_iterator(function)
        """Whether the function is an iterator with state."""
        if self.is_iterated:
            given = {"batch": batch, "image": image, "length": length, "dtype": dtype, "ndim": ndim}
            refused = [
                name for name, value in given.items() if not (value is None or value is False)
            ]
            if refused:
                raise ValueError(
                    f"{', '.join(refused)} cannot be given with an iterator, whose samples are "
                    "passed on unchanged. Remedy: pass a function of SampleInfo, or leave it out"
                )
        else:
            _check_function(function, SampleInfo if not batch else BatchInfo)
        self.function = function
        self.batch = batch
        self.image = image
        self.length = length
        self.dtype = check_spec("dtype", dtype)
        self.ndim = check_spec("ndim", ndim)

    def __call__(self, info: SampleInfo | BatchInfo) -> Any:
        """Call the function and check its outputs.

        Raises:
            StopIteration: the epoch ends here.
            TypeError: an output does not match ``dtype`` or ``ndim``.
        """
        output = self.function(info)
        if inspect.isgenerator(output) or inspect.iscoroutine(output):
            raise TypeError(
                f"{describe(self.function)} returned a {type(output).__name__} for {info}. "
                "Remedy: return the sample itself, from a function without yield"
            )
        if self.dtype is not None or self.ndim is not None:
            check_output(output, self.dtype, self.ndim, info, is_batch=self.batch)
        return output

    def images(self, output: Any, info: SampleInfo | BatchInfo) -> list[EncodedSample]:
        """Return the encoded images, with their targets, from the result of a call.

        Raises:
            TypeError: the output has no encoded image at ``image``.
            ValueError: a batch's outputs differ in length.
        """
        samples = split_batch(output, info) if isinstance(info, BatchInfo) else [output]
        return [
            as_encoded(sample, self.image, f"{info}" if not self.batch else f"{info}, image {i}")
            for i, sample in enumerate(samples)
        ]

    def fingerprint(self) -> str:
        """Return the function's ``fingerprint()`` or qualified name, and how it is called."""
        kind = "iterator" if self.is_iterated else "batches" if self.batch else "samples"
        image = "" if self.image is None else f", {self.image!r} is an image"
        own = "" if type(self) is CallableSource else f", by {type(self).__qualname__}"
        return f"{kind} of {describe(self.function)}{image}{own}"

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(
                f"{type(self).__name__} has no length: StopIteration ends its epochs. "
                "Remedy: pass length="
            )
        return self.length

    def __iter__(self) -> Iterator[Any]:
        """Yield epoch 0 for other loaders, divided among workers.

        An iterator with state belongs to the first worker.
        """
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if self.is_iterated:
            iterated: Any = self.function
            return iter(iterated if first == 0 else ())
        return self._calls(first, step)

    def _calls(self, first: int, step: int) -> Iterator[Any]:
        number = first
        while self.length is None or number < self.length:
            info = BatchInfo(number, 0) if self.batch else SampleInfo(number, 0, number, 0)
            try:
                output = self(info)
            except StopIteration:
                return
            yield output
            number += step


_NO_FUNCTIONS = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)


def _is_stateful_iterator(function: Any) -> bool:
    """Return whether the object is iterated instead of called.

    Raises:
        TypeError: the object can only be iterated, and has no state to resume from.
    """
    if callable(function) or not hasattr(function, "__iter__"):
        return False
    if isinstance(function, Iterator) and isinstance(function, Stateful):
        return True
    raise TypeError(
        f"function={type(function).__name__} is neither a function nor an iterator with "
        "state_dict() and load_state_dict(): it could not be resumed. Remedy: pass a function of "
        "SampleInfo that returns the sample of info.idx_in_epoch, give the iterator these two "
        "methods, or pass a dataset to the loader as it is"
    )


def _check_function(function: Any, info: type) -> None:
    if not callable(function):
        raise TypeError(
            f"function={function!r} of type {type(function).__name__} cannot be called. Remedy: "
            f"pass a function of {info.__name__}"
        )
    called = function.__call__ if not inspect.isroutine(function) else function
    if any(is_other(each) for is_other in _NO_FUNCTIONS for each in (function, called)):
        raise TypeError(
            f"{describe(function)} is a generator function, or an async one: its results cannot be "
            f"resumed in the middle. Remedy: return the result for one {info.__name__}, or pass an "
            "iterator with state_dict() and load_state_dict()"
        )
    if isinstance(function, Stateful):
        raise TypeError(
            f"{describe(function)} has state_dict(), and is called in any worker in any order, so "
            f"its state would mean nothing. Remedy: make it a function of {info.__name__} alone, "
            "or wrap it in a function if its state does not change"
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise TypeError(
            f"{describe(function)} cannot be called with one {info.__name__} ({error}). Remedy: "
            "give it exactly one argument without a default"
        ) from None
    except ValueError:
        pass  # a builtin without a signature


Spec: TypeAlias = Any
"""One value for a single output, or a tuple or dict of values; None skips the check."""

_BYTES = (bytes, bytearray, memoryview)
_Info = SampleInfo | BatchInfo


def check_spec(name: str, spec: Spec) -> Spec:
    """Return the normalized ``dtype`` or ``ndim`` for :func:`check_output`.

    Raises:
        TypeError: a value is not a dtype of torch or NumPy, or not a number of dimensions.

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
            f"dtype has {value!r}, which is not numeric. Remedy: pass dtypes of torch or NumPy, or "
            "None for outputs that are not checked"
        )
    return dtype.name


def check_output(output: Any, dtype: Spec, ndim: Spec, info: _Info, *, is_batch: bool) -> None:
    """Compare the outputs of one call with the declared types.

    Args:
        dtype, ndim: results of :func:`check_spec`.
        is_batch: whether the arrays have a first dimension of samples, or are lists of samples.

    Raises:
        TypeError: an output differs.
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
    """Check that the samples of a batch have the same outputs, dtypes and shapes.

    Raises:
        TypeError: a sample differs from the first.
    """
    first = _signature(samples[0])
    for sample, name in zip(samples[1:], names[1:], strict=True):
        if _signature(sample) != first:
            expected, found = _layout(samples[0]), _layout(sample)
            differing = (key for key in expected | found if expected.get(key) != found.get(key))
            place = next(differing, "the sample")
            raise TypeError(
                f"{place} of {name} is {found.get(place, 'missing')}, and that of {names[0]} is "
                f"{expected.get(place, 'missing')}: they cannot be one batch. Remedy: return "
                "outputs of the same structure for every sample, or pass a collate_fn that takes "
                "them as they are"
            )


def split_batch(output: Any, info: BatchInfo) -> list[Any]:
    """Split a batch into its samples: tuples or dicts with one row of each output.

    Raises:
        TypeError: an output has no length.
        ValueError: the outputs have different lengths.

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


def as_encoded(sample: Any, image: int | str | None, name: str) -> EncodedSample:
    """Return one encoded image and its target.

    Raises:
        TypeError: there is no image at ``image``, or no target beside it.

    >>> as_encoded((b"abc", 7), 0, "call 0").target
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
        # Copied, because torch needs writable memory.
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
    """Yield the name, the declared value and the value of each output."""
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
    """Return a value that is equal for samples of equal structure; faster than :func:`_layout`."""
    if isinstance(value, (np.ndarray, torch.Tensor, np.generic)):
        return type(value), value.dtype, value.shape
    if isinstance(value, Mapping):
        return {key: _signature(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value), [_signature(part) for part in value]
    return type(value)


def _layout(sample: Any, place: str = "the sample") -> dict[str, str]:
    """Return a description of each output, by its place."""
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
