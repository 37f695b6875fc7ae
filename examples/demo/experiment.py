"""The plan: each loader trains once undisturbed, and once killed and resumed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.events import Event, Finished, Step
from examples.demo.loaders import BATCH_SIZE, LOADERS
from examples.demo.photographs import PHOTOGRAPHS, write_photographs
from examples.demo.supervision import Attempt, attempt
from examples.demo.training import Job

Watch = Callable[[str, Event], None]
"""Called with the name of a run and each of its events."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Parameters of the experiment; steps are counted from 0 over all epochs."""

    files_per_class: int = 64
    num_epochs: int = 3
    checkpoint_every: int = 4
    """Steps between checkpoints."""
    kill_at: tuple[int, ...] = (10, 27)
    """Steps of the kills: within epochs 0 and 1, and between two checkpoints."""
    workers: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {
            "StatefulGPULoader": (2, 3, 1),
            "StatefulDataLoader": (2, 2, 2),  # it cannot resume on another number
        }
    )
    """Number of workers of the killed run's first process and of each resumed one, by loader."""

    def __post_init__(self) -> None:
        for loader, workers in self.workers.items():
            if len(workers) != len(self.kill_at) + 1:
                raise ValueError(
                    f"{loader} has {workers = } for {len(self.kill_at)} kills. "
                    "Remedy: one number of workers more than kills"
                )
        if any(step >= self.num_steps - 1 for step in self.kill_at):
            raise ValueError(
                f"{self.kill_at = } leaves nothing to resume in {self.num_steps} steps. "
                f"Remedy: kill before step {self.num_steps - 1}"
            )

    @property
    def num_files(self) -> int:
        return self.files_per_class * len(PHOTOGRAPHS)

    @property
    def num_steps(self) -> int:
        return self.num_epochs * self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch, whose last batch may be smaller."""
        return -(-self.num_files // BATCH_SIZE)

    @property
    def killed_epochs(self) -> tuple[int, ...]:
        return tuple(step // self.steps_per_epoch for step in self.kill_at)

    @property
    def kept_step(self) -> int:
        """First step after the first resume, delivered before the kill and again after it."""
        return self.kill_at[0] // self.checkpoint_every * self.checkpoint_every


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """One training from its first step to its last, in one process or several."""

    attempts: tuple[Attempt, ...]
    kept: tuple[Path, ...]
    """Files of the batch ``Plan.kept_step``, one for each process that received it."""

    @property
    def steps(self) -> list[Step]:
        """All steps in order of execution, including repeated ones."""
        return [step for attempt in self.attempts for step in attempt.of(Step)]

    @property
    def weights(self) -> str | None:
        """Digest of the final weights; None if the training did not end."""
        finished = [event for attempt in self.attempts for event in attempt.of(Finished)]
        return finished[-1].weights if finished else None


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The two trainings of one loader."""

    undisturbed: TrainingRun
    killed: TrainingRun


def run_experiment(
    plan: Plan, folder: Path, watch: Watch = lambda run, event: None
) -> dict[str, Runs]:
    """Build the data set and run everything, two trainings at a time.

    Args:
        plan: parameters of the experiment.
        folder: an empty folder for the files of the data set and the checkpoints.
        watch: called with ``"<loader>, undisturbed"`` or ``"<loader>, killed"`` and each event, by
            the thread of that training.

    Returns:
        Runs of each loader of the plan.

    Raises:
        LoaderError: a training process failed by itself.
        MissingDependency: a package of the extra ``demo`` is missing.
    """
    write_photographs(folder / "photographs", files_per_class=plan.files_per_class)
    is_over = threading.Event()

    def watch_until_over(run: str, event: Event) -> None:
        if is_over.is_set():
            raise CancelledError(f"{run}: another training failed, or was interrupted")
        watch(run, event)

    trainings: dict[str, list[Future[TrainingRun]]] = {}
    with ThreadPoolExecutor(max_workers=2) as pool:
        for loader in (name for name in LOADERS if name in plan.workers):
            workers = plan.workers[loader]
            trainings[loader] = [
                pool.submit(_train, plan, loader, folder, name, given, kill_at, watch_until_over)
                for name, given, kill_at in (
                    ("undisturbed", workers[:1], ()),
                    ("killed", workers, plan.kill_at),
                )
            ]
        try:
            return {
                loader: Runs(undisturbed=undisturbed.result(), killed=killed.result())
                for loader, (undisturbed, killed) in trainings.items()
            }
        finally:
            is_over.set()
            pool.shutdown(cancel_futures=True)


def _train(
    plan: Plan,
    loader: str,
    folder: Path,
    name: str,
    workers: tuple[int, ...],
    kill_at: tuple[int, ...],
    watch: Watch,
) -> TrainingRun:
    own_folder = folder / loader / name
    own_folder.mkdir(parents=True)
    attempts, kept = [], []
    for number, (num_workers, kill) in enumerate(itertools.zip_longest(workers, kill_at)):
        job = Job(
            loader=loader,
            photographs=str(folder / "photographs"),
            folder=str(own_folder),
            num_workers=num_workers,
            num_epochs=plan.num_epochs,
            checkpoint_every=plan.checkpoint_every,
            kept_step=plan.kept_step,
            kept_batch=f"kept_{number}.pt",
        )
        attempts.append(
            attempt(job, kill_at=kill, watch=lambda event: watch(f"{loader}, {name}", event))
        )
        kept.append(own_folder / job.kept_batch)
    return TrainingRun(attempts=tuple(attempts), kept=tuple(path for path in kept if path.exists()))
