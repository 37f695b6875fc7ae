"""timm's loader and saver as in its train.py, killed inside an epoch and resumed.

python -m examples.trainers.timm_train     (needs the extra demo, and timm)
"""

import argparse
import tempfile
from pathlib import Path

import torch
from timm.data import create_dataset, create_loader
from timm.utils import CheckpointSaver

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import StatefulGPULoader


def make_loader(photos: Path, num_workers: int):
    dataset = create_dataset("", root=photos, is_training=True, batch_size=8)
    given = {"input_size": (3, 32, 32), "is_training": True, "device": torch.device("cpu")}
    loader = create_loader(dataset, batch_size=8, num_workers=num_workers, **given)
    loader.loader = StatefulGPULoader.from_dataloader(loader.loader, collate_fn=None, seed=1)
    return loader


def train(photos: Path, num_workers: int, killed_at=None, resume: Path | None = None) -> list:
    loader, seen = make_loader(photos, num_workers), []
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    args = argparse.Namespace(model="linear")
    saver = CheckpointSaver(model, optimizer, args, recovery_dir=photos.parent)
    if resume is not None:
        checkpoint = torch.load(resume, weights_only=False)
        loader.loader.load_state_dict(checkpoint["args"].loader)
        model.load_state_dict(checkpoint["state_dict"])
    for epoch in range(loader.loader.epoch, 2):
        for batch_idx, (images, target) in enumerate(loader, loader.loader.batches_done):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), target).backward()
            optimizer.step()
            seen += [images, target, *(part.detach().clone() for part in model.parameters())]
            is_last = batch_idx + 1 == len(loader)
            args.loader = loader.loader.state_dict(batches_ago=0 if is_last else 1)
            saver.save_recovery(epoch, batch_idx=batch_idx)
            if (epoch, batch_idx) == killed_at:
                break
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_photographs(photos := Path(name, "photos"), files_per_class=6)
        whole = train(photos, num_workers=0)
        seen = train(photos, num_workers=2, killed_at=(1, 2))
        seen += train(photos, num_workers=1, resume=Path(name, "recovery-1-2.pth.tar"))
        same = len(seen) == len(whole) and all(map(torch.equal, seen, whole))
        print("killed in epoch 1: images, labels and weights", "the same" if same else "ANOTHER")
