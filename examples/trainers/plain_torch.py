"""Model, optimizer and loader in one torch.save file, written within an epoch.

Safer here: `torch.load(weights_only=True)` reads the file, and the resumed run may have another
number of workers.
"""

import tempfile
from pathlib import Path

import torch

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T


def build(photos: Path, num_workers: int) -> dict:
    torch.manual_seed(0)
    model = torch.nn.Linear(3 * 32 * 32, 9)
    recipes = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    loader = StatefulGPULoader(
        FolderSource(photos), 4, True, seed=1, num_workers=num_workers, transform=recipes
    )
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "loader": loader}


def train(job: dict, path: Path, save_after: int | None = None) -> list[torch.Tensor]:
    seen = []
    for step, (images, labels) in enumerate(job["loader"], 1):
        job["optimizer"].zero_grad()
        outputs = job["model"](images.flatten(1) / 255)
        torch.nn.functional.cross_entropy(outputs, labels).backward()
        job["optimizer"].step()
        seen += [images, labels]
        if step == save_after:
            torch.save({name: part.state_dict() for name, part in job.items()}, path)
    return seen


def main(folder: Path) -> None:
    write_photographs(folder / "photos", files_per_class=4)
    original = build(folder / "photos", num_workers=0)
    seen = train(original, folder / "checkpoint.pt", save_after=4)[2 * 4 :]

    resumed = build(folder / "photos", num_workers=2)
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    for name, part in resumed.items():
        part.load_state_dict(saved[name])
    rest = train(resumed, folder / "checkpoint.pt")
    same = "the same" if all(map(torch.equal, seen, rest)) else "ANOTHER"
    print(f"resumed after step 4: {len(rest) // 2} batches, labels and pixels {same}")
    same = torch.equal(original["model"].weight, resumed["model"].weight)
    print("weights after the last step", "the same" if same else "ANOTHER")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
