"""CallableSource: samples, or whole batches, that a function of the user's makes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from stateful_gpu_loader.datasets.callable_outputs import (
    Spec,
    check_output,
    check_spec,
    split_batch,
)
from stateful_gpu_loader.datasets.callable_outputs import encoded_sample as as_encoded
from stateful_gpu_loader.records import BatchInfo, EncodedSample, SampleInfo
from stateful_gpu_loader.state.descriptions import describe
from stateful_gpu_loader.state.schema import Stateful, as_int


class CallableSource(IterableDataset[Any]):
    """What a function returns for each sample, or for each batch, of an epoch without an index.

    The function says where an epoch ends by raising StopIteration, for that place and for every
    later one: the samples of that batch before it form a last, short batch (none with
    ``drop_last=True``), and nothing that workers made ahead of it is delivered. It is called in any
    worker, in any order and, after a resume or a lost worker, again: so it is a function of its
    argument. What it draws from the global generators (``random``, ``numpy.random``, torch) is
    keyed by the argument and comes out the same. Batches keep their order under ``in_order=False``,
    too, because only the first end counts.

    Args:
        function: called with a :class:`SampleInfo` for one sample: an array, tensor, number, bytes,
            or a tuple or dict of them, alike in every sample of a batch; or with a
            :class:`BatchInfo` for a batch of them. A function of ``idx_in_epoch`` and ``epoch_idx``
            alone can be resumed with another batch size, too. An iterator is taken only if it has
            ``state_dict`` and ``load_state_dict``: one worker iterates it, and its state goes into
            the loader's.
        batch: whether a call makes a whole batch; the loader then has ``batch_size=None``.
        image: which output is an encoded image: an index in the tuple, a key of the dict. The
            loader decodes and augments it as those of a Source, and yields ``[images, targets]``,
            the target being the other output, or the tuple or dict of the others; one at least. Of
            a batch it is a list of images, beside arrays or lists of as many targets. None leaves
            samples to ``transform`` and ``collate_fn`` as they are.
        length: samples (with ``batch``, batches) of every epoch, where that is known:
            ``len(loader)`` needs it, and so do several ranks. StopIteration before it is an error.
        dtype, ndim: of each output of a sample, checked in every one: one value for a single
            output, a tuple or dict as the outputs otherwise. None is not checked; ``ndim`` of a
            batch's array leaves out its first dimension.

    Raises:
        TypeError: the function cannot be called with one argument, or keeps a state that calls in
            any order would spoil.
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
                    f"{', '.join(refused)} cannot be given with an iterator, whose samples go on "
                    "as they are. Remedy: pass a function of SampleInfo, or leave it out"
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
        """What the function returns, its outputs checked.

        Raises:
            StopIteration: the epoch ends here.
            TypeError: an output is not what ``dtype`` and ``ndim`` say.
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
        """The encoded images, with their targets, of what a call returned.

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
        """The function's own ``fingerprint()``, or its qualified name, and what it is asked for."""
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
        """Without a loader of this package: epoch 0, divided among workers.

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
    """Whether it is iterated instead of being called.

    Raises:
        TypeError: it is iterated, and has no state to go on from.
    """
    if callable(function) or not hasattr(function, "__iter__"):
        return False
    if isinstance(function, Iterator) and isinstance(function, Stateful):
        return True
    raise TypeError(
        f"function={type(function).__name__} is no function, and no iterator with state_dict() and "
        "load_state_dict(): nobody could go on in the middle of it. Remedy: pass a function of "
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
            f"{describe(function)} is a generator function, or an async one: what it gives has an "
            f"order that nobody can enter in the middle. Remedy: return what {info.__name__} asks "
            "for, or pass an iterator with state_dict() and load_state_dict()"
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
        pass  # a builtin, which tells no signature
