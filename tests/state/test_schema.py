"""The state's schema and the fingerprint in it."""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import BadSample, MissingDependency, StatefulGPULoader, StateMismatch
from stateful_gpu_loader.state.schema import COMPARED, Fingerprint, LoaderState
from stateful_gpu_loader.state.torchdata import is_torchdata_state
from tests.conformance import differing

STATE = LoaderState(
    seed=42, epoch=3, position=128, fingerprint='{"shuffle": true}', global_batch_size=64
)
FINGERPRINT = Fingerprint(
    dataset="abc",
    length=100,
    order="feistel-1",
    shuffle=True,
    drop_last=False,
    transform="none",
    decoder="torchcodec",
    decoder_version="0.17",
    dataset_transform="none",
    collate_fn="torch.utils.data.default_collate",
    batched=True,
    on_bad_sample="replace",
)


def test_a_state_survives_json_and_restricted_pickle() -> None:
    state = STATE.to_dict()
    assert LoaderState.from_dict(json.loads(json.dumps(state))) == STATE
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


def test_the_state_of_version_1_is_golden() -> None:
    """Written by version 1; every later version must load it."""
    golden = {
        "format": "stateful_gpu_loader",
        "version": 1,
        "seed": 42,
        "epoch": 3,
        "position": 128,
        "fingerprint": '{"shuffle": true}',
        "global_batch_size": 64,
        "index_digest": None,
        "ahead": None,
        "bad_samples": None,
        "user": None,
    }
    assert LoaderState.from_dict(golden) == STATE
    assert STATE.to_dict() == golden


def test_the_fingerprint_of_version_1_is_golden() -> None:
    """Texts of version 1 load in every later version. The first is older than a dataset's own
    transforms, ``collate_fn`` and the rest, the second older than digests. Values missing
    from a state are not compared.
    """
    first = (
        '{"dataset": null, "length": 12, "order": "sequential", "shuffle": false, '
        '"drop_last": false, "transform": "none", "decoder": "none", "decoder_version": null, '
        '"batch_transform": "none"}'
    )
    second = (
        '{"dataset": "range(0, 12)", "length": 12, "order": "sequential", "shuffle": false, '
        '"drop_last": false, "transform": "none", "decoder": "none", "decoder_version": null, '
        '"batch_transform": "none", "dataset_transform": "none", '
        '"collate_fn": "torch.utils.data.default_collate", "batched": true, '
        '"on_bad_sample": null}'
    )
    last = f'{second[:-1]}, "content": {{}}}}'
    present = Fingerprint.from_text(last)
    assert present.to_text() == last
    loader = StatefulGPULoader(range(12))
    assert loader.state_dict()["fingerprint"] == last
    for text in (first, second):
        present.check(Fingerprint.from_text(text), accept=(), position=5)
        loader.load_state_dict({**loader.state_dict(), "fingerprint": text, "position": 5})
        assert [batch.item() for batch in loader] == list(range(5, 12))


