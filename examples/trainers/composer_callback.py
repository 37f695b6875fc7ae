"""Composer's Trainer, stopped in the middle of its second epoch and resumed from its checkpoint.

Beside what Composer's guide shows, there is one callback more. It keeps the places of the loaders
in the checkpoint, and a new trainer seeks them; Composer alone reads all batches of the epoch again
to get there. What the steps were given is compared with a run that nobody stopped.

Composer pins an older torch than this package; docs/trainers/composer.md has the way around.
"""

import tempfile
from pathlib import Path

import torch
from composer import Callback, Trainer
from composer.models import ComposerClassifier

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.composer import LoaderStateCallback


class Notes(Callback):
    def __init__(self):
        self.batches = []

    def batch_start(self, state, logger):
        images, labels = state.batch
        self.batches.append((labels.tolist(), images.numpy(force=True).tobytes()))


def train(photographs: Path, duration: str, **arguments) -> tuple[list, torch.Tensor]:
    crop = [T.RandomResizedCrop(64), T.ToDtype(torch.float32, scale=True)]
    given = {"batch_size": 4, "shuffle": True, "seed": 7, "transform": crop}
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(48, 16))
    notes = Notes()
    trainer = Trainer(
        model=ComposerClassifier(net, num_classes=16),
        optimizers=torch.optim.SGD(net.parameters(), lr=0.1),
        train_dataloader=StatefulGPULoader(FolderSource(photographs), **given),
        max_duration=duration,
        callbacks=[LoaderStateCallback(), notes],
        progress_bar=False,
        **arguments,
    )
    trainer.fit()
    return notes.batches, net[2].weight.detach()


with tempfile.TemporaryDirectory() as folder:
    write_photographs(photographs := Path(folder, "photographs"), files_per_class=4)
    undisturbed, weights = train(photographs, "2ep")
    stop = 7 * len(undisturbed) // 10
    before, _ = train(photographs, f"{stop}ba", save_folder=folder, save_filename="stopped.pt")
    after, resumed = train(photographs, "2ep", load_path=f"{folder}/stopped.pt")
batches = "the same" if before + after == undisturbed else "ANOTHER"
print(f"resumed after step {stop}: {len(after)} batches {batches}")
print("weights", "the same" if torch.equal(weights, resumed) else "ANOTHER")
