"""A training loop of Lightning Fabric, interrupted in its second epoch and resumed.

It differs from Fabric's own loop in one line: `setup_dataloaders(fabric, loader)` instead of
`fabric.setup_dataloaders(loader)`. The loader then goes into the dictionary for `fabric.save` and
`fabric.load`, like the model. The resumed job starts with a new model and loader. It consumes the
same photographs with the same crops as an uninterrupted job, and ends with the same weights.

Needs `pip install 'stateful_gpu_loader[lightning,demo]'`.
"""

import tempfile
from pathlib import Path

import torch
from lightning.fabric import Fabric

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.fabric import setup_dataloaders


def train(photographs: Path, path: Path, stop: int = 0, resume: bool = False):
    """Train two epochs; return the batches of each step and the final weights."""
    fabric = Fabric(accelerator="auto", devices=1)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 16)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    crop = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    source = FolderSource(photographs)
    loader = StatefulGPULoader(source, batch_size=4, shuffle=True, seed=7, transform=crop)
    loader = setup_dataloaders(fabric, loader)
    state = {"loader": loader, "model": model, "optimizer": optimizer, "epoch": 0, "step": 0}
    if resume:
        fabric.load(path, state)
    consumed = []
    for epoch in range(state["epoch"], 2):
        state["epoch"] = epoch
        for images, labels in loader:
            consumed.append((labels.tolist(), images.numpy(force=True).tobytes()))
            loss = torch.nn.functional.cross_entropy(model(images.float().mean((2, 3))), labels)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            state["step"] += 1
            if state["step"] == stop:
                fabric.save(path, state)
                return consumed, []
    return consumed, [parameter.tolist() for parameter in model.parameters()]


with tempfile.TemporaryDirectory() as folder:
    write_photographs(photographs := Path(folder, "photographs"), files_per_class=4)
    undisturbed, weights = train(photographs, path := Path(folder, "state.ckpt"))
    before, _ = train(photographs, path, stop=7 * len(undisturbed) // 10)
    after, resumed_weights = train(photographs, path, resume=True)
batches = "the same" if before + after == undisturbed else "ANOTHER"
print(f"resumed after step {len(before)}: {len(after)} batches {batches}")
print("weights", "the same" if weights == resumed_weights else "ANOTHER")
