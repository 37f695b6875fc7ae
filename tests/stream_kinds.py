"""Every kind of stream that a loader goes through, without workers, to ask it where it stands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stateful_gpu_loader import (
    CallableSource,
    MixedDataset,
    ShardSampler,
    StatefulGPULoader,
    WeightedSampler,
)
from tests.callables import NoisyBatches, NoisyPlaces
from tests.datasets.shards import NoisyShards
from tests.loader import test_samplers as samplers
from tests.makers import MAKERS
from tests.map_datasets import Noisy

Make = Callable[..., StatefulGPULoader[Any]]
N = 23


def build(dataset: Callable[[], Any], of: dict[str, Callable[[], Any]], **given: Any) -> Any:
    made = {name: value() for name, value in of.items()}
    return StatefulGPULoader(dataset(), **{"batch_size": 4, "seed": 1, **made, **given})


def _loader(dataset: Callable[[], Any] = lambda: Noisy(N), /, **of: Any) -> Make:
    """Arguments that are callable are called for each loader."""
    made = {name: value for name, value in of.items() if callable(value)}
    return partial(build, dataset, made, **{k: of[k] for k in of if k not in made})


def _mixture() -> MixedDataset:
    return MixedDataset([Noisy(20), Noisy(7)], weights=[0.7, 0.3], num_samples=26, block_length=8)


def _counted(**arguments: Any) -> Callable[[], NoisyShards]:
    return partial(NoisyShards, counted=True, **arguments)


COUNTED: dict[str, Make] = {
    "order": _loader(shuffle=True),
    "drop_last": _loader(drop_last=True),
    "one of two ranks": _loader(shuffle=True, num_replicas=2, rank=1),
    "one of three ranks, drop_last": _loader(num_replicas=3, rank=2, drop_last=True),
    "unbatched": _loader(shuffle=True, batch_size=None),
    "epochs of several lengths": _loader(
        batch_size=2, sampler=lambda: ShardSampler(range(N), 2, num_shards=5, shard_id=1)
    ),
    "weighted draws": _loader(sampler=lambda: WeightedSampler([1.0] * N, 14, replacement=False)),
    "mixture": _loader(_mixture, shuffle=True),
    "dataset with state": MAKERS["dataset with state"],
    "shards": _loader(_counted(), shuffle=True),
    "shards, drop_last": _loader(_counted(), drop_last=True),
    "shards, one of two ranks": _loader(_counted(lanes=4), num_replicas=2, rank=1),
    "calls": _loader(lambda: CallableSource(NoisyPlaces(10), length=10)),
    "calls for batches": _loader(
        lambda: CallableSource(NoisyBatches(5), batch=True, length=5), batch_size=None
    ),
    "a sampler without state": partial(samplers.make, samplers.WITHOUT_STATE["distributed"]),
    "a list of batches": partial(samplers.make, samplers.WITHOUT_STATE["a list of batches"]),
    **{
        f"a sampler with state, {name}": partial(samplers.make, case)
        for name, case in samplers.WITH_STATE.items()
        if name != "on a batch sampler"
    },
    **{
        f"a sampler of {name}": partial(samplers.make, samplers.WITHOUT_STATE[name])
        for name in ("random, shared generator", "batches of torch", "unbatched", "a list")
    },
}
"""Whose batches can be counted beforehand."""

ENDING_SOMEWHERE: dict[str, Make] = {
    "shards of unknown length": _loader(NoisyShards, shuffle=True),
    "calls without length": _loader(lambda: CallableSource(NoisyPlaces(10, 13))),
    "a batch sampler with state": partial(samplers.make, samplers.WITH_STATE["on a batch sampler"]),
    **{
        f"a sampler of {name}": partial(samplers.make, samplers.WITHOUT_STATE[name])
        for name in ("generator function", "generator function, drop_last", "counter")
    },
    **{name: make for name, make in MAKERS.items() if "itera" in name},
}
"""Nobody knows where before it is met."""

KINDS = {**COUNTED, **ENDING_SOMEWHERE}
