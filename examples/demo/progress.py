"""Progress bars, one for each training run, which go back when a killed run is resumed.

A cross between two numbers of workers is a SIGKILL.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from examples.demo.events import Event, Finished, Launched, Started, Step
from stateful_gpu_loader.errors import MissingDependency

_FORMAT = "{desc:<31} {bar:12} {n_fmt:>3}/{total_fmt}  {elapsed}{postfix}"
"""Fits into 80 columns with three processes."""


class Progress:
    """Shows the events of runs, two of which may be in progress; a context that closes all bars.

    Args:
        num_steps: number of steps of a run.

    Raises:
        MissingDependency: tqdm is not installed.
    """

    def __init__(self, num_steps: int) -> None:
        self._new_bar = _tqdm()
        self._num_steps = num_steps
        self._bars: dict[str, Any] = {}
        self._workers: dict[str, list[str]] = {}
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for run in list(self._bars):
            self._close(run)

    def show(self, run: str, event: Event) -> None:
        """Show an event of a run; the first event opens the run's bar.

        Outside a terminal, a bar is written only when something happens to the process.
        """
        if run not in self._workers:
            self._workers[run] = []
            self._bars[run] = self._new_bar(
                total=self._num_steps,
                desc=run,
                bar_format=_FORMAT,
                position=None if self._is_terminal else 0,  # no cursor moves into a file
            )
        if isinstance(event, Launched):
            self._launched(run, event)
        elif isinstance(event, (Started, Step)):
            self._bars[run].n = event.step + isinstance(event, Step)
            if self._is_terminal:
                self._bars[run].refresh()
        elif isinstance(event, Finished):
            self._close(run)

    def _launched(self, run: str, event: Launched) -> None:
        self._workers[run].append(str(event.num_workers))
        self._bars[run].set_postfix_str("workers " + " ✕ ".join(self._workers[run]))

    def _close(self, run: str) -> None:
        self._bars.pop(run).close()


def _tqdm() -> Any:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise MissingDependency(
            "tqdm", needed_for="the demo's progress bars", extra="demo"
        ) from error
    return tqdm
