"""An Accelerate loop that is interrupted within an epoch and resumed.

Safer here: `accelerator.prepare(loader)` would read the files without decoding them, and save no
place in the epoch. `prepare_loader` keeps the loader, and `save_state` its place after the batch in
use; `load_state` seeks, on any number of processes.

    python -m examples.trainers.accelerate_loop     (or: accelerate launch ...)
"""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.accelerate import prepare_loader


def train(photographs: Path, saved: Path, *, resume: bool, stop: bool) -> list[torch.Tensor]:
    """Train one epoch as in Accelerate's documentation, with `prepare_loader`; return its
    batches."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    recipes = [T.RandomResizedCrop(64), T.RandomHorizontalFlip()]
    loader = StatefulGPULoader(
        FolderSource(photographs), batch_size=4, shuffle=True, seed=1, transform=recipes
    )
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = prepare_loader(accelerator, loader)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if resume:
        accelerator.load_state(str(saved))
    batches = []
    for images, labels in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(images / 255), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        batches.append(torch.cat([images.flatten().float(), labels.float()]))
        if stop and len(batches) == 5:
            accelerator.save_state(str(saved))
            break
    return batches


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(photographs := Path(folder, "photographs"), files_per_class=6)
        saved = Path(folder, "saved")
        whole = train(photographs, saved, resume=False, stop=False)[5:]
        train(photographs, saved, resume=False, stop=True)
        rest = train(photographs, saved, resume=True, stop=False)
        same = len(rest) == len(whole) and all(map(torch.equal, rest, whole))
        print(f"resumed after batch 5: {len(rest)} batches, labels and pixels", end=" ")
        print("the same" if same else "ANOTHER")
