"""Exceptions that make a sample bad, and the position that replaces it."""

from __future__ import annotations

import gzip
import io
import pickle
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, UnidentifiedImageError
from scipy.stats import chisquare

from stateful_gpu_loader import BadSample, MissingDependency, StateMismatch, WorkerLost
from stateful_gpu_loader.engine.makers.bad_sample_policy import (
    MAX_REMEMBERED,
    MAX_TRIES,
    BadSamplePolicy,
    is_bad,
    is_bad_encoding,
    reason_of,
)
from stateful_gpu_loader.engine.pipeline import Stopped
from stateful_gpu_loader.randomness.permutation import Permutation
from stateful_gpu_loader.randomness.philox import Stream, words
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.samplers import SequentialOrder, ShuffledOrder
from stateful_gpu_loader.state.bad_samples import FoundBad
from tests.damaged import EPOCH, SEED, request_of, requests_of
from tests.decoders.variants import NO_MEMORY, WITH_CAUSE, WITHOUT_CAUSE
from tests.images import encode, photograph

BAD_SAMPLE = BadSample("a.jpg", index=3, position=7, epoch=0, reason="empty: 0 bytes")


def pillow_error(data: bytes) -> Exception:
    try:
        Image.open(io.BytesIO(data)).load()
    except Exception as error:
        return error
    raise AssertionError("Pillow reads it")


def gzip_error() -> Exception:
    try:
        gzip.decompress(b"no gzip")
    except Exception as error:
        return error
    raise AssertionError("gzip reads it")


class ClientError(OSError):
    """Like errors of requests and urllib: an OSError without an errno."""


