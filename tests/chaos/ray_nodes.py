"""Jobs with workers in a Ray cluster, whose nodes are lost and hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any, ClassVar

import psutil

from tests.chaos.supervisor import Life, Supervisor, send, stop
from tests.chaos.verdict import SLACK
from tests.ray_clusters import actors, add_node, processes_of, running_cluster

_NODES = 2
_OF_RAY = {"file descriptors": 8, "threads": 8}
"""Growth allowed for Ray's own connections to nodes and actors."""


class NodeSupervisor(Supervisor):
    """Plays the lives of a job on a cluster that it starts and disturbs."""

    lives = (20.0, 40.0, 60.0)  # an actor takes seconds to start
    between = 5.0
    slack: ClassVar[Mapping[str, int]] = {**SLACK, **_OF_RAY}

    def play(self, seconds: float) -> None:
        with running_cluster(is_driver=False) as self._cluster:
            os.environ["RAY_ADDRESS"] = self._cluster.address  # for the jobs
            for _ in range(_NODES):
                add_node(self._cluster, num_cpus=4)
            try:
                super().play(seconds)
            finally:
                del os.environ["RAY_ADDRESS"]

    def drawn_execution(self) -> dict[str, Any]:
        return {
            "num_workers": self.rng.randint(1, 3),
            "worker_type": "ray",
            "prefetch_factor": self.rng.choice([1, 2, 4]),
            "persistent_workers": self.stream != "caching",  # see drawn_execution()
            "max_worker_restarts": 100,
        }

    def workers_of(self, life: Life) -> list[psutil.Process]:
        return actors()

    def disturb(self, life: Life) -> None:
        rng, alive = self.rng, actors()
        if rng.random() < 0.4 and alive:
            self.done["workers killed"] += 1
            send([rng.choice(alive)], signal.SIGKILL)
            return
        node = rng.choice(list(self._cluster.worker_nodes))
        if rng.random() < 0.7:
            self.done["nodes lost"] += 1
            self._cluster.remove_node(node, allow_graceful=False)
            add_node(self._cluster, num_cpus=4)
        else:
            self.done["nodes stopped for a while"] += 1
            stop(processes_of(node), rng.uniform(0.5, 5))
