"""Wrong sharded datasets and states are refused by name, and nothing changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.errors import LoaderError, StateMismatch
from tests.conformance import loaded, refusal
from tests.datasets.shards import Loader, Numbers, PhotoShards, identity, indices_of
from tests.map_datasets import Indices

SIZES = (5, 0, 3, 8, 1)


def make(**arguments: Any) -> Loader:
    dataset = Numbers(SIZES, lanes=3, buffer=9, counted=arguments.pop("counted", False))
    return StatefulGPULoader(dataset, **{"batch_size": 2, "seed": 3, "shuffle": True, **arguments})


def state_in_the_middle(**arguments: Any) -> dict[str, Any]:
    loader = make(**arguments)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    return loader.state_dict()


def dataset_with(**attributes: Any) -> Numbers:
    dataset = Numbers(SIZES)
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"num_lanes": 0}, ValueError, "num_lanes=0"),
        ({"num_lanes": 1 << 23}, ValueError, "num_lanes=8388608"),
        ({"num_lanes": "3"}, TypeError, "num_lanes='3'"),
        ({"shuffle_buffer": 0}, ValueError, "shuffle_buffer=0"),
        ({"shuffle_buffer": 2.5}, TypeError, "shuffle_buffer=2.5"),
        ({"shards": list}, ValueError, "0 names"),
        ({"shards": lambda: ["a", "b", "a"]}, ValueError, "3 names, 2 different"),
        ({"shards": lambda: ["a", 2]}, TypeError, "gives 2"),
        ({"state_dict": dict, "load_state_dict": identity}, TypeError, "has state_dict"),
        ({"num_samples": lambda shard: -1}, ValueError, "is -1"),
        ({"num_samples": lambda shard: 1.5}, TypeError, "1.5"),
    ],
)
def test_a_dataset_that_cannot_be_read(
    attributes: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The error has the values, and comes from the loader or at its first batch."""
    with pytest.raises(error, match=message):
        next(iter(StatefulGPULoader(dataset_with(**attributes), num_replicas=1, rank=0).__iter__()))


@pytest.mark.parametrize("given", [5, (1, 2, 3), (1, "a"), (1, -1), (1, 1 << 63), (1, 2.0), "ab"])
@pytest.mark.parametrize("mode", ["raise", "drop"])
def test_a_generator_that_yields_no_pairs(given: Any, mode: str) -> None:
    """It is a mistake in the program, and no bad sample."""
    dataset = dataset_with(read_shard=lambda shard, cursor: iter([given]))
    loader = StatefulGPULoader(dataset, on_bad_sample=mode)
    with pytest.raises(LoaderError, match="yield pairs"):
        next(iter(loader))


def test_encoded_shards_yield_encoded_samples() -> None:
    dataset = PhotoShards()
    dataset.read_shard = lambda shard, cursor: iter([(b"jpeg", 1)])  # type: ignore
    with pytest.raises(LoaderError, match="yield an EncodedSample"):
        next(iter(StatefulGPULoader(dataset)))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("lane_00000", ""),
        ("lane_00001", "0/1:2:3"),
        ("lane_00001", "1:2:0:0:0"),  # no epoch
        ("lane_00001", "1/1:2:0:0:0"),  # another epoch
        ("lane_00001", "00/1:2:0:0:0"),
        ("lane_00001", "0/1:2:0:0:-1"),
        ("lane_00002", "0/1:2:0:0:3"),  # more samples taken than delivered
        ("lane_00002", "0/1:9:0:0:3"),  # a window has 3
        ("lane_00000", "0/1:2:3:0:0"),  # the lane has 2 shards
        ("lane_00000", "0/1:2:2:7:0"),  # after the last
        ("lane_00000", "0/1:2:2:0:2"),
        ("lane_00002", "0/1:2:2:0:0"),  # this one has 1
        ("lane_00000", f"0/{1 << 41}:2:0:0:0"),
        ("lane_00000", f"0/1:{1 << 41}:0:0:0"),
        ("lane_00000", f"0/1:2:{1 << 62}9:0:0"),
        ("lane_00000", "garbage"),
    ],
)
def test_a_cursor_outside_its_lane(key: str, text: str) -> None:
    loader = make()
    refusal(loader, {**state_in_the_middle(), key: text}, key)


def test_lanes_that_are_missing_or_too_many() -> None:
    state = state_in_the_middle()
    loader = make()
    del state["lane_00001"]
    refusal(loader, state, "lanes")
    refusal(loader, {**state_in_the_middle(), "lane_00003": "0/0:0:0:0:0"}, "lanes")
    refusal(loader, {**state_in_the_middle(), "lane_00001": 7}, "lane_00001")


def test_another_plan_is_refused_by_field() -> None:
    loader = make()
    others: dict[str, Loader] = {
        "order": StatefulGPULoader(Numbers(SIZES, lanes=2, buffer=6), shuffle=True),
        "dataset": StatefulGPULoader(Numbers((*SIZES, 2), lanes=3, buffer=9), shuffle=True),
        "drop_last": make(drop_last=True, seed=None),
        "order ": make(shuffle=False, seed=None),
    }
    for field, other in others.items():
        refusal(loader, other.state_dict(), field.strip())


def test_states_of_map_style_data_and_of_torchdata() -> None:
    """In both directions; nothing changes."""
    mapped = StatefulGPULoader(Indices(17), batch_size=2, seed=3, shuffle=True)
    lanes = make()
    plain = StatefulDataLoader(Indices(17), batch_size=2)
    next(iter(plain))
    for loader, state in (
        (lanes, mapped.state_dict()),
        (mapped, lanes.state_dict()),
        (lanes, plain.state_dict()),
    ):
        refusal(loader, state)


_number = st.one_of(st.integers(0, 12), st.integers(0, 1 << 63))
_cursor = st.one_of(
    st.lists(_number, min_size=5, max_size=5).map(lambda parts: ":".join(map(str, parts))),
    st.text(max_size=12),
)


@pytest.mark.fuzz
@settings(max_examples=150)
@given(cursors=st.lists(_cursor, min_size=3, max_size=3), counted=st.booleans())
def test_fuzzed_cursors_are_refused_or_end(cursors: list[str], counted: bool) -> None:
    """They raise a named error, or the stream ends; no hang and no crash."""
    keys = {f"lane_{lane:05d}": text for lane, text in enumerate(cursors)}
    loader = make(counted=counted)
    try:
        loader.load_state_dict({**state_in_the_middle(counted=counted), **keys})
    except StateMismatch as error:
        assert error.field in keys  # noqa: PT017 - most are refused, some are not
        return
    batches = iter(loader)
    for _ in range(40):
        try:
            next(batches)
        except StopIteration:
            return
    raise AssertionError("it does not end")


def test_a_valid_state_within_an_epoch_is_accepted() -> None:
    """The state that these tests damage loads."""
    loader = loaded(make(), state_in_the_middle())
    whole = make()
    assert indices_of(whole)[6:] == indices_of(loader)
