"""One pass of one loader, in a Python process that does nothing else.

``python -m benchmarks.peers.process ORDER``, where ORDER is an :class:`Order` as JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.roster import entry_of
from benchmarks.peers.tree import cpu_seconds

PHOTOGRAPHS, NUMBERS = "photographs", "numbers"


@dataclass(frozen=True, kw_only=True)
class Order:
    """Task of the process."""

    peer: str
    kind: str
    work: dict[str, Any]
    """Fields of :class:`benchmarks.peers.adapter.Work`."""
    report: str
    """JSON file to write. ``.ready`` next to it is written once the loader's modules are imported,
    ``.timed`` once the timed batches were delivered."""
    build: bool = False
    """Only write the samples in the loader's own format."""
    resume: str | None = None
    """File of a state to resume from."""
    save: str | None = None
    """File for the state after ``save_after`` batches."""
    save_after: int = 0
    move: int = 0
    """Number of batches by which the state is advanced before it is written."""
    batches: int | None = None
    """Number of batches after which to stop; None reads to the end."""
    digests: bool = False
    """Report the content of every batch."""
    timed: tuple[int, int] | None = None
    """Numbers of batches before the clock runs, and while it runs."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    report = carry_out(order)
    Path(order.report).write_text(json.dumps(report), encoding="utf-8")


def carry_out(order: Order) -> dict[str, Any]:
    from benchmarks.harness import quieten_peers
    from benchmarks.peers.adapter import Work

    quieten_peers()
    work = dict(order.work, folder=Path(order.work["folder"]))
    return _carry_out(order, Work(**{**work, "photographs": tuple(work["photographs"])}))


def _carry_out(order: Order, work: Any) -> dict[str, Any]:
    peer = entry_of(order.peer).load()
    if order.build:
        build = peer.build_photographs if order.kind == PHOTOGRAPHS else peer.build_numbers
        build(work)
        return {}
    state = None if order.resume is None else Path(order.resume).read_bytes()
    Path(order.report).with_suffix(".ready").touch()
    begin = peer.photographs if order.kind == PHOTOGRAPHS else peer.numbers
    started = time.monotonic()
    delivery = begin(work, state)
    report: dict[str, Any] = {"batches": []}
    count = 0
    warm_up, timed = order.timed or (0, 0)
    images = 0
    for batch in delivery.batches:
        count += 1
        now = time.monotonic()
        if count == 1:
            report["first_batch_at"] = now
            report["first_batch_seconds"] = now - started
        if timed and count > warm_up:
            images += len(batch[1])
        if timed and count == warm_up:
            clock, cpu = time.monotonic(), cpu_seconds(os.getsid(0))
        if timed and count == warm_up + timed:
            report["images_a_second"] = images / (now - clock)
            report["cpu_seconds_an_image"] = (cpu_seconds(os.getsid(0)) - cpu) / images
            Path(order.report).with_suffix(".timed").touch()
        if order.digests:
            report["batches"].append(_held(batch, order.kind))
        if order.save is not None and count == order.save_after:
            saved = delivery.state()
            report["state_bytes"] = len(saved)
            if order.move:
                saved = peer.moved(saved, work, order.move)
            Path(order.save).write_bytes(saved)
        if count == order.batches:
            break
    report["count"] = count
    return report


def _held(batch: Any, kind: str) -> dict[str, Any]:
    """Return the numbers of the samples, and a digest of the pixels."""
    import torch

    if kind == NUMBERS:
        return {"numbers": torch.as_tensor(batch).tolist()}
    from benchmarks.photograph_loaders import check_batch

    images, numbers = batch[0].contiguous(), torch.as_tensor(batch[1])
    check_batch("the loader", (images, numbers), len(numbers))
    digest = hashlib.blake2b(images.numpy().data, digest_size=16).hexdigest()
    return {"numbers": numbers.tolist(), "pixels": digest}


if __name__ == "__main__":
    main()