WRONG: dict[str, list[Any]] = {
    "format": ["somebody_else", np.zeros(2)],
    "version": [2, 0, "1", True],
    "seed": [None, 1.5, 2**64, -(2**63) - 1],
    "epoch": [-1, 2**32, True],
    "position": [-1, 2**63, "128"],
    "fingerprint": [None, {"shuffle": True}],
    "global_batch_size": [0, "64"],
    "index_digest": [5],
    "ahead": [[]],
    "bad_samples": [[]],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_named_with_both_values_and_a_remedy(field: str) -> None:
    for value in WRONG[field]:
        with pytest.raises(StateMismatch, check=differing(field, saved=value)) as caught:
            LoaderState.from_dict({**STATE.to_dict(), field: value})
        assert repr(value) in str(caught.value)
        assert caught.value.remedy in str(caught.value)


def test_a_value_that_cannot_be_shown_is_refused_all_the_same() -> None:
    """Found by the fuzzer of inputs: its repr() raises RecursionError."""
    value: Any = []
    for _ in range(50_000):
        value = [value]
    with pytest.raises(StateMismatch, match=r"list.*RecursionError"):
        LoaderState.from_dict({**STATE.to_dict(), "seed": value})


def test_an_array_in_place_of_the_format_is_refused() -> None:
    """Found by the fuzzer of inputs: comparing it with a text gives an array."""
    for found in (np.array([1, 2]), np.array(["a", "b"]), torch.tensor([1, 2])):
        state = {**STATE.to_dict(), "format": found, "_num_yielded": 3}
        assert is_torchdata_state(state)
        with pytest.raises(StateMismatch, check=differing("format")):
            LoaderState.from_dict(state)


def test_missing_and_additional_keys_are_named() -> None:
    """A truncated state, and a state with additional keys."""
    for key in set(STATE.to_dict()) - {"format", "version"}:
        truncated = STATE.to_dict()
        del truncated[key]
        with pytest.raises(StateMismatch, check=differing("keys")):
            LoaderState.from_dict(truncated)
    with pytest.raises(StateMismatch, match=r"\['surprise'\]"):
        LoaderState.from_dict({**STATE.to_dict(), "surprise": 1})


def test_the_key_that_accelerate_adds_is_let_alone() -> None:
    """A state of this package is never mistaken for torchdata's, which has that key, too."""
    added = {**STATE.to_dict(), "_iterator_finished": True}
    assert LoaderState.from_dict(added) == STATE
    assert not is_torchdata_state(added)


def test_garbage_is_refused() -> None:
    for garbage in (None, 7, "state", [], {}, {"_num_yielded": 3}, {1: 2}):
        with pytest.raises(StateMismatch) as caught:
            LoaderState.from_dict(garbage)
        assert caught.value.field == "format"


def test_a_broken_fingerprint_is_refused() -> None:
    for text in ("", "{", "[]", "null", "7", '{"length": 3}', "[" * 100_000):
        with pytest.raises(StateMismatch) as caught:
            Fingerprint.from_text(text)
        assert caught.value.field == "fingerprint"


def test_a_fingerprint_of_wrong_types_switches_no_comparison_off() -> None:
    for field, value in (
        ("order", None),
        ("shuffle", None),
        ("drop_last", 0),
        ("transform", None),
        ("decoder", None),
        ("length", True),
        ("dataset", 5),
        ("decoder_version", [1]),
        ("dataset_transform", 1),
        ("collate_fn", False),
        ("batched", 1),
        ("on_bad_sample", ["drop"]),
        *(("content", content) for content in ("a", [], {"dataset": 1}, {"length": "a"})),
    ):
        with pytest.raises(StateMismatch) as caught:
            Fingerprint.from_text(json.dumps({**vars(FINGERPRINT), field: value}))
        assert caught.value.field == f"fingerprint's {field}"


OTHER = {
    "dataset": "another",
    "length": 99,
    "order": "feistel-2",
    "shuffle": False,
    "drop_last": True,
    "transform": "Resize(size=(8, 8))",
    "batch_transform": "mix",
    "decoder": "torchvision",
    "dataset_transform": "transform=mine.crop",
    "collate_fn": "mine.pad",
    "batched": False,
    "on_bad_sample": "drop",
}


@pytest.mark.parametrize("field", COMPARED)
def test_every_field_is_compared_and_can_be_accepted_knowingly(field: str) -> None:
    """Identity is compared, position is adopted."""
    other = Fingerprint(**{**vars(FINGERPRINT), field: OTHER[field]})
    with pytest.raises(StateMismatch) as caught:
        FINGERPRINT.check(other, accept=(), position=0)
    assert (caught.value.field, caught.value.saved) == (field, OTHER[field])
    assert caught.value.present == getattr(FINGERPRINT, field)
    accepted = "dataset" if field == "length" else field
    FINGERPRINT.check(other, accept={accepted}, position=0)


def test_a_dataset_of_another_length_is_accepted_at_position_0_only() -> None:
    """A place in an epoch has no meaning in another length. In a dataset of equal length it has,
    if the user accepts another description.
    """
    other = Fingerprint(**{**vars(FINGERPRINT), "dataset": "another"})
    with pytest.raises(StateMismatch, check=differing("dataset")) as refused:
        FINGERPRINT.check(other, accept=(), position=64)
    assert "accept={'dataset'}" in refused.value.remedy
    FINGERPRINT.check(other, accept={"dataset"}, position=64)
    for length in (99, None):
        shorter = Fingerprint(**{**vars(other), "length": length})
        with pytest.raises(StateMismatch, match=r"position 0.*64"):
            FINGERPRINT.check(shorter, accept={"dataset"}, position=64)
        FINGERPRINT.check(shorter, accept={"dataset"}, position=0)


def test_unknown_fields_are_not_compared() -> None:
    unknown = Fingerprint(**{**vars(FINGERPRINT), "dataset": None, "decoder_version": "9"})
    FINGERPRINT.check(unknown, accept=(), position=5)
    unknown.check(FINGERPRINT, accept=(), position=5)


def with_content(**content: str) -> Fingerprint:
    return replace(FINGERPRINT, content=content)


def test_a_digest_is_compared_beside_a_partial_text() -> None:
    """It is accepted by the name of its field."""
    for saved in (with_content(dataset="a"), with_content()):
        with pytest.raises(StateMismatch, check=differing("dataset")) as caught:
            with_content(dataset="b").check(saved, accept=(), position=5)
        assert caught.value.present.endswith("b")
        with_content(dataset="b").check(saved, accept={"dataset"}, position=5)
    with pytest.raises(StateMismatch, check=differing("dataset")):
        with_content().check(with_content(dataset="a"), accept=(), position=5)


def test_a_digest_that_another_state_lacks_is_not_compared() -> None:
    """Older states have none, and unknown data has none."""
    with_content(dataset="a").check(FINGERPRINT, accept=(), position=5)
    FINGERPRINT.check(with_content(dataset="a"), accept=(), position=5)
    with_content(dataset="a, sampled").check(with_content(dataset="b"), accept=(), position=5)
    unknown = replace(with_content(), dataset=None)
    unknown.check(with_content(dataset="a"), accept=(), position=5)
    known = replace(with_content(dataset="a"), dataset=None)
    with pytest.raises(StateMismatch, check=differing("dataset")):
        known.check(replace(known, content={"dataset": "b"}), accept=(), position=5)


@pytest.mark.parametrize(
    "error",
    [
        StateMismatch("seed", saved=1, present=2, remedy="none"),
        BadSample("a.jpg", index=1, position=2, epoch=3, reason="cut off"),
        MissingDependency("torchcodec", needed_for="decoder='torchcodec'", extra="codec"),
    ],
)
def test_errors_travel_between_processes(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)
