"""Shards divided as DALI divides them, in the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.samplers.sharded import LastBatchPolicy, ShardSampler
from tests.conformance import flat, loaded, refusal
from tests.map_datasets import Indices
from tests.samplers.dali_epochs import dali_epochs


def make(
    dataset: Any, batch_size: int, arguments: dict[str, Any], /, **options: Any
) -> StatefulGPULoader[Any]:
    sampler = ShardSampler(dataset, batch_size, **arguments)
    return StatefulGPULoader(
        dataset, **{"batch_size": batch_size, "sampler": sampler, "seed": 5, **options}
    )


@pytest.mark.dali
@pytest.mark.parametrize(
    ("pad_last_batch", "stick_to_shard", "policy"),
    [(False, True, "fill"), (True, False, "drop"), (False, False, "partial")],
)
def test_epochs_of_the_loader_are_those_of_dalis_iterator(
    tmp_path: Path, pad_last_batch: bool, stick_to_shard: bool, policy: str
) -> None:
    """Batch by batch over six epochs, also with shards of different sizes."""
    pytest.importorskip("nvidia.dali")
    for n, num_shards, batch_size in ((11, 3, 2), (7, 2, 3), (10, 4, 2)):
        arguments: dict[str, Any] = {
            "shard_id": 1,
            "num_shards": num_shards,
            "pad_last_batch": pad_last_batch,
            "stick_to_shard": stick_to_shard,
        }
        theirs = dali_epochs(
            tmp_path, n, batch_size, epochs=6, last_batch_policy=policy, **arguments
        )
        arguments["last_batch_policy"] = LastBatchPolicy(policy)
        loader = make(Indices(n), batch_size, arguments, drop_last=policy == "drop")
        ours = [[batch.tolist() for batch in loader] for _ in range(6)]
        assert ours == theirs
        assert len(loader) == max(map(len, theirs))


@pytest.mark.dali
def test_workers_that_are_not_forked_deliver_the_same_beside_dali(tmp_path: Path) -> None:
    """A process in which DALI has run should not be forked."""
    pytest.importorskip("nvidia.dali")
    theirs = dali_epochs(tmp_path, 11, 2, epochs=2, num_shards=3)
    loader = make(
        Indices(11),
        2,
        {"num_shards": 3},
        num_workers=1,
        multiprocessing_context="forkserver",
        persistent_workers=True,
    )
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == theirs


def test_a_state_of_another_shard_is_refused_by_name() -> None:
    """Each shard has its own position."""
    loader = make(Indices(12), 2, {"num_shards": 3})
    next(iter(loader))
    other = make(Indices(12), 2, {"num_shards": 3, "shard_id": 1})
    assert "shard_id=1" in refusal(other, loader.state_dict(), "order").present


def test_another_batch_size_of_the_loader_cuts_the_same_epochs() -> None:
    """The sampler's batch size decides the epochs; the loader's batch size cuts them."""
    arguments = {"num_shards": 3, "pad_last_batch": True, "random_shuffle": True}
    two, three = (make(Indices(14), 2, arguments, batch_size=size) for size in (2, 3))
    epochs = [
        [list(flat([batch.tolist() for batch in one])) for _ in range(4)] for one in (two, three)
    ]
    assert epochs[0] == epochs[1]
    loader = make(Indices(14), 2, arguments)
    next(iter(loader))
    resumed = loaded(make(Indices(14), 2, arguments, batch_size=3), loader.state_dict())
    assert list(flat([batch.tolist() for batch in resumed])) == epochs[0][0][2:]
