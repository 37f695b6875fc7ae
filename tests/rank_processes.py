"""Real processes of one torch.distributed group: the result of each rank, or its failure.

They are forked from a server that has already imported torch (:mod:`tests.prepared_processes`), so
a group starts in a fraction of a second. The group exists before the function is called. Frameworks
that find a group (Lightning, Fabric, Accelerate) use it.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import pickle
import signal
import socket
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.patience import seconds
from tests.prepared_processes import CONTEXT


class RankFailed(AssertionError):
    """A rank raised, or died unexpectedly."""


def on_ranks(
    function: Callable[..., Any],
    num_ranks: int,
    *arguments: Any,
    killed: bool = False,
) -> list[Any]:
    """Call ``function(rank, *arguments)`` in each process of one gloo group; return the results.

    Args:
        function: an importable function with picklable arguments and result.
        num_ranks: number of processes; RANK, WORLD_SIZE and LOCAL_RANK are set as by torchrun.
        killed: whether the function must end every rank with SIGKILL; the results are empty.
    """
    with tempfile.TemporaryDirectory() as folder:
        receivers, ranks = [], []
        port = free_port()
        for rank in range(num_ranks):
            receiver, sender = CONTEXT.Pipe(duplex=False)
            place = {"folder": folder, "rank": rank, "num_ranks": num_ranks, "port": port}
            place["patience"] = seconds(6)
            process = CONTEXT.Process(target=_serve, args=(sender, place, function, arguments))
            process.start()
            sender.close()
            receivers.append(receiver)
            ranks.append(process)
        try:
            return _collect(receivers, ranks, killed=killed)
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _collect(receivers: list[Any], ranks: list[Any], *, killed: bool) -> list[Any]:
    results: dict[int, Any] = {}
    waiting = dict(enumerate(receivers))
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting.values()), limit := seconds(12))
        if not ready:
            raise RankFailed(f"ranks {sorted(waiting)} have not answered within {limit:.0f} s")
        for rank in [rank for rank, receiver in waiting.items() if receiver in ready]:
            try:
                failure, results[rank] = pickle.loads(waiting.pop(rank).recv_bytes())
            except EOFError:
                ranks[rank].join()
                if not (killed and ranks[rank].exitcode == -signal.SIGKILL):
                    raise RankFailed(f"rank {rank} ended with {ranks[rank].exitcode}") from None
                continue
            if failure is not None or killed:
                raise RankFailed(f"rank {rank}: {failure or 'was not killed'}")
    return [results[rank] for rank in sorted(results)]


def _serve(
    sender: Any, place: dict[str, Any], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch

    rank, num_ranks = place["rank"], place["num_ranks"]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(place["port"]),
        "TORCHELASTIC_RUN_ID": "tests",
        "CUDA_VISIBLE_DEVICES": "",
    }
    try:
        torch.distributed.init_process_group(
            "gloo",
            f"file://{place['folder']}/rendezvous",
            world_size=num_ranks,
            rank=rank,
            timeout=timedelta(seconds=place["patience"]),
        )
        answer = None, function(rank, *arguments)
    except BaseException:
        answer = traceback.format_exc(), None
    # As plain bytes: torch would share the memory of a tensor, which ends with this process.
    sender.send_bytes(pickle.dumps(answer))
    if answer[0] is None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def free_port() -> int:
    """Return a port for a framework that opens a store beside the group's."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
