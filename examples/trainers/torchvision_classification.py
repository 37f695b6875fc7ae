"""A script built as torchvision's references/classification/train.py, killed and resumed.

The sampler, the preset, MixUp and CutMix and a checkpoint for each epoch are as in the reference.

    python -m examples.trainers.torchvision_classification     (needs the extra demo)
"""

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, RandomSampler, default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import StatefulGPULoader


class Preset:
    def __init__(self, crop_size: int) -> None:
        crop = [v2.RandomResizedCrop(crop_size, antialias=True), v2.RandomHorizontalFlip(0.5)]
        numbers = [v2.PILToTensor(), v2.ToDtype(torch.float, scale=True)]
        normalize = v2.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        steps = [*crop, v2.TrivialAugmentWide(), *numbers, normalize, v2.RandomErasing(p=0.1)]
        self.transforms = v2.Compose(steps)

    def __call__(self, image: object) -> torch.Tensor:
        return self.transforms(image)


def collate_fn(samples: list) -> tuple:
    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=9), v2.CutMix(num_classes=9)])
    return mix(*default_collate(samples))


def train(photos: Path, path: Path, num_workers: int, epochs: int) -> list:
    dataset = ImageFolder(photos, Preset(32))
    parts = {"sampler": RandomSampler(dataset), "collate_fn": collate_fn}
    loader = DataLoader(dataset, batch_size=8, num_workers=num_workers, **parts)
    loader = StatefulGPULoader.from_dataloader(loader, seed=1)
    if path.exists():
        loader.load_state_dict(torch.load(path)["loader"])
    seen = []
    for _ in range(loader.epoch, epochs):
        seen += [part for batch in loader for part in batch]
        torch.save({"loader": loader.state_dict()}, path)
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(photos := Path(folder, "photos"), files_per_class=4)
        whole = train(photos, Path(folder, "whole.pth"), num_workers=0, epochs=3)
        seen = train(photos, path := Path(folder, "model.pth"), num_workers=2, epochs=1)
        seen += train(photos, path, num_workers=1, epochs=3)
        same = len(seen) == len(whole) and all(map(torch.equal, seen, whole))
        print("killed after epoch 0: images and mixed labels", "the same" if same else "ANOTHER")
