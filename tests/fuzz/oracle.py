"""Expected batches: an undisturbed run, and facts known without this package.

Comparison counts in *units*. Where samples are the same in every batch (``Configuration.is_flat``),
a unit is a sample, so that a life may change the batch size and the ranks. Otherwise a unit is the
batches that all ranks deliver in one step.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

from stateful_gpu_loader import StatefulGPULoader
from tests.fuzz.configurations import EXECUTION, Configuration
from tests.fuzz.data import DATA, IMAGES
from tests.fuzz.orders import BY_THEMSELVES, ORDERS, PERMUTATIONS, SAMPLERS
from tests.fuzz.records import Record, failure_of, leaves, numbers_of, record_of
from tests.fuzz.records import samples_of as split

PLAIN = {
    "content",
    "noisy",
    "rarely noisy",
    "caching",
    "own generator",
    "composed",
    "composed, unseeded",
    "images",
    "prepared images",
}
"""Datasets in which each index is one sample."""


ENDED = record_of(None)
"""Stands for the batch of a rank that has ended before the others."""


class Difference(AssertionError):
    """The loader differs from the undisturbed run."""


class Oracle:
    """The units of each epoch of a fresh, undisturbed loader.

    The user's own thread makes them, on one rank and with every tail, unless the batches depend on
    these. So a life on workers and ranks is compared with a run without them.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        alone: dict[str, Any] = dict.fromkeys(EXECUTION[1:], None)
        alone |= {"worker_type": "auto", "persistent_workers": False}
        if not configuration.is_tied:
            alone |= {"num_workers": 0, "snapshot_every_n_steps": 1}
        else:
            alone["persistent_workers"] = configuration["persistent_workers"]
        if configuration.is_flat:
            alone |= {"drop_last": False, "num_replicas": 1}
        self._run = configuration.but(**alone)
        replicas = self._run["num_replicas"]
        self._loaders = [self._run.build(rank=rank) for rank in range(replicas)]
        self._epochs: list[list[Record]] = []

    def units(self, epoch: int) -> list[Record]:
        while len(self._epochs) <= epoch:
            units = _units(self._loaders, is_flat=self._configuration.is_flat)
            self._epochs.append(units)
            self._check(len(self._epochs) - 1, units)
        return self._epochs[epoch]

    def close(self) -> None:
        self._loaders = []

    def _check(self, epoch: int, units: list[Record]) -> None:
        """Check facts that are known without a loader of this package."""
        c = self._configuration
        if c["data"] not in PLAIN or c["bad"] or self._run["num_replicas"] > 1:
            return
        wanted = _alone(c, epoch)
        found = [number for unit in units for number in indices_of(c, unit)]
        if self._run["drop_last"] and self._run["batch_size"]:
            dropped = len(found) % self._run["batch_size"]
            _demand(not dropped, f"epoch {epoch}: {dropped} samples of a batch to be dropped")
            wanted = None if wanted is None else wanted[: len(found)]
        elif c.order in PERMUTATIONS:
            _demand(sorted(found) == list(range(c["n"])), f"epoch {epoch} has indices {found}")
        _demand(wanted in (None, found), f"epoch {epoch} has indices {found}, not {wanted}")
        for unit in units if c["data"] == "content" and c.is_flat and not c["transform"] else ():
            (index,) = indices_of(c, unit)
            sample = split([DATA["content"]({"n": c["n"]})[index]["values"][None]])[0]
            _demand(leaves(sample)[0] == leaves(unit)[1], f"dataset[{index}] has another content")
        if c["data"] == "content" and c.order == "sequential" and c["batch_size"] and c.is_flat:
            given = {"batch_size": c["batch_size"], "drop_last": self._run["drop_last"]}
            if not c["transform"]:
                own = torch.Generator()  # it draws a seed for its workers
                torchs = DataLoader(DATA["content"]({"n": c["n"]}), generator=own, **given)
                flat = [sample for batch in torchs for sample in split(batch)]
                _demand(flat == units, "torch's DataLoader gives other samples")
        drawn = [leaves(unit)[1] for unit in units if c["data"] == "noisy"]
        drawn += [leaves(unit)[1] for before in self._epochs[:epoch] for unit in before if drawn]
        _demand(len(set(drawn)) == len(drawn), f"draws of epoch {epoch} repeat others")


def _units(loaders: list[StatefulGPULoader[Any]], *, is_flat: bool) -> list[Record]:
    """Return the units of one epoch of all ranks."""
    units: list[Record] = []
    ranks = [iter(loader) for loader in loaders]
    while True:
        step = next_of(ranks)
        if step is None:
            return units
        units.extend(units_of(step, is_flat=is_flat))


def next_of(ranks: list[Any]) -> list[Any] | None:
    """Return the next batch of each rank, or the exception it raised; None after the end of all."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batches in ranks:
            try:
                found.append(next(batches, None))
            except (ValueError, LookupError) as error:
                if not is_bad_sample(error):
                    raise
                found.append(error)
    return None if all(batch is None for batch in found) else found


def is_bad_sample(error: Exception) -> bool:
    return "no sample" in str(error) or "photo_999" in str(error)


def units_of(step: list[Any], *, is_flat: bool) -> list[Record]:
    """Return the units of one step of all ranks: positions go round robin over the ranks."""
    if not is_flat:
        return [tuple(failure_of(b) if isinstance(b, Exception) else record_of(b) for b in step)]
    _demand(None not in step, "a rank has ended before the others")
    samples = [[failure_of(b)] if isinstance(b, Exception) else split(b) for b in step]
    _demand(len({len(each) for each in samples}) == 1, f"ranks have {list(map(len, samples))}")
    return [sample for each in zip(*samples, strict=True) for sample in each]


def indices_of(c: Configuration, unit: Record) -> list[int]:
    """Return the indices of a unit's samples, on all ranks."""
    batches = [unit] if c.is_flat else [part for part in unit if part != ENDED]
    return [number for batch in batches for number in numbers_of(index_of(c, batch))]


def index_of(c: Configuration, unit: Record) -> Any:
    """Return the leaf with the index, which comes after the pixels of an image."""
    return leaves(unit)[1 if c["data"] in IMAGES else 0]


def _alone(c: Configuration, epoch: int) -> list[int] | None:
    """Return the indices of an epoch, for orders that are known without a loader."""
    if c.order == "sequential":
        return list(range(c["n"]))
    if c.order not in BY_THEMSELVES:
        return None
    sampler = ORDERS[c.order](c["n"])
    passes = [list(sampler) for _ in range(epoch + 1)]
    if c.order in SAMPLERS:
        return passes[-1]
    return [index for batch in passes[-1] for index in batch]


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise Difference(what)
