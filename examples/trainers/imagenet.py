"""A training script over ImageFolder and DataLoader, with one line for the fast path.

Safer here: a checkpoint inside an epoch resumes with the next batch, on another number of workers.
"""

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import StatefulGPULoader


def build(photos: Path, num_workers: int) -> dict:
    steps = [
        transforms.RandomResizedCrop(32),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
    dataset = ImageFolder(photos, transforms.Compose(steps))
    loader = DataLoader(dataset, 8, shuffle=True, num_workers=num_workers)
    loader = StatefulGPULoader.from_dataloader(loader, seed=1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 9))
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "loader": loader}


def train(job: dict, epochs: int, path: Path, killed_at: tuple | None = None) -> list:
    model, optimizer, loader = job.values()
    seen = []
    for epoch in range(loader.epoch, epochs):
        for i, (images, target) in enumerate(loader, loader.batches_done):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), target).backward()
            optimizer.step()
            seen += [images, target]
            if (epoch, i) == killed_at:
                torch.save({name: part.state_dict() for name, part in job.items()}, path)
                return seen
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(photos := Path(folder, "photos"), files_per_class=4)
        path = Path(folder, "checkpoint.pth")
        whole = train(build(photos, num_workers=0), 2, path)
        seen = train(build(photos, num_workers=2), 2, path, killed_at=(1, 1))
        resumed = build(photos, num_workers=1)
        for name, saved in torch.load(path).items():
            resumed[name].load_state_dict(saved)
        seen += train(resumed, 2, path)
        same = len(seen) == len(whole) and all(map(torch.equal, seen, whole))
        print("killed in epoch 1: images and labels", "the same" if same else "ANOTHER")
