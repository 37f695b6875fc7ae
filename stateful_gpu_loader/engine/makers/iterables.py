"""Batches of an iterable dataset: each worker has an iterator and fetches batch by batch.

Each fetch runs with generators seeded from (seed, epoch, worker, number of the fetch), so reading
again gives the same samples, even from a shuffle buffer.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterDataPipe, get_worker_info
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding

from stateful_gpu_loader.engine.makers.bad_sample_policy import (
    MAX_BAD_IN_A_ROW,
    BadSamplePolicy,
    is_bad,
    reason_of,
)
from stateful_gpu_loader.engine.pipeline import NOTHING, Answer, Failure
from stateful_gpu_loader.engine.stats import stage
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.engine.user_objects import (
    check_begins,
    load_user_state,
    restarts_each_pass,
    starting_state,
    state_keeper,
    state_of,
)
from stateful_gpu_loader.errors import BadSample, StateMismatch
from stateful_gpu_loader.randomness.global_generators import seed_global_generators
from stateful_gpu_loader.randomness.philox import SeedBlock, Stream, sample_seeds
from stateful_gpu_loader.records import Turn, WorkerStart
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.state.user_states import freeze, thaw, worker_state


class IterableMaker:
    """Fetches like torch's DataLoader; its state is torchdata's, or the number of fetches.

    Args:
        batch_size: number of samples in a batch; None yields samples one by one.
        drop_last: whether to drop a worker's incomplete last batch.
        transform: a callable on one sample, or None.
        collate_fn: makes the batch from a list of samples, or converts one sample.
        policy: policy for bad samples. "drop" takes the iterator's next sample instead.
    """

    uses_global_generators = True

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None,
        drop_last: bool,
        transform: Callable[[Any], Any] | None,
        collate_fn: Callable[[Any], Any],
        policy: BadSamplePolicy,
    ) -> None:
        self._dataset = dataset
        self._keeper = state_keeper(dataset)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._transform = transform
        self._collate_fn = collate_fn
        self._drops_bad = policy.mode == "drop"
        self._found: list[FoundBad] = []
        """Bad samples of the present fetch."""
        self._seeds = SeedBlock(Stream.ITERABLE)
        self._start: WorkerStart | None = None
        self._iterator: Iterator[Any] | None = None
        self._fetches = 0
        self._samples = 0
        self._num_samples = 0
        """Number of samples in the last batch."""
        self._exhausted = False
        self._ended = False
        self._loaded: bytes | None = None
        self._digest: str | None = None
        """Digest of this pass's samples, without a state."""
        self._failed: list[tuple[int, int]] = []
        """Fetches that raised, each with its number of samples."""
        self._may_raise = False
        """Whether the next sample may repeat an exception from before the resume."""
        self._counts_raised = False
        """Whether samples that raise are counted, as in older versions."""
        self._put_back: Callable[[], None] | None = None
        """Makes a dataset forget its loaded state."""

    def begin(self, start: WorkerStart) -> None:
        """Begin a pass in torchdata's order: dataset's state, ``iter()``, iterator's state."""
        self._start = start
        self._iterator = None
        self._fetches = self._samples = 0
        self._exhausted = self._ended = self._may_raise = False
        self._failed = []
        state = worker_state() if start.state is None else thaw(start.state)
        self._load(state["dataset"])
        self._loaded = start.state if state["ended"] else None
        if state["ended"]:
            self._ended = True
            return
        if isinstance(self._dataset, IterDataPipe):
            prepare_datapipe(self._dataset, start)
        self._seed()
        if self._put_back is not None:
            check_begins(self._dataset)
            self._seed()
        self._iterator = iter(self._dataset)
        load_user_state("iterator", self._iterator, state["iterator"])
        has_state = isinstance(self._keeper, Stateful) or isinstance(self._iterator, Stateful)
        self._digest = None if has_state else ""
        if state["dataset"] is None and state["iterator"] is None:
            self._failed = [(fetch, count) for fetch, count in state.get("failed", ())]
            self._read_again(state["samples"], state["digest"])
        self._fetches, self._samples = state["fetches"], state["samples"]

    def __call__(self, request: Turn, check: Callable[[], None]) -> Any:
        if self._start is None:
            raise TypeError("begin() of an iterable's maker must be called first")
        self._found = []
        payload: Any = NOTHING
        if not self._ended:
            try:
                payload = self._next_batch()
            except Exception as error:
                payload = Failure(error)
        has_snapshot = payload is NOTHING or self._digest is not None
        worker = get_worker_info()
        return Answer(
            payload,
            worker=worker.id if worker else 0,
            snapshot=self.snapshot() if has_snapshot else None,
            bad=tuple(self._found),
            num_samples=self._num_samples,
        )

    def _next_batch(self) -> Any:
        self._fetches += 1
        self._seed()
        before = self._samples
        try:
            with stage("read"):
                samples = self._fetch(self._batch_size or 1)
        except Exception:
            if self._digest is not None:
                self._failed.append((self._fetches, self._samples - before))
            raise
        if not samples or self._is_dropped(samples):
            self._ended = True
            return NOTHING
        self._num_samples = len(samples)
        with stage("collate"):
            return self._collate_fn(samples if self._batch_size else samples[0])

    def snapshot(self) -> bytes:
        """Return the serialized state; after the end, only the dataset's."""
        if self._loaded is not None:
            # no pass has begun, and some datasets have no state before
            return self._loaded
        ended = self._ended or self._exhausted
        # As in torchdata, a dataset that is its own iterator is saved once.
        has_both = self._iterator is not self._keeper
        of_dataset = has_both if not ended else not restarts_each_pass(self._keeper)
        state = worker_state(
            dataset=state_of(self._keeper) if of_dataset else None,
            iterator=None if ended else state_of(self._iterator),
            fetches=self._fetches,
            samples=self._samples,
            ended=ended,
            digest=self._digest,
            failed=self._failed,
        )
        return freeze(state, type(self._dataset).__name__)

    def _load(self, state: Any) -> None:
        if state is not None and restarts_each_pass(self._keeper):
            self._put_back = partial(self._keeper.load_state_dict, starting_state(self._keeper))
        load_user_state("dataset", self._keeper, state)

    def _fetch(self, count: int, last: int | None = None) -> list[Any]:
        """Fetch ``count`` samples, but none after the iterator's sample number ``last``."""
        samples: list[Any] = []
        raised: Exception | None = None
        in_a_row = 0
        iterator = self._iterator
        while (
            iterator is not None
            and len(samples) < count
            and not self._exhausted
            and (last is None or self._samples < last)
        ):
            sample, error = self._next(iterator)
            if self._exhausted:
                if raised is not None:
                    # the exception seems to have ended the iterator
                    raise raised
                break
            raised = error
            if error is None:
                sample, error = self._transformed(sample)
            in_a_row = 0 if error is None else in_a_row + 1
            if error is None:
                samples.append(sample)
                continue
            bad = self._bad(error)
            self._found.append(bad)
            if in_a_row == MAX_BAD_IN_A_ROW:
                raise BadSample(
                    f"{type(self._dataset).__name__}, {bad.index}",
                    index=self._samples - 1,
                    position=bad.position,
                    epoch=bad.epoch,
                    reason=f"{bad.reason}; the {in_a_row - 1} samples before it could not be used "
                    "either (on_bad_sample='raise' shows where it fails)",
                ) from error
        if self._digest is not None:
            self._digest = digest_with(self._digest, samples)
        return samples

    def _next(self, iterator: Iterator[Any]) -> tuple[Any, Exception | None]:
        """Return the iterator's next sample, or the exception for which it is dropped."""
        try:
            sample = next(iterator)
        except StopIteration:
            self._exhausted = True
            return None, None
        except Exception as error:
            if self._may_raise:
                # A fetch has raised this before the resume.
                self._may_raise = False
                self._seed()
                return self._next(iterator)
            # A generator that has raised is finished, and its samples would be lost silently.
            is_dropped = self._drops_bad and is_bad(error) and not inspect.isgenerator(iterator)
            self._samples += is_dropped or (self._counts_raised and is_bad(error))
            if not is_dropped:
                raise
            return None, error
        finally:
            self._may_raise = False
            if self._put_back is not None:
                self._put_back()
                self._put_back = None
        self._samples += 1
        return sample, None

    def _transformed(self, sample: Any) -> tuple[Any, Exception | None]:
        if self._transform is None:
            return sample, None
        try:
            with stage("augment"):
                return self._transform(sample), None
        except Exception as error:
            if not self._drops_bad or not is_bad(error):
                raise
            return None, error

    def _bad(self, error: Exception) -> FoundBad:
        """Return the record of the iterator's last sample, numbered within this worker's pass.

        Its position assumes that workers and ranks take turns.
        """
        start, number = self._start, self._samples - 1
        worker = get_worker_info()
        return FoundBad(
            index=f"sample {number}" + ("" if worker is None else f" of worker {worker.id}"),
            position=0 if start is None else start.place + start.stride * number,
            epoch=0 if start is None else start.epoch,
            reason=reason_of(error),
            always=False,  # it may depend on earlier draws
        )

    def _is_dropped(self, samples: list[Any]) -> bool:
        return self._drop_last and len(samples) < (self._batch_size or 1)

    def _read_again(self, count: int, digest: str | None) -> None:
        """Fast-forward an iterator without a state, fetch by fetch, as it was read before.

        Bad samples were already raised or dropped. A fetch that raised takes as many samples as
        then.

        Raises:
            StateMismatch: the iterator yields other samples than before.
        """
        taken = dict(self._failed)
        self._counts_raised = not taken
        last_failed = max(taken, default=0)
        while self._samples < count or self._fetches < last_failed:
            self._fetches += 1
            self._seed()
            before = self._samples
            if self._fetches in taken:
                self._discard(before + taken[self._fetches])
                continue
            try:
                self._fetch(self._batch_size or 1, last=count)
            except Exception as error:
                if not is_bad(error):
                    raise
            if self._samples == before:
                break
        self._found = []
        self._counts_raised = False
        if digest not in (None, self._digest):
            found = "other samples" if self._samples == count else f"an end after {self._samples}"
            raise StateMismatch(
                "iterable",
                saved=f"the digest of {count} samples",
                present=f"{found}: the iterable is not reproducible",
                remedy=f"seed the generators of {type(self._dataset).__name__}, or give it "
                "state_dict() and load_state_dict(); for tar files, TarShards needs neither. To "
                'continue from other samples, load_state_dict(state, accept={"iterable"})',
            )

    def _discard(self, last: int) -> None:
        """Take the samples of a fetch that raised, up to the iterator's sample ``last``."""
        iterator = self._iterator
        while iterator is not None and self._samples < last and not self._exhausted:
            sample, error = self._next(iterator)
            if error is None and not self._exhausted:
                with suppress(Exception):
                    self._transformed(sample)
        self._may_raise = True

    def _seed(self) -> None:
        start = self._start
        if start is not None:
            place = start.place + start.stride * self._fetches
            seed_global_generators(self._seeds.at(start.seed, start.epoch, place))


