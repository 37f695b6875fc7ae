"""The record of bad samples: bounded, plain text, and checked when it is read."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import StateMismatch
from stateful_gpu_loader.state.bad_samples import MAX_SAMPLES, BadSamples, FoundBad


def bad_sample(index: Any, position: int = 0, **changes: Any) -> FoundBad:
    return FoundBad(index, position, changes.pop("epoch", 0), "ValueError: damaged", **changes)


def record_of(*samples: FoundBad) -> BadSamples:
    record = BadSamples()
    record.add(samples)
    return record


def test_the_first_finding_of_each_index_is_kept_and_all_are_counted() -> None:
    record = record_of(bad_sample(3, 7), bad_sample(5, 8), bad_sample(3, 1, epoch=1))
    record.add([bad_sample(5, 2, epoch=1)])
    assert record.total == 4
    assert record.samples == (bad_sample(3, 7), bad_sample(5, 8))
    assert len(record) == 2
    assert repr(record) == "BadSamples(total=4, samples=2)"


def test_a_million_bad_samples_stay_small() -> None:
    """The oldest are kept, the others counted."""
    record = BadSamples()
    for start in range(0, 10_000, 50):
        record.add([FoundBad(i, i, 0, "ValueError: " + "\N{SNOWMAN}" * 900) for i in range(50)])
        record.add(bad_sample(start + i) for i in range(50))
    assert record.total == 20_000
    assert [bad.index for bad in record.samples] == list(range(MAX_SAMPLES))
    assert max(len(bad.reason) for bad in record.samples) == 200
    text = record.to_text()
    assert text is not None
    assert len(text) < 200_000
    assert BadSamples.from_text(text) == record


def test_an_empty_record_has_no_text() -> None:
    assert BadSamples().to_text() is None
    assert BadSamples.from_text(None) == BadSamples()
    assert BadSamples() != record_of(bad_sample(1))
    assert BadSamples() != "a record"


def test_text_survives_json_and_brings_all_back() -> None:
    record = record_of(
        bad_sample(3, 7),
        bad_sample("it's \udcff.jpg", 8),
        bad_sample((1, 2), 9),
        bad_sample(4, 2**63 - 1, always=False),
    )
    text = json.loads(json.dumps(record.to_text()))
    assert "\n" not in text
    again = BadSamples.from_text(text)
    assert again == record
    assert again.total == 4
    assert again.to_text() == text
    again.add([bad_sample(3), bad_sample(99)])
    assert (again.total, len(again), len(record)) == (6, 5, 4)


def test_indices_of_any_kind_become_ints_or_text() -> None:
    """A user's sampler may yield any values."""
    for index in (5, np.int64(5), np.uint8(5), torch.tensor(5)):
        bad = bad_sample(index)
        assert type(bad.index) is int
        assert bad.index == 5
    assert bad_sample("a.jpg").index == "a.jpg"
    assert bad_sample(("a", 1)).index == "('a', 1)"
    assert bad_sample([1] * 1000).index == ("[" + "1, " * 1000)[:197] + "..."
    assert pickle.loads(pickle.dumps(bad_sample("a.jpg"))) == copy.copy(bad_sample("a.jpg"))


def test_only_ints_that_are_always_bad_are_known() -> None:
    """Samples that are bad because of draws may be good in another epoch."""
    record = record_of(
        bad_sample(3), bad_sample("a.jpg"), bad_sample(4, always=False), bad_sample(np.int64(6))
    )
    assert dict(record.known) == {3: "ValueError: damaged", 6: "ValueError: damaged"}
    assert dict(BadSamples.from_text(record.to_text()).known) == dict(record.known)
    with pytest.raises(TypeError):
        record.known[7] = "no"  # type: ignore[index]


ROW = [3, 7, 0, "ValueError: damaged", True]
ROWS = [
    ROW[:4],
    [*ROW, 1],
    dict.fromkeys("abcde", 1),
    *([index, *ROW[1:]] for index in (True, 1.0, None, [3], "a\nb")),
    *([3, position, *ROW[2:]] for position in (-1, 2**63, 7.0)),
    *([3, 7, epoch, *ROW[3:]] for epoch in (-1, 2**32)),
    *([3, 7, 0, reason, True] for reason in (None, "x" * 201)),
    [3, 7, 0, "x", 1],
]
RECORDS: list[tuple[Any, Any]] = [
    *((1, samples) for samples in (None, 5, "ab", [5])),
    *((1, [row]) for row in ROWS),
    *((total, [ROW]) for total in (0, -1, 1.0, True, "1", None, [])),
    (0, []),
    (2, [ROW, ROW]),
    (101, [[i, *ROW[1:]] for i in range(101)]),
    (3, [[i, *ROW[1:]] for i in range(4)]),
]
GARBAGE = [
    *("", "{", "null", "[]", "5", "{}", '{"total": 1}', "[" * 100_000),
    *(json.dumps({"total": total, "samples": samples}) for total, samples in RECORDS),
]


def test_garbage_is_named() -> None:
    for text in GARBAGE:
        with pytest.raises(StateMismatch) as caught:
            BadSamples.from_text(text)
        assert caught.value.field == "bad_samples"


def test_a_sound_row_is_read() -> None:
    """So the garbage above is refused for its stated reason."""
    text = json.dumps({"total": 1, "samples": [ROW]})
    assert BadSamples.from_text(text).samples == (bad_sample(3, 7),)
    counted = BadSamples.from_text(json.dumps({"total": 9, "samples": []}))
    assert (counted.total, len(counted)) == (9, 0)
