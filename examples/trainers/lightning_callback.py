"""A Lightning fit that an exception ends within an epoch, resumed by another Trainer.

Both trainers get the callback; everything else is as in Lightning's documentation. The batch of the
failed step comes again, and the rest is the same as in an uninterrupted run.

    python -m examples.trainers.lightning_callback  (needs the extras lightning and demo)
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.lightning import LoaderStateCallback


class Model(LightningModule):
    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.layer, self.fails_at, self.seen = torch.nn.Linear(3, 1), fails_at, []

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        if self.global_step == self.fails_at:
            raise RuntimeError(f"step {self.global_step} failed")
        self.seen.append((batch[1].tolist(), batch[0].numpy(force=True).tobytes()))
        return self.layer(batch[0].float().mean(dim=(2, 3)) / 255).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(folder: Path, *callbacks: Any, fails_at: int = -1, resume: Any = None) -> list[Any]:
    crop = [T.RandomResizedCrop(64), T.RandomHorizontalFlip()]
    source = FolderSource(folder / "photographs")
    loader = StatefulGPULoader(source, 8, shuffle=True, seed=1, num_workers=2, transform=crop)
    quiet: Any = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    callbacks = (LoaderStateCallback(), *callbacks)
    trainer = Trainer(max_epochs=2, callbacks=[*callbacks], default_root_dir=folder, **quiet)
    trainer.fit(model := Model(fails_at), loader, ckpt_path=resume, weights_only=True)
    return model.seen


with tempfile.TemporaryDirectory() as name:
    write_photographs((folder := Path(name)) / "photographs", files_per_class=6)
    undisturbed = train(folder)
    try:
        train(folder, OnExceptionCheckpoint(folder), fails_at=5)
    except RuntimeError as error:
        print(error)
    after = train(folder, resume=folder / "on_exception.ckpt")
rest = "the same" if after == undisturbed[5:] else "ANOTHER"
print(f"resumed after step 5: {len(after)} batches, numbers and pixels {rest}")
