"""``python -m tests.integrations.ray_head_loss``: a loader loses the head of its cluster.

It resumes from its state in another cluster, in the same process. Ray itself would end the process,
so this is a separate program.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from stateful_gpu_loader import StatefulGPULoader, WorkerLost
from stateful_gpu_loader.integrations import ray as integration
from stateful_gpu_loader.integrations.ray import RayWorkers
from tests.conformance import copy_of, same
from tests.map_datasets import Noisy
from tests.ray_clusters import add_node, running_cluster

FURTHER = 5
"""Number of batches read in the other cluster."""


def make(**given: Any) -> StatefulGPULoader[Any]:
    """Return a loader of more samples than are delivered before the loss is noticed."""
    return StatefulGPULoader(Noisy(1_000_000), 4, shuffle=True, seed=6, **given)


def main() -> None:
    # The head is given up after a second instead of half a minute.
    integration._SECONDS_BETWEEN_CHECKS = 0.2
    integration._SECONDS_WITHOUT_HEAD = 1.0
    workers = {"num_workers": 2, "worker_type": RayWorkers(num_cpus=0.5)}
    found = []
    with running_cluster() as cluster:
        add_node(cluster)
        loader = make(**workers)
        try:
            for batch in loader:
                if not found:
                    cluster.head_node.kill_gcs_server()
                found.append(copy_of(batch))
        except WorkerLost as error:
            print(error)
        state = loader.state_dict()
    with running_cluster() as cluster:
        add_node(cluster)
        loader = make(**workers)
        loader.load_state_dict(state)
        found += [copy_of(batch) for batch in islice(loader, FURTHER)]
    expected = [copy_of(batch) for batch in islice(make(), len(found))]
    print("the same" if same(found, expected) else "ANOTHER")


if __name__ == "__main__":
    main()
