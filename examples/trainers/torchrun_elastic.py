"""A torchrun job that is killed and resumed with another number of processes: 4, 2, 3.

Safer here: all processes together get the batches of one process, a killed step's batch again.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T


def build(folder: Path, size: int, **ranks: str) -> StatefulGPULoader:
    source, recipes = FolderSource(folder / "photos"), [T.RandomResizedCrop(32)]
    return StatefulGPULoader(source, 12 // size, True, seed=1, transform=recipes, **ranks)


def train(folder: Path, die_at: int) -> None:
    dist.init_process_group("gloo")
    loader = build(folder, dist.get_world_size(), num_replicas="auto")
    if (folder / "newest.pt").exists():
        loader.load_state_dict(torch.load(folder / "newest.pt", weights_only=True))
    for images, _ in loader:
        step = loader.state_dict()["position"] // 12
        dist.all_reduce(total := images.sum())  # here: forward, backward and optimizer
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if dist.get_rank() == 0:
            (folder / f"{step}.txt").write_text(str(total))
            torch.save(loader.state_dict(), folder / "part")
            os.replace(folder / "part", folder / "newest.pt")
    dist.destroy_process_group()


def main(folder: Path) -> None:
    write_photographs(folder / "photos", files_per_class=8)
    for size, die_at in ((4, 2), (2, 4), (3, -1)):
        run = ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
        command = [sys.executable, "-m", *run, __file__, str(folder), str(die_at)]
        status = subprocess.run(command, stderr=subprocess.DEVNULL).returncode
        print(f"{size} processes", "killed" if status else "to the end")
    seen = [path.read_text() for path in sorted(folder.glob("*.txt"))]
    wanted = [str(images.sum()) for images, _ in build(folder, 1)]
    print(f"{len(seen)} steps: sums of pixels", "the same" if seen == wanted else "ANOTHER")


if __name__ == "__main__" and "RANK" in os.environ:
    train(Path(sys.argv[1]), int(sys.argv[2]))
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
