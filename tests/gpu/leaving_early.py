"""A program that ends in the middle of an epoch.

``python -m tests.gpu.leaving_early FOLDER HOW``
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.gpu.photos import make_loader

HOW = {
    "falls off the end": (0,),
    "sys.exit": (3,),
    "exception": (1,),
    "interrupt": (-signal.SIGINT, 128 + signal.SIGINT, 1),
    "processes": (0,),
}
"""Ways for the program to end, and their allowed exit codes.

Python exits with 1 after an interrupt if any text has run as code since, such as a kernel's
compiler in another thread.
"""


def main() -> None:
    """Print ``one batch`` and exit, with batches in flight."""
    root, how = Path(sys.argv[1]), sys.argv[2]
    worker_type = "process" if how == "processes" else "auto"
    loader = make_loader(root, num_workers=2, prefetch_factor=4, worker_type=worker_type)
    batches = iter(loader)
    next(batches)
    print("one batch", flush=True)
    if how == "sys.exit":
        sys.exit(3)
    if how == "exception":
        raise RuntimeError("the user's own")
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        for _ in batches:
            pass


if __name__ == "__main__":
    main()
