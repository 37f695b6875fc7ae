"""A state is described by its content; missing values are unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch.utils.data import Dataset

from stateful_gpu_loader import ShuffledSampler, StatefulGPULoader, StateMismatch, merge_state_dicts
from stateful_gpu_loader.samplers.choice import order_in_words
from stateful_gpu_loader.state import contents
from stateful_gpu_loader.tools.inspect_state import describe
from tests.datasets.shards import Numbers
from tests.stream_kinds import KINDS
from tests.tools.checkpoints import Counting, after, after_in_torchdata


def test_place_and_share_of_the_epoch() -> None:
    found = describe(after(2))
    assert (found.epoch, found.position, found.unit) == (0, 4, "samples")
    assert (found.samples_seen, found.batches_seen, found.share) == (4, 2, 0.4)
    assert found.fingerprint is not None
    assert found.fingerprint["order"] == "feistel-1"


BATCHES: Any = [[0, 1, 2], [3], [4, 5]]


@pytest.mark.parametrize(
    ("batches", "arguments", "found"),
    [
        (2, {"sampler": ShuffledSampler(range(10), num_samples=40)}, (4, 2, 40, 0.1, 2)),
        (4, {"batch_size": 3, "shuffle": True}, (10, 4, 10, 1.0, 3)),
        (2, {"sampler": [3, 1, 4, 1, 5]}, (4, 2, None, None, 2)),
        (2, {"batch_size": 1, "batch_sampler": BATCHES}, (4, 2, None, None, None)),
    ],
    ids=["length of the order", "a short last batch", "a user's sampler", "a batch sampler"],
)
def test_samples_batches_and_share_are_those_of_the_order(
    batches: int, arguments: dict[str, Any], found: tuple[Any, ...]
) -> None:
    it = describe(after(batches, **{"shuffle": None, **arguments}))
    share = it.samples_seen, it.batches_seen, it.epoch_samples, it.share
    assert (*share, it.global_batch_size) == found
    assert json.loads(json.dumps(it.to_dict()))["position"] == it.position
    other = describe(after(1, batch_size=3) | {"global_batch_size": 4})
    assert (other.samples_seen, other.batches_seen) == (3, None), "after another batch size"


def test_an_iterable_counts_batches_and_names_its_states() -> None:
    found = describe(after(2, Counting(), shuffle=None))
    assert (found.position, found.unit, found.samples_seen, found.share) == (
        2,
        "batches",
        None,
        None,
    )
    assert [each.name for each in found.user_objects] == ["worker 0's dataset"]
    assert set(found.unverified) == {"dataset", "order"}


def test_lanes_of_one_rank_do_not_give_the_epochs_samples() -> None:
    dataset = Numbers([8, 8, 8, 8], lanes=4, counted=True)
    ranks = [after(1, dataset, shuffle=True, num_replicas=2, rank=rank) for rank in (0, 1)]
    one, merged = describe(ranks[0]), describe(merge_state_dicts(ranks))
    assert one.unit == merged.unit == "batches"
    assert one.num_lanes == merged.num_lanes == len(merged.lanes) == 2 * len(one.lanes)
    assert one.samples_seen is None
    assert merged.samples_seen == 4
    assert one.ranks.startswith("some of the ranks")
    assert merged.ranks == "all ranks: the state has every lane"


def test_bad_samples_are_listed() -> None:
    class Bad(Dataset[int]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: Any) -> Any:
            if index == 1:
                raise ValueError("no label")
            return index

    found = describe(after(1, Bad(), shuffle=False, on_bad_sample="replace"))
    assert found.bad_samples == 1
    assert [(bad.index, bad.reason) for bad in found.bad_sample_list] == [
        (1, "ValueError: no label")
    ]


def test_torchdatas_state_describes_little() -> None:
    found = describe(after_in_torchdata(2))
    assert found.library == "torchdata's StatefulDataLoader"
    assert (found.position, found.unit, found.samples_seen, found.finished) == (
        *(2, "batches"),
        *(4, False),
    )
    assert (found.epoch, found.seed, found.share, found.fingerprint) == (None, None, None, None)
    assert found.bad_samples is None


@pytest.mark.parametrize(
    "damage",
    [
        {"position": -1},
        {"version": 99},
        {"fingerprint": "{"},
        {"ahead": "{"},
        {"bad_samples": "[]"},
        {"lane_00000": "x"},
    ],
)
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(StateMismatch):
        describe(after(1) | damage)


def test_describing_changes_nothing() -> None:
    loader: StatefulGPULoader[int] = StatefulGPULoader(range(10), batch_size=2, seed=1)
    state = loader.state_dict()
    describe(state)
    assert state == loader.state_dict()


def test_a_callable_of_yours_is_compared_by_name_only() -> None:
    made = [StatefulGPULoader(range(8), transform=one) for one in (lambda sample: sample, abs)]
    found = [describe(loader.state_dict()).unverified for loader in made]
    assert "<lambda> is compared by name only" in found[0]["transform"]
    assert "transform" not in found[1]


def test_data_that_is_only_sampled_is_unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"{number}.jpg" for number in range(5000)]
    assert describe(StatefulGPULoader(paths).state_dict()).unverified == {}
    monkeypatch.setattr(contents, "MAX_COST", 1000)
    found = describe(StatefulGPULoader(paths).state_dict()).unverified
    assert set(found) == {"dataset (sampled)"}


def test_every_order_has_words() -> None:
    for make in KINDS.values():
        found = describe(make().state_dict())
        assert found.fingerprint is not None
        order = found.fingerprint["order"]
        assert order_in_words(order).endswith(f" ({order})")
