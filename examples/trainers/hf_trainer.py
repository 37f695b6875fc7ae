"""The Trainer of transformers on this loader, stopped within an epoch and resumed.

Safer here: the Trainer saves nothing of its loader and reads all earlier batches again, with other
random crops. `LoaderTrainer` writes the place into each checkpoint and seeks.

    python -m examples.trainers.hf_trainer
"""

import tempfile
from pathlib import Path

import torch
from transformers import TrainingArguments

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.transformers import LoaderTrainer


class Colours(torch.nn.Module):
    """Classifies images by their mean colours, and keeps its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = torch.nn.Linear(3, 9), list[torch.Tensor]()

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(torch.cat([pixel_values.flatten(), labels]))
        logits = self.linear(pixel_values.float().mean(dim=(2, 3)) / 255)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels)}


def train(photographs: Path, run: Path, steps: int, resume: bool = False) -> list[torch.Tensor]:
    loader = StatefulGPULoader(
        FolderSource(photographs),
        batch_size=4,
        shuffle=True,
        seed=1,
        transform=[T.RandomResizedCrop(64), T.RandomHorizontalFlip()],
        batch_transform=lambda batch: {"pixel_values": batch[0], "labels": batch[1]},
    )
    chosen = {"save_steps": 5, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(str(run), max_steps=steps, **chosen)
    model = Colours()
    trainer = LoaderTrainer(model=model, args=arguments, train_loader=loader)
    trainer.train(resume_from_checkpoint=resume)
    return model.seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(photographs := Path(folder, "photographs"), files_per_class=6)
        whole = train(photographs, Path(folder, "whole"), steps=12)[5:]
        train(photographs, Path(folder, "run"), steps=5)
        rest = train(photographs, Path(folder, "run"), steps=12, resume=True)
        same = len(rest) == len(whole) and all(map(torch.equal, rest, whole))
        print(f"resumed after step 5: {len(rest)} batches, labels and pixels", end=" ")
        print("the same" if same else "ANOTHER")
