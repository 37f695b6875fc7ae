"""Configuration of a loader: options by name, drawn at random, and the loader built from them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.fuzz.data import DATA, FUNCTIONS, IMAGES, LANES, MAPS, MOST, STATEFUL, TIED
from tests.fuzz.orders import BATCH_SAMPLERS, ORDERS, OWN, SAMPLERS, STATEFUL_ORDERS

PROCESSES_OF_TWO = "process of two threads"
"""``worker_type`` of processes with two threads each."""
CHOICES: dict[str, list[Any]] = {
    "data": list(DATA),
    "n": [13, 1, 2, 5, 6, 8, 12, MOST],
    "order": [None, *ORDERS],
    "batch_size": [4, 1, 2, 3, 5, 6, MOST + 2, None],
    "drop_last": [False, True],
    "seed": [1, 0, 2**63, None],
    "num_replicas": [1, 2, 3],
    "transform": [None, "noise"],
    "collate_fn": [None, "mixing"],
    "batch_transform": [None, "blend"],
    "bad": [(), (0,), (3, 4), (2, 5, 7)],
    "on_bad_sample": ["raise", "replace", "drop"],
    "in_order": [True, False],
    "on_epoch_boundary": ["empty", "next_epoch"],
    "snapshot_every_n_steps": [1, 0, 2, 3],
    "num_workers": [0, 1, 2, 3],
    "worker_type": ["auto", "process", "thread", PROCESSES_OF_TWO],
    "prefetch_factor": [None, 1, 3],
    "persistent_workers": [False, True],
    "beside": [False, True],
}
"""Values of each option. The first is the default."""
LIKELY = {"data": 1.0, "n": 0.6, "order": 0.7, "batch_size": 0.6, "num_workers": 0.4}
"""Probability that an option is drawn; 0.2 for the others."""
THEMES: list[dict[str, list[Any]]] = [
    {},
    {"data": sorted(STATEFUL)},
    {"order": list(BATCH_SAMPLERS), "bad": [(3, 4), (2, 5, 7)], "data": ["content", "noisy"]},
    {"order": list(SAMPLERS), "data": ["content", "noisy"], "snapshot_every_n_steps": [1, 3]},
    {"bad": [(0,), (3, 4)], "on_bad_sample": ["replace", "drop"], "num_workers": [0, 2]},
    {"on_epoch_boundary": ["next_epoch"], "drop_last": [True], "n": [1, 5, 6, 13]},
    {"in_order": [False], "num_workers": [2, 3], "batch_transform": [None, "blend"]},
    {"persistent_workers": [True], "num_workers": [1, 2], "data": [*MAPS, *sorted(STATEFUL)]},
    {"beside": [True], "data": ["content", "images", "tars"], "order": [None, "sequential"]},
    {"num_replicas": [2, 3], "data": [*MAPS, *sorted(LANES)], "order": list(OWN)},
]
"""Options drawn together, because they rarely meet by chance."""
EXECUTION = ("num_workers", "worker_type", "prefetch_factor", "persistent_workers")
"""Options of the execution, which may change at any time."""


def noise(sample: Any) -> Any:
    """A transform of the whole sample that draws."""
    return sample, torch.rand(()), random.random()


def mixing(samples: list[Any]) -> Any:
    """A collate function that draws."""
    return default_collate(samples), random.random()


def blend(batch: Any) -> Any:
    """A batch transform that draws."""
    return batch, torch.rand(2)


def refusing(bad: tuple[int, ...], then: Any, sample: Any) -> Any:
    """A transform that refuses some samples."""
    index = sample
    while isinstance(index, (dict, tuple)):
        index = next(iter(index.values())) if isinstance(index, dict) else index[0]
    if index in bad:
        raise ValueError(f"no sample {index}")
    return sample if then is None else then(sample)


@dataclass(frozen=True)
class Configuration:
    """Options that differ from the defaults in ``CHOICES``."""

    options: Mapping[str, Any]

    @classmethod
    def drawn(cls, rng: random.Random) -> Configuration:
        """Draw a configuration without contradictions."""
        drawn = {
            name: rng.choice(choices)
            for name, choices in CHOICES.items()
            if rng.random() < LIKELY.get(name, 0.2)
        }
        for name, choices in rng.choice(THEMES).items():
            drawn[name] = rng.choice(choices)
        return cls(drawn).settled()

    def settled(self) -> Configuration:
        """Drop options that contradict each other, or that the data has no use for."""
        o = dict(self.options)

        def drop(*names: str) -> None:
            for name in names:
                o.pop(name, None)

        data, order = self["data"], self["order"]
        if data not in MAPS or data == "mixture":
            has_choice = data in LANES or data == "mixture"
            if not (has_choice and order == "sequential"):
                drop("order")
        if data not in MAPS and (data in TIED or data in FUNCTIONS):
            drop("num_replicas")  # dividing is up to the user
        if data in ("function of batches", "function of images"):
            o["batch_size"] = None
        if o.get("order") in BATCH_SAMPLERS:
            drop("batch_size", "drop_last", "num_replicas")
        if o.get("order") in SAMPLERS:
            drop("num_replicas")
        if data in IMAGES:
            drop("collate_fn", "transform")
            if data not in MAPS:
                drop("bad")
            if "batch_size" in o and o["batch_size"] is None and data != "function of images":
                drop("batch_size")
        else:
            drop("worker_type")
        if data not in MAPS and o.get("on_bad_sample") == "replace":
            drop("on_bad_sample")
        if data in ("function of batches", "mixture"):
            drop("bad")
        if data == "once":
            drop("num_workers")
        if data == "caching":
            # A sample that comes twice in an epoch counts as its first occurrence, which may
            # differ.
            drop("bad", "num_replicas")
            # A sample that is read again draws nothing, so its transform gets other numbers.
            drop("transform")
            if order not in ("sequential", "blocks"):
                drop("order")
        if data == "stateful":
            drop("in_order")  # each sample contains what its worker gave before, which may differ
        if o.get("batch_size", 4) is None:
            drop("drop_last", "num_replicas", "collate_fn")
        if not o.get("num_workers"):
            drop("worker_type", "prefetch_factor", "persistent_workers")
        if not o.get("bad"):
            drop("on_bad_sample")
        elif o.get("on_bad_sample", "raise") == "raise" or data in LANES:
            # Failing batches are known only in order, on one rank, and once: batches after a
            # snapshot are made again.
            drop("in_order", "num_replicas")
            # A repeated failure looks like one of the next epoch.
            drop("on_epoch_boundary")
            if data in STATEFUL:
                drop("snapshot_every_n_steps")
        elif data in STATEFUL:
            drop("num_replicas")  # each rank's object has read what the rank's bad samples needed
        if not o.get("in_order", True):
            drop("num_replicas")  # ranks whose batches overtake each other have no common steps
        if o.get("worker_type") in ("thread", PROCESSES_OF_TWO) and data == "function of images":
            drop("worker_type")  # the function may draw
        if o.get("seed", 1) is None and o.get("num_replicas", 1) > 1:
            drop("seed")  # all ranks need the same one
        if data in LANES and (o.get("num_replicas") == 3 or self["n"] < 4):
            drop("num_replicas")  # a rank all of whose shards are empty is refused
        if data in LANES and o.get("num_replicas"):
            drop("drop_last")  # a rank whose shards fill no batch is refused
        settled = Configuration({k: v for k, v in o.items() if v != CHOICES[k][0]})
        if not settled["beside"]:
            return settled
        if settled.may_draw:
            return settled.but(beside=False)
        # A worker that is forked while another thread draws may wait for that thread's lock.
        return settled.but(**{name: CHOICES[name][0] for name in EXECUTION})

    @property
    def may_draw(self) -> bool:
        """Whether making its batches seeds the generators of this process."""
        is_quiet = self["data"] in ("content", "images", "prepared images", "tars")
        own_code = ("transform", "collate_fn", "batch_transform")
        return not (
            is_quiet
            and self.order in (*OWN, "none")
            and not any(self[name] for name in own_code)
            and not self["bad"]
        )

    def __getitem__(self, name: str) -> Any:
        return self.options.get(name, CHOICES[name][0])

    def but(self, **changes: Any) -> Configuration:
        """Return the same configuration with other options."""
        return Configuration({**self.options, **changes})

    @property
    def order(self) -> str:
        """Name of its order; "none" where the data has its own."""
        if self["data"] not in MAPS:
            return "none"
        return self["order"] or "shuffled"

    @property
    def has_own_order(self) -> bool:
        """Whether the loader knows each sample by its position."""
        return self.order in OWN

    @property
    def is_tied(self) -> bool:
        """Whether batches depend on the number of workers."""
        return self["data"] in TIED

    @property
    def has_state(self) -> bool:
        """Whether the user's objects have a state."""
        return self["data"] in STATEFUL or self.order in STATEFUL_ORDERS

    @property
    def raises(self) -> bool:
        return bool(self["bad"]) and self["on_bad_sample"] == "raise"

    @property
    def is_flat(self) -> bool:
        """Whether a sample is the same in every batch."""
        return (
            self["data"] in MAPS
            and self["data"] not in ("stateful", "fetched in batches")
            and self.order not in BATCH_SAMPLERS
            and not (self["collate_fn"] or self["batch_transform"] or self["batch_size"] is None)
            and self["in_order"]
            and (not self["bad"] or (self["on_bad_sample"] == "replace" and self.has_own_order))
        )

    def build(self, *, rank: int = 0) -> StatefulGPULoader[Any]:
        """Return a new loader with its own objects; one rank of several."""
        data, order, n = self["data"], self.order, self["n"]
        options = {name: self[name] for name in CHOICES}
        dataset = DATA[data](options)
        given = {name: self[name] for name in ("in_order", "on_epoch_boundary", "drop_last")}
        given |= {name: self[name] for name in ("num_workers", "persistent_workers")}
        given |= {name: self[name] for name in ("prefetch_factor", "snapshot_every_n_steps")}
        given |= {"worker_type": self["worker_type"], "on_bad_sample": self["on_bad_sample"]}
        if self["worker_type"] == PROCESSES_OF_TWO:
            given |= {"worker_type": "process", "threads_per_process": 2}
            given["num_workers"] = 2 * self["num_workers"]
        given |= {"seed": self["seed"], "batch_size": self["batch_size"]}
        if self["seed"] is None:
            given["generator"] = torch.Generator().manual_seed(11)
        if self["num_replicas"] > 1:
            given |= {"num_replicas": self["num_replicas"], "rank": rank}
        if order in BATCH_SAMPLERS:
            del given["batch_size"], given["drop_last"]
            given["batch_sampler"] = ORDERS[order](n)
        elif order in ("shuffled", "sequential"):
            given["shuffle"] = order == "shuffled"
        elif order != "none":
            given["sampler"] = ORDERS[order](n)
        elif data in LANES:
            given["shuffle"] = self["order"] != "sequential"
        given["transform"] = noise if self["transform"] else None
        if data in IMAGES:
            given["transform"] = [T.RandomResizedCrop(12), T.RandomHorizontalFlip()]
        elif self["bad"]:
            given["transform"] = partial(refusing, self["bad"], given["transform"])
        given["collate_fn"] = mixing if self["collate_fn"] else None
        given["batch_transform"] = blend if self["batch_transform"] else None
        return StatefulGPULoader(dataset, **given)