def prepare_datapipe(datapipe: Any, start: WorkerStart) -> None:
    """Seed a datapipe's graph for the pass, equally in all workers and ranks.

    Worker processes apply sharding when they start; in the user's thread it is applied here.
    """
    (seed,) = sample_seeds(start.seed, start.epoch, np.zeros(1, np.int64), Stream.DATAPIPES)
    generator = torch.Generator()
    generator.manual_seed(seed)
    apply_random_seed(datapipe, generator)
    if get_worker_info() is None:
        apply_sharding(datapipe, *size_and_rank())


_MAX_ELEMENTS = 16
"""Largest number of elements of an array or a sequence that the digest covers."""
_MAX_BYTES = 32
"""Number of bytes from the beginning and from the middle."""
_MAX_DEPTH = 4
_SCALARS = frozenset((int, float, bool, complex, type(None)))


def digest_with(before: str, samples: Sequence[Any]) -> str:
    """Return the digest of all samples so far.

    It covers the dtype, the shape and up to 16 elements from the middle of each tensor or array. It
    also covers the length and up to 64 bytes of bytes and texts, and the class of any other object.
    It takes about 5 microseconds.

    Args:
        before: the digest of the samples before these; "" at the beginning.
        samples: samples of any kind.

    >>> once = digest_with("", [(torch.zeros(3, 4, 4), 1)])
    >>> once == digest_with("", [(torch.zeros(3, 4, 4), 1)])
    True
    >>> once == digest_with("", [(torch.zeros(3, 4, 4), 2)])
    False
    """
    digest = hashlib.blake2b(before.encode(), digest_size=12)
    parts: list[bytes] = []
    for sample in samples:
        _describe(sample, parts, _MAX_DEPTH)
    digest.update(b"|".join(parts))
    return digest.hexdigest()


