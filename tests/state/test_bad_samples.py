"""The record of bad samples: bounded, plain text, and checked when it is read back."""

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


def found(index: Any, position: int = 0, **changes: Any) -> FoundBad:
    return FoundBad(index, position, changes.pop("epoch", 0), "ValueError: damaged", **changes)


def record_of(*samples: FoundBad) -> BadSamples:
    record = BadSamples()
    record.add(samples)
    return record


def test_the_first_finding_of_each_index_is_kept_and_all_are_counted() -> None:
    record = record_of(found(3, 7), found(5, 8), found(3, 1, epoch=1))
    record.add([found(5, 2, epoch=1)])
    assert record.total == 4
    assert record.samples == (found(3, 7), found(5, 8))
    assert len(record) == 2
    assert repr(record) == "BadSamples(total=4, samples=2)"


def test_a_million_bad_samples_stay_small() -> None:
    """The oldest are kept, the others counted."""
    record = BadSamples()
    for start in range(0, 10_000, 50):
        record.add([FoundBad(i, i, 0, "ValueError: " + "\N{SNOWMAN}" * 900) for i in range(50)])
        record.add(found(start + i) for i in range(50))
    assert record.total == 20_000
    assert [bad.index for bad in record.samples] == list(range(MAX_SAMPLES))
    assert max(len(bad.reason) for bad in record.samples) == 200
    text = record.to_text()
    assert text is not None
    assert len(text) < 200_000
    assert BadSamples.from_text(text) == record


def test_an_empty_record_is_no_text() -> None:
    assert BadSamples().to_text() is None
    assert BadSamples.from_text(None) == BadSamples()
    assert BadSamples() != record_of(found(1))
    assert BadSamples() != "a record"


def test_text_survives_json_and_brings_all_back() -> None:
    record = record_of(
        found(3, 7),
        found("it's \udcff.jpg", 8),
        found((1, 2), 9),
        found(4, 2**63 - 1, always=False),
    )
    text = json.loads(json.dumps(record.to_text()))
    assert "\n" not in text
    again = BadSamples.from_text(text)
    assert again == record
    assert again.total == 4
    assert again.to_text() == text
    again.add([found(3), found(99)])
    assert (again.total, len(again), len(record)) == (6, 5, 4)


def test_indices_of_any_kind_become_ints_or_text() -> None:
    """A user's sampler yields what it likes."""
    for index in (5, np.int64(5), np.uint8(5), torch.tensor(5)):
        bad = found(index)
        assert type(bad.index) is int
        assert bad.index == 5
    assert found("a.jpg").index == "a.jpg"
    assert found(("a", 1)).index == "('a', 1)"
    assert found([1] * 1000).index == ("[" + "1, " * 1000)[:197] + "..."
    assert pickle.loads(pickle.dumps(found("a.jpg"))) == copy.copy(found("a.jpg"))


def test_only_ints_that_are_always_bad_are_known() -> None:
    """What draws decided may be sound in another epoch."""
    record = record_of(found(3), found("a.jpg"), found(4, always=False), found(np.int64(6)))
    assert dict(record.known) == {3: "ValueError: damaged", 6: "ValueError: damaged"}
    assert dict(BadSamples.from_text(record.to_text()).known) == dict(record.known)
    with pytest.raises(TypeError):
        record.known[7] = "no"  # type: ignore[index]


ROW = [3, 7, 0, "ValueError: damaged", True]
GARBAGE = [
    "",
    "{",
    "null",
    "[]",
    "5",
    "{}",
    '{"total": 1}',
    "[" * 100_000,
    json.dumps({"total": 1, "samples": None}),
    json.dumps({"total": 1, "samples": 5}),
    json.dumps({"total": 1, "samples": "ab"}),
    json.dumps({"total": 1, "samples": [5]}),
    *(
        json.dumps({"total": 1, "samples": [row]})
        for row in (
            ROW[:4],
            [*ROW, 1],
            dict.fromkeys("abcde", 1),
            [True, *ROW[1:]],
            [1.0, *ROW[1:]],
            [None, *ROW[1:]],
            [[3], *ROW[1:]],
            ["a\nb", *ROW[1:]],
            [3, -1, *ROW[2:]],
            [3, 2**63, *ROW[2:]],
            [3, 7.0, *ROW[2:]],
            [3, 7, -1, *ROW[3:]],
            [3, 7, 2**32, *ROW[3:]],
            [3, 7, 0, None, True],
            [3, 7, 0, "x" * 201, True],
            [3, 7, 0, "x", 1],
        )
    ),
    *(
        json.dumps({"total": total, "samples": [ROW]})
        for total in (0, -1, 1.0, True, "1", None, [])
    ),
    json.dumps({"total": 0, "samples": []}),
    json.dumps({"total": 2, "samples": [ROW, ROW]}),
    json.dumps({"total": 101, "samples": [[i, *ROW[1:]] for i in range(101)]}),
    json.dumps({"total": 3, "samples": [ROW, [4, *ROW[1:]], [5, *ROW[1:]], [6, *ROW[1:]]]}),
]


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: text[:60])
def test_garbage_is_named(text: str) -> None:
    with pytest.raises(StateMismatch, match="bad_samples differs: the state has") as caught:
        BadSamples.from_text(text)
    assert "Remedy: load what StatefulGPULoader.state_dict() returned" in str(caught.value)


def test_a_sound_row_is_read() -> None:
    """The garbage above is refused for the reason that it is given for."""
    text = json.dumps({"total": 1, "samples": [ROW]})
    assert BadSamples.from_text(text).samples == (found(3, 7),)
    counted = BadSamples.from_text(json.dumps({"total": 9, "samples": []}))
    assert (counted.total, len(counted)) == (9, 0)
