"""Fits that a rank of a real process group runs, with its own part of the data."""

from __future__ import annotations

import logging
import os
import pickle
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from stateful_gpu_loader import DistributedShuffledSampler, TarShards
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.integrations.lightning import LoaderStateCallback
from tests.integrations.lightning.recorded_fits import Witness, every_step, silent_trainer
from tests.rank_processes import on_ranks
from tests.trainer_data import image_loader, photos, samples_of

GLOBAL_BATCH_SIZE = 8
LENGTHS = (6, 6, 6, 6)
"""Samples of each shard. 2 and 4 ranks have equally many, so nothing is repeated."""

Sample: TypeAlias = tuple[int, str]
"""A sample's number, and a digest of its pixels."""
Batches: TypeAlias = list[tuple[Sample, ...]]
"""Batches of one rank, or of all together."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A fit over epochs of three global batches."""

    kind: str = "divided"
    """Division: "divided" by ``num_replicas="auto"``; "undivided"; "given" by this package's
    distributed sampler; "lanes" for divided shards.
    """
    use_distributed_sampler: bool = True
    callback: bool = False
    """Whether to use a LoaderStateCallback."""
    save: Path | None = None
    """Folder for a checkpoint after every step."""
    resume: Path | None = None
    epochs: int = 3
    killed_at: int | None = None
    """Number of the batch in whose step every rank kills itself with SIGKILL."""

    def loader(self, folder: Path, num_ranks: int) -> Any:
        """Return the loader of a rank, over the files in ``folder``."""
        batch_size = GLOBAL_BATCH_SIZE // num_ranks
        given: dict[str, Any] = {"batch_size": batch_size, "on_epoch_boundary": "next_epoch"}
        if self.kind == "lanes":
            shards = TarShards(sorted(folder.glob("*.tar")), num_lanes=4, counts=LENGTHS)
            return image_loader(shards, num_replicas="auto", **given)
        data = photos(folder)
        if self.kind == "divided":
            return image_loader(data, num_replicas="auto", **given)
        if self.kind == "given":
            sampler: Any = DistributedShuffledSampler(data, *size_and_rank(), seed=11)
            return image_loader(data, shuffle=None, sampler=sampler, **given)
        return image_loader(data, **given)


@dataclass(frozen=True, kw_only=True)
class Found:
    """Record of a rank."""

    seen: Batches
    """Batches that this rank trained on in this run."""
    is_same_loader: bool
    """Whether Lightning kept the loader that it was given."""
    public: dict[str, Any]
    """Some arguments of the loader that was trained on, and the class of the sampler inside."""


class RankWitness(Witness):
    """Begins with an empty record: the checkpoint holds that of rank 0."""

    killed_at: int | None = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save nothing."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load nothing."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Train as the base class does, or kill the process."""
        if len(self.trained) == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.trained.append(tuple(samples_of(batch)))
        return (self.weight - batch[0].float().mean()) ** 2


def fit_all(rank: int, folder: Path, runs: list[Run], notes: Path | None = None) -> list[Found]:
    """Run the fits one after the other in this rank.

    Args:
        rank: rank of the process.
        folder: folder of the photographs and the shards.
        runs: fits, of which the last may end in SIGKILL.
        notes: file for each rank's records before that.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    found: list[Found] = []
    for run in runs:
        found.append(_fit(folder, run))
        if notes is not None:
            (notes / f"rank-{rank}").write_bytes(pickle.dumps(found))
    return found


def _fit(folder: Path, run: Run) -> Found:
    num_ranks, _ = size_and_rank()
    loader = run.loader(folder, num_ranks)
    witness = RankWitness()
    witness.killed_at = run.killed_at
    trainer = silent_trainer(
        *([] if run.save is None else [every_step(run.save)]),
        *([LoaderStateCallback()] if run.callback else []),
        max_epochs=run.epochs,
        strategy="ddp" if num_ranks > 1 else "auto",
        devices=num_ranks,
        num_nodes=1,
        use_distributed_sampler=run.use_distributed_sampler,
    )
    trainer.fit(witness, loader, ckpt_path=run.resume, weights_only=True)
    used: Any = trainer.train_dataloader
    public = {name: getattr(used, name) for name in ("seed", "num_workers", "on_epoch_boundary")}
    return Found(
        seen=witness.trained,
        is_same_loader=used is loader,
        public={
            **public,
            "class": type(used).__name__,
            "sampler": type(getattr(used.batch_sampler, "sampler", None)).__name__,
            "has_transform": used.transform is loader.transform,
        },
    )


def fits(folder: Path, num_ranks: int, runs: dict[str, Run]) -> dict[str, list[Found]]:
    """Return the record of each rank and run. The runs share one group; one rank needs none."""
    given = folder, list(runs.values())
    ranks = [fit_all(0, *given)] if num_ranks == 1 else on_ranks(fit_all, num_ranks, *given)
    return {name: [found[place] for found in ranks] for place, name in enumerate(runs)}


def trained_on(found: list[Found]) -> Batches:
    """Return the global batches of a run: rank r's i-th sample is the global i * R + r-th."""
    return [
        tuple(sample for samples in zip(*parts, strict=True) for sample in samples)
        for parts in zip(*(rank.seen for rank in found), strict=True)
    ]