def _describe(value: Any, parts: list[bytes], depth: int) -> None:
    kind = type(value)
    if kind in _SCALARS:
        parts.append(b"%a" % (value,))
    elif kind in (str, bytes):
        middle = len(value) // 2
        ends = value[:_MAX_BYTES], value[middle : middle + _MAX_BYTES]
        parts.append(f"{len(value)} {ends!r}".encode(errors="surrogatepass"))
    elif isinstance(value, torch.Tensor) and value.is_nested:
        _describe(value.unbind(), parts, depth)
    elif isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        parts.append(_of_array(value))
    elif depth and isinstance(value, Mapping):
        first = dict(itertools.islice(value.items(), _MAX_ELEMENTS))
        names = [key for key in first if type(key) in (str, int)]
        parts.append(f"dict {len(value)} {names}".encode(errors="surrogatepass"))
        for each in first.values():
            _describe(each, parts, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        parts.append(b"list %d" % len(value))
        head = value[:_MAX_ELEMENTS]
        if _SCALARS.issuperset(map(type, head)):
            parts.append(repr(head).encode())
        else:
            for each in head:
                _describe(each, parts, depth - 1)
    else:
        # Of other objects, only a PIL image's size is the same in every process.
        size = getattr(value, "size", None)
        parts.append(f"{kind.__qualname__} {size if isinstance(size, tuple) else None}".encode())


def _of_array(value: Any) -> bytes:
    """Describe an array by dtype, shape and up to 16 elements of its middle row.

    Nothing large is copied.
    """
    array = value
    if isinstance(value, torch.Tensor):
        try:
            array = value.detach().numpy() if value.requires_grad else value.numpy()
        except (TypeError, RuntimeError):  # a dtype, layout or device that NumPy lacks
            return f"{value.dtype} {tuple(value.shape)}".encode()
    elif isinstance(value, np.generic):
        array = np.asarray(value)
    shape, dtype = array.shape, array.dtype
    about: bytes = dtype.str.encode() + b" %d" * len(shape) % shape
    if dtype.hasobject or not array.size:
        return about
    if len(shape) > 1:
        array = array[tuple([length // 2 for length in shape[:-1]])]
    if shape:
        start = max(0, (shape[-1] - _MAX_ELEMENTS) // 2)
        array = array[start : start + _MAX_ELEMENTS]
    return about + bytes(array.tobytes())
