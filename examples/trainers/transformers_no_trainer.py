"""A loop built as transformers' run_image_classification_no_trainer.py, killed and resumed.

python -m examples.trainers.transformers_no_trainer     (extras transformers, demo; datasets)
"""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from datasets import load_dataset
from torchvision import transforms
from transformers import ViTConfig, ViTForImageClassification

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import HuggingFaceSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.accelerate import prepare_loader


def as_model_input(batch: list) -> dict:
    return {"pixel_values": batch[0], "labels": batch[1]}


def train(folder: Path, num_workers: int, resume_step: int = 0, killed_at: int = 0) -> list:
    accelerator, seen = Accelerator(cpu=True), []
    rows = load_dataset("imagefolder", data_dir=folder / "photos", cache_dir=folder, split="train")
    source = HuggingFaceSource(rows, image="image", target="label")
    augment = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip()]
    augment += [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
    given = {"transform": T.from_torchvision(augment), "batch_transform": as_model_input}
    given |= {"batch_size": 8, "shuffle": True, "seed": 1, "num_workers": num_workers}
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(hidden_size=12, image_size=32, num_labels=9))
    loader = prepare_loader(accelerator, StatefulGPULoader(source, **given))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    if resume_step:
        accelerator.load_state(folder / "saved")
    for epoch in range(resume_step // 6, 2):
        for batch in accelerator.skip_first_batches(loader, max(resume_step - epoch * 6, 0)):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen.append(torch.cat([batch["pixel_values"].flatten(), batch["labels"], loss[None]]))
            if len(seen) == killed_at:
                accelerator.save_state(folder / "saved")
                return seen
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_photographs((folder := Path(name)) / "photos", files_per_class=5)
        whole = train(folder, num_workers=0)
        seen = train(folder, num_workers=2, killed_at=8)
        seen += train(folder, num_workers=1, resume_step=8)
        same = len(seen) == len(whole) and all(map(torch.equal, seen, whole))
        print("killed after step 8: images, labels and losses", "the same" if same else "ANOTHER")
