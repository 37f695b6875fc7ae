"""Ray clusters of several nodes, all of them processes of this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from tests.patience import seconds

# Set before Ray is imported, because Ray's processes inherit them.
os.environ |= {
    "PYTHONPATH": str(Path(__file__).parent.parent),  # so that workers can import the tests
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray starts its workers at nearly the lowest priority. Beside other busy processes, an actor
    # that imports torch would take minutes to start.
    "RAY_worker_niceness": "0",
    # Ray must not give up slow nodes or workers of a busy machine.
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_gcs_server_request_timeout_seconds": "300",
    "RAY_worker_register_timeout_seconds": "300",
}

import ray
from ray.cluster_utils import Cluster

FILTERS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Warnings that Ray's own code causes."""
OBJECT_STORE = 100 << 20
"""Size of each node's object store, in bytes."""


class PatientCluster(Cluster):
    """Waits for a node longer than Ray's 30 seconds."""

    def _wait_for_node(self, node: Any, timeout: float = 30) -> None:
        super()._wait_for_node(node, timeout=seconds(timeout))


def connect(address: str) -> None:
    """Connect this process to a cluster."""
    ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level="ERROR")


@contextmanager
def running_cluster(*, is_driver: bool = True) -> Iterator[Any]:
    """Start a cluster whose head has no room for workers; connect this process by default."""
    folder = tempfile.mkdtemp(prefix="ray")  # its sockets' paths must be short
    # With temp_dir= Ray 2.60 would write an address to /tmp/ray, which may not exist.
    with mock.patch.dict(os.environ, RAY_TMPDIR=folder):
        made = PatientCluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": OBJECT_STORE,
                "include_dashboard": False,
                "include_log_monitor": False,
                "no_monitor": True,  # the autoscaler's
            },
        )
        try:
            if is_driver:
                connect(made.address)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def add_node(cluster: Any, **arguments: Any) -> Any:
    """Add a node with room for four workers."""
    return cluster.add_node(**{"num_cpus": 2, "object_store_memory": OBJECT_STORE, **arguments})


def wait_until_given_up(node: Any) -> None:
    """Wait until Ray places no more actors on a lost node."""
    limit = time.monotonic() + seconds(60)
    while any(each["NodeID"] == node.node_id and each["Alive"] for each in ray.nodes()):
        assert time.monotonic() < limit, "Ray never notices that the node is gone"
        time.sleep(0.1)


def processes_of(node: Any) -> list[psutil.Process]:
    """Return the raylet of a node and the processes that it has started, such as actors."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [raylet, *raylet.children(recursive=True)]


def actors() -> list[psutil.Process]:
    """Return the worker processes of loaders in this process's cluster."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "ray::RayWorker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_none_is_left() -> None:
    """Wait until all workers of loaders have ended."""
    _, alive = psutil.wait_procs(actors(), timeout=seconds(5))
    assert not alive
