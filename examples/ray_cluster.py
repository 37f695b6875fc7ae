"""Workers on a Ray cluster whose nodes are all lost during training.

Reference: Ray Train's guide on data loading, which moves the reading of data to the nodes of a
cluster. Here the loader stays a `DataLoader`, and its workers run on the nodes.

Safer here: order, crops and pixels equal those of a run on one machine, although nodes are lost
together with their workers' batches. Losses and weights are compared.

The nodes are processes of this machine, as in Ray's own tests. Needs
`pip install 'stateful_gpu_loader[ray,demo]'`.
"""

import contextlib
import io
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.ray import RayWorkers

RECIPES = [T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.Normalize([0.5] * 3, [0.25] * 3)]
LOST_AT = 6
"""Step before which the nodes are lost."""


def train(folder: Path, lose_the_nodes: Any = None, **workers: Any) -> tuple[list[float], Any, int]:
    """Train for an epoch; return the losses, the weights and the number of replaced workers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        FolderSource(folder), batch_size=4, shuffle=True, seed=7, transform=RECIPES, **workers
    )
    losses = []
    for step, (images, labels) in enumerate(loader):
        if step == LOST_AT and lose_the_nodes is not None:
            lose_the_nodes()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict(), loader.worker_restarts


def main() -> None:
    # Before Ray is imported: send no statistics, and let workers find this file's own modules.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)
    import ray
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory() as folder:
        photographs = Path(folder, "photographs")
        write_photographs(photographs, files_per_class=8)
        losses, weights, _ = train(photographs)

        os.environ["RAY_TMPDIR"] = folder
        node = {"num_cpus": 1, "object_store_memory": 100 << 20}
        head = {**node, "num_cpus": 0, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        nodes = [cluster.add_node(**node) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

        def lose_the_nodes() -> None:
            for lost in nodes:
                cluster.remove_node(lost, allow_graceful=False)
                cluster.add_node(**node)

        # Ray prints the logs of lost nodes, and the loader warns about them.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found, found_weights, replaced = train(
                photographs, lose_the_nodes, num_workers=2, worker_type=RayWorkers(num_cpus=1)
            )
            ray.shutdown()
            cluster.shutdown()
    print(f"both nodes were lost before step {LOST_AT}, and workers were replaced {replaced} times")
    print(f"{len(found)} losses", "the same" if found == losses else "ANOTHER")
    is_same = all(torch.equal(found_weights[name], weights[name]) for name in weights)
    print(f"{len(weights)} weights", "the same" if is_same else "ANOTHER")


if __name__ == "__main__":
    main()