PHOTO = bytes(encode(photograph("coffee")).numpy())
BAD = [
    ValueError("no label"),
    KeyError("label"),
    IndexError("list index out of range"),
    ZeroDivisionError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    EOFError(),
    AssertionError("an empty box"),
    RuntimeError("stack expects each tensor to be equal size"),
    RuntimeError(WITH_CAUSE),
    Exception(),
    BAD_SAMPLE,
    OSError("image file is truncated"),
    pillow_error(PHOTO[: len(PHOTO) // 2]),
    pillow_error(b"this is no photograph"),
    gzip_error(),
]
NEVER_BAD = [
    TypeError("'NoneType' object is not subscriptable"),
    AttributeError("no attribute 'lables'"),
    NameError("name 'nump' is not defined"),
    UnboundLocalError(),
    NotImplementedError(),
    ImportError(),
    ModuleNotFoundError(),
    SyntaxError(),
    MemoryError(),
    RecursionError(),
    SystemError("AST constructor recursion depth mismatch"),
    UserWarning("under -W error"),
    StopIteration(),
    Stopped(),
    KeyboardInterrupt(),
    SystemExit(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes"),
    torch.OutOfMemoryError("CUDA out of memory."),
    *map(RuntimeError, (*NO_MEMORY, *WITHOUT_CAUSE)),
    OSError(5, "Input/output error"),
    FileNotFoundError(2, "No such file or directory"),
    FileNotFoundError("a.jpg"),
    PermissionError("a.jpg"),
    TimeoutError("timed out"),
    ConnectionResetError(),
    ClientError("connection aborted"),
    StateMismatch("seed", saved=1, present=2, remedy="none"),
    WorkerLost(),
    MissingDependency("lmdb", needed_for="a test", extra="lmdb"),
]


def _name(error: BaseException) -> str:
    return re.sub(r" at 0x\w+", "", repr(error))


@pytest.mark.parametrize("error", BAD, ids=_name)
def test_errors_of_the_data_make_a_sample_bad(error: Exception) -> None:
    assert is_bad(error)
    assert is_bad_encoding(error) == (error is BAD_SAMPLE)


@pytest.mark.parametrize("error", NEVER_BAD, ids=repr)
def test_errors_of_code_machine_and_storage_do_not(error: BaseException) -> None:
    assert not is_bad(error)
    assert not is_bad_encoding(error)


def test_pillows_own_errors_are_among_them() -> None:
    """Pillow raises OSErrors, which would otherwise count as failures of the storage."""
    truncated, text = pillow_error(PHOTO[: len(PHOTO) // 2]), pillow_error(b"no photograph")
    assert (type(truncated), type(text)) == (OSError, UnidentifiedImageError)


def test_reasons_are_one_line_of_bounded_length() -> None:
    assert reason_of(KeyError("label")) == "KeyError: 'label'"
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(ValueError("a\n  b\tc")) == "ValueError: a b c"
    assert reason_of(BAD_SAMPLE) == "BadSample: a.jpg: empty: 0 bytes"
    assert len(reason_of(ValueError("x" * 1000))) == 200
    far = BadSample("/deep" * 99 + "/a.jpg", index=1, position=1, epoch=1, reason="empty")
    assert reason_of(far).endswith("/deep/deep/a.jpg: empty")
    assert len(reason_of(far)) <= 200


@pytest.mark.parametrize("mode", ["", "skip", "Replace", None])
def test_another_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match=r"on_bad_sample="):
        BadSamplePolicy(mode=mode)


def first_candidates(n: int, num_keys: int, which: int = 0) -> list[tuple[int, int]]:
    """Return a position and its candidate, for many keys."""
    policy = BadSamplePolicy(mode="replace", order=SequentialOrder(range(n)))
    pairs = []
    for start in range(num_keys):
        request = request_of([start % n], start=start)
        pairs.append((start % n, [p for p, _ in policy.candidates(request, 0)][which]))
    return pairs


@pytest.mark.fuzz
@pytest.mark.parametrize("which", [0, 1, 5])
@pytest.mark.parametrize("n", [7, 10])
def test_candidates_are_uniform_over_the_other_positions(n: int, which: int) -> None:
    counts = Counter(first_candidates(n, 60 * n * (n - 1), which))
    pairs = [(own, other) for own in range(n) for other in range(n) if own != other]
    assert set(counts) <= set(pairs), "a sample would take its own place"
    assert chisquare([counts[pair] for pair in pairs]).pvalue > 1e-3


def test_candidates_are_uniform_over_a_huge_order() -> None:
    n = 2**62 + 2**61  # where a draw of 64 bits would show its bias
    places = [other for _, other in first_candidates(n, 2000)]
    counts = np.histogram(np.array(places, dtype=np.float64), bins=12, range=(0, n))[0]
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.fuzz
@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 10, 100])
def test_no_candidate_comes_twice(n: int) -> None:
    """A small dataset is searched completely."""
    policy = BadSamplePolicy(mode="replace", order=ShuffledOrder(range(n)))
    for request in requests_of(n, 4):
        for number, own in enumerate(request.index_list()):
            taken = list(policy.candidates(request, number))
            assert len({position for position, _ in taken}) == len(taken) == min(n - 1, MAX_TRIES)
            assert own not in {index for _, index in taken}
            order = Permutation(n, seed=SEED, epoch=request.epoch)
            assert all(order(np.array([position])) == index for position, index in taken)


def test_candidates_do_not_depend_on_batch_or_rank() -> None:
    policy = BadSamplePolicy(mode="replace", order=ShuffledOrder(range(20)))
    found = {
        (ranks, batch_size): {
            position: list(policy.candidates(request, number))
            for rank in range(ranks)
            for request in requests_of(20, batch_size, ranks=ranks, rank=rank)
            for number, position in enumerate(request.positions.tolist())
        }
        for ranks in (1, 2, 4)
        for batch_size in (1, 5)
    }
    assert all(candidates == found[1, 1] for candidates in found.values())
    assert len({str(candidates) for candidates in found[1, 1].values()}) == 20


def test_golden_candidates() -> None:
    """They are part of the stream: a change would break every saved state."""
    policy = BadSamplePolicy(mode="replace", order=ShuffledOrder(range(1000)))
    request = Request(ordinal=0, seed=42, epoch=3, start=5, step=2, indices=[0, 0], end=9)
    golden = [41, 523, 611, 208, 853, 369, 259, 882]
    assert [position for position, _ in policy.candidates(request, 1)] == golden
    assert golden == shuffled_whole(list(set(range(1000)) - {7}), position=7)
    batch = request_of(list("abcde"), start=10)
    own = list(BadSamplePolicy(mode="replace").candidates(batch, 2))
    assert own == [(10, "a"), (11, "b"), (14, "e"), (13, "d")]


def shuffled_whole(others: list[int], position: int) -> list[int]:
    """Return the full Fisher-Yates shuffle, whose first steps the policy makes."""
    drawn = words(SEED, EPOCH, [position], Stream.REPLACEMENT, 4 * MAX_TRIES)[0].tolist()
    for step in range(MAX_TRIES):
        number = sum(drawn[4 * step + place] << 32 * place for place in range(4))
        chosen = step + number * (len(others) - step) // 2**128
        others[step], others[chosen] = others[chosen], others[step]
    return others[:MAX_TRIES]


def test_without_an_order_candidates_are_the_rest_of_the_batch() -> None:
    policy = BadSamplePolicy(mode="replace")
    batch = request_of(list("abcdefghijklm"), start=100)
    for number in range(13):
        taken = list(policy.candidates(batch, number))
        assert len(taken) == MAX_TRIES
        assert len(dict(taken)) == MAX_TRIES
        assert all("abcdefghijklm"[position - 100] == index for position, index in taken)
        assert "abcdefghijklm"[number] not in dict(taken).values()
    assert list(policy.candidates(request_of(["a"]), 0)) == []


def test_a_policy_remembers_within_bounds_and_travels() -> None:
    policy = BadSamplePolicy(mode="drop", order=ShuffledOrder(range(9)), known={3: "empty"})
    for bad in (
        FoundBad(4, 0, 0, "text"),
        FoundBad("a.jpg", 0, 0, "text"),
        FoundBad(5, 0, 0, "too small", always=False),
    ):
        policy.remember(bad)
    again = pickle.loads(pickle.dumps(policy))
    assert [again.known_reason(i) for i in (3, 4, 5, "a.jpg", np.int64(4), [4])] == [
        "empty",
        "text",
        None,
        None,
        "text",
        None,
    ]
    for index in range(2 * MAX_REMEMBERED):
        policy.remember(FoundBad(index, 0, 0, "text"))
    assert len(policy._remembered) == MAX_REMEMBERED + 1


def test_a_dataset_with_state_is_read_again() -> None:
    """Each read moves its state, and skipping a read would change the stream."""
    policy = BadSamplePolicy(mode="drop", known={3: "empty"}, reads_again=True)
    policy.remember(FoundBad(4, 0, 0, "text"))
    assert policy.known_reason(3) is policy.known_reason(4) is None
