"""Comparison of a killed run with the undisturbed run of the same loader, bit for bit."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from examples.demo.events import Saved, Started, Step
from examples.demo.experiment import Runs


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Step numbers that differ, and measurements.

    Steps repeated after a resume are compared each time.
    """

    batches: int
    again: int
    """Number of these batches repeated because they came after the last checkpoint."""
    missing: tuple[int, ...]
    """Steps of the undisturbed run that the killed run never made."""
    other_labels: tuple[int, ...]
    """Steps whose targets differ: other samples, or another order."""
    other_pixels: tuple[int, ...]
    """Steps whose images differ in any bit."""
    other_losses: tuple[int, ...]
    """Steps whose loss differs in any bit."""
    equal_weights: bool
    """Whether the final parameters and buffers are equal bit for bit."""
    returncodes: tuple[int, ...]
    """Return codes of the killed run's processes."""
    workers: tuple[int, ...]
    """Numbers of workers of the same processes."""
    killed_at: tuple[int | None, ...]
    """Steps of the kills; None for a process that ended by itself."""
    resumed_at: tuple[int, ...]
    """Steps at which processes resumed."""
    state_bytes: int
    """Largest pickled state of the loader, in bytes."""
    seconds_to_first_batch: tuple[float, ...]
    """Time from ``load_state_dict`` to the first batch, for each resume."""

    @property
    def differing(self) -> frozenset[int]:
        """Steps with any difference."""
        return frozenset(
            (*self.missing, *self.other_labels, *self.other_pixels, *self.other_losses)
        )

    @property
    def same_run(self) -> bool:
        """Whether the kills left no trace in batches, losses and weights."""
        return self.batches > 0 and not self.differing and self.equal_weights

    @property
    def killed_as_planned(self) -> bool:
        """Whether SIGKILL ended every process except the last, which trained to the end."""
        *killed, last = self.returncodes
        return last == 0 and all(code == -signal.SIGKILL for code in killed)


def compare(runs: Runs) -> Comparison:
    """Compare every step of the killed run with the same step of the undisturbed one.

    A step that the undisturbed run lacks differs in everything.
    """
    undisturbed = {step.step: step for step in runs.undisturbed.steps}
    killed = runs.killed.steps
    made = {step.step for step in killed}
    attempts = runs.killed.attempts
    starts = [event for attempt in attempts[1:] for event in attempt.of(Started)]
    saved = [event.state_bytes for attempt in attempts for event in attempt.of(Saved)]
    return Comparison(
        batches=len(killed),
        again=len(killed) - len(made),
        missing=tuple(sorted(undisturbed.keys() - made)),
        other_labels=_other(killed, undisturbed, "labels"),
        other_pixels=_other(killed, undisturbed, "pixels"),
        other_losses=_other(killed, undisturbed, "loss"),
        equal_weights=runs.killed.weights is not None
        and runs.killed.weights == runs.undisturbed.weights,
        returncodes=tuple(attempt.returncode for attempt in attempts),
        workers=tuple(attempt.num_workers for attempt in attempts),
        killed_at=tuple(attempt.killed_at for attempt in attempts),
        resumed_at=tuple(start.step for start in starts),
        state_bytes=max(saved, default=0),
        seconds_to_first_batch=tuple(start.seconds for start in starts),
    )


def _other(killed: list[Step], undisturbed: dict[int, Step], field: str) -> tuple[int, ...]:
    differing = {
        step.step
        for step in killed
        if getattr(step, field) != getattr(undisturbed.get(step.step), field, None)
    }
    return tuple(sorted(differing))
