"""A module built as Lightning's domain_templates/imagenet.py, killed inside an epoch and resumed.

python -m examples.trainers.lightning_imagenet     (needs the extras lightning and demo)
"""

import tempfile
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.integrations.lightning import LoaderStateCallback


class ImageNetModel(LightningModule):
    def __init__(self, data_path: Path, workers: int) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 9))
        self.data_path, self.workers, self.seen = data_path, workers, []

    def setup(self, stage: str) -> None:
        steps = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip()]
        steps += [transforms.ToTensor(), transforms.Normalize([0.485] * 3, [0.229] * 3)]
        self.train_dataset = datasets.ImageFolder(self.data_path, transforms.Compose(steps))

    def train_dataloader(self) -> StatefulGPULoader:
        loader = DataLoader(self.train_dataset, 8, shuffle=True, num_workers=self.workers)
        return StatefulGPULoader.from_dataloader(loader, seed=1)

    def training_step(self, batch: list, batch_idx: int) -> torch.Tensor:
        self.seen += batch
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(photos: Path, folder: Path, workers: int, max_steps: int, ckpt_path=None) -> list:
    saver = ModelCheckpoint(folder, every_n_train_steps=1, save_last=True)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(max_steps=max_steps, callbacks=[saver, LoaderStateCallback()], **quiet)
    trainer.fit(model := ImageNetModel(photos, workers), ckpt_path=ckpt_path, weights_only=True)
    return model.seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_photographs(photos := Path(name, "photos"), files_per_class=4)
        whole = fit(photos, Path(name, "whole"), workers=0, max_steps=10)
        seen = fit(photos, Path(name, "killed"), workers=2, max_steps=7)
        last = Path(name, "killed", "last.ckpt")
        seen += fit(photos, Path(name, "resumed"), workers=1, max_steps=10, ckpt_path=last)
        same = len(seen) == len(whole) and all(map(torch.equal, seen, whole))
        print("killed in epoch 1: images and labels", "the same" if same else "ANOTHER")
