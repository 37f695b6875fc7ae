"""Requests executed by worker processes, any of which may die at any time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from stateful_gpu_loader.engine.pipeline import Answer, BeginFailure, Failure, WorkersDied
from stateful_gpu_loader.engine.workers.answer_pipe import WritersLost
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from stateful_gpu_loader.engine.workers.remote_failure import RemoteFailure
from stateful_gpu_loader.engine.workers.torch_workers import InnerLoader, Team
from stateful_gpu_loader.engine.workers.worker_main import Errand
from stateful_gpu_loader.records import WorkerStart


class ProcessPipeline:
    """Worker processes that are fed with requests instead of indices.

    When a worker dies, or outlasts the timeout, its companions are ended too, whatever was
    answered before is still delivered, and then :class:`WorkersDied` is raised: by ``start()``
    or ``next()``, never in the user's own code, and nothing waits for ever.

    Args:
        loader: starts the workers; its arguments count here too.
    """

    def __init__(self, loader: InnerLoader) -> None:
        self._loader = loader
        self._num_workers = loader.num_workers
        self._limit = loader.num_workers * (loader.prefetch_factor or 2)
        self._persistent = loader.persistent_workers
        self._in_order = loader.in_order
        self._numbers = itertools.count()
        self._dispatch = self._nothing_to_do()
        self._team: Team | None = None
        self.workers: list[Any] = []
        """The worker processes, or those that there were last."""
        self._is_torn = False
        """An interrupt came where requests or answers are lost by it."""
        self._is_fresh = False
        """The workers were started, and have not served a pass."""

    @property
    def team(self) -> Team | None:
        """The workers that live, as torch's own iterator over them."""
        return self._team

    def launch(self) -> None:
        self._launched()
        self._is_fresh = True

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        self._dispatch = self._nothing_to_do()
        if self._is_torn or not (self._persistent or self._is_fresh):
            self.close()
        self._is_fresh = False
        team = self._team
        if team is None:
            team = self._launched()
        elif team.watch.has_lost():
            raise WorkersDied(team.watch.verdict(), None)
        self._dispatch = Dispatch(
            requests,
            starts,
            num_workers=self._num_workers,
            limit=1 if one_at_a_time else self._limit,
            in_order=self._in_order,
        )
        self._send(team)

    def __next__(self) -> tuple[Any, Any]:
        team, dispatch = self._team, self._dispatch
        if team is None:
            raise StopIteration
        while not dispatch.is_ready():
            if not dispatch.num_under_way:
                self._send(team)
            if dispatch.num_under_way:
                self._receive(team)
                continue
            try:
                dispatch.end()
            except StopIteration:
                if not self._persistent:
                    self.close()
                raise
        # Before the answer is taken: whatever the requests raise, it is not lost.
        self._send(team, spare=1)
        request, answer = dispatch.deliver()
        return request, _with_failure_rebuilt(answer)

    def is_ready(self) -> bool:
        team, dispatch = self._team, self._dispatch
        while team is not None and not dispatch.is_ready() and team.has_answer():
            try:
                self._receive(team)
            except WorkersDied:
                return True
        return dispatch.is_ready()

    def close(self) -> None:
        team, self._team = self._team, None
        self._dispatch = self._nothing_to_do()
        self._is_torn = False
        if team is not None:
            team.end()

    def _launched(self) -> Team:
        self._team = team = self._loader.launch()
        self.workers = team.workers
        return team

    def _send(self, team: Team, spare: int = 0) -> None:
        """Keep as many requests under way as there is room for."""
        dispatch = self._dispatch
        while True:
            number = next(self._numbers)
            issued = dispatch.assign(number, spare=spare)
            if issued is None:
                return
            self._is_torn = True
            worker, request, start = issued
            team.send(worker, number, Errand(request, start))
            self._is_torn = False

    def _receive(self, team: Team) -> None:
        """Take in one answer.

        Raises:
            WorkersDied: no answer will come any more.
        """
        if self._is_torn:
            raise WorkersDied(
                "DataLoader was interrupted between a worker and the main process",
                self._dispatch.oldest,
            )
        try:
            with team.watch.waiting():
                team.wait()
                self._is_torn = True
                number, answer = team.receive()
        except WritersLost:
            team.watch.has_lost(_SECONDS_TO_BE_TOLD)
            self._is_torn = False
            raise WorkersDied(team.watch.verdict(), self._dispatch.oldest) from None
        self._dispatch.answer(number, answer)
        self._is_torn = False

    def _nothing_to_do(self) -> Dispatch:
        return Dispatch(iter(()), None, num_workers=self._num_workers, limit=1, in_order=True)


_SECONDS_TO_BE_TOLD = 10.0
"""The pipe of dead workers ends a little before the watch knows whose death it was."""


def _with_failure_rebuilt(answer: Any) -> Any:
    if isinstance(answer, RemoteFailure):
        kind = BeginFailure if answer.is_of_beginning else Failure
        return kind(answer.rebuild())
    if isinstance(answer, Answer) and isinstance(answer.payload, RemoteFailure):
        return dataclasses.replace(answer, payload=Failure(answer.payload.rebuild()))
    return answer
