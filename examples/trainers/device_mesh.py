"""Four processes, two of which share each batch: tensor parallelism with a DeviceMesh, resumed.

The loader receives the mesh's data-parallel dimension. Ranks of one tensor-parallel group then
deliver the same batches, pixel for pixel. The state, gathered over that dimension, resumes under
another mesh: here one group of four replaces two groups of two. The same works for pipeline stages.

Needs `pip install 'stateful_gpu_loader[demo]'`.
"""

import tempfile
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader, gather_state_dict
from stateful_gpu_loader import transforms as T


def build(folder, mesh):
    size, rank = mesh["dp"].size(), mesh["dp"].get_local_rank()
    source, crop = FolderSource(folder / "photographs"), [T.RandomResizedCrop(64)]
    given = {"batch_size": 8 // size, "shuffle": True, "seed": 3, "transform": crop}
    return StatefulGPULoader(source, num_replicas=size, rank=rank, **given)


def job(rank, folder):
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    loader = build(folder, mesh)
    batches = iter(loader)
    next(batches)
    state = gather_state_dict(loader.state_dict(), group=mesh["dp"].get_group())
    one = on_every_rank(batches)
    wide = build(folder, init_device_mesh("cpu", (1, 4), mesh_dim_names=("dp", "tp")))
    wide.load_state_dict(state)
    four = on_every_rank(wide)
    if rank == 0:
        shared = one[0] == one[1] and one[2] == one[3] and four == [four[0]] * 4
        print("batches within a tensor-parallel group", "the same" if shared else "ANOTHER")
        steps = [sorted(first + second) for first, second in zip(one[0], one[2], strict=True)]
        resumed = "the same" if steps == [sorted(step) for step in four[0]] else "ANOTHER"
        print(f"resumed by one group of four: {len(steps)} batches {resumed}")
    dist.destroy_process_group()


def on_every_rank(batches):
    """Return the images of each batch as bytes, for each rank."""
    images = [[image.numpy().tobytes() for image in images] for images, _ in batches]
    dist.all_gather_object(gathered := [None] * 4, images)
    return gathered


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        write_photographs(Path(temporary, "photographs"), files_per_class=8)
        torch.multiprocessing.start_processes(job, (Path(temporary),), 4, start_method="fork")
