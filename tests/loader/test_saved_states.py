"""States of earlier versions always load, and resume exactly.

``python -m tests.loader.test_saved_states`` writes states of kinds that have none yet.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import FolderSource, StatefulGPULoader, ragged_collate
from stateful_gpu_loader import transforms as T
from tests.conformance import assert_same_rest, uninterrupted
from tests.images import write_photo_folder
from tests.map_datasets import Noisy, add_noise
from tests.stream_kinds import KINDS

SAVED = Path(__file__).with_name("saved_states.json")
EPOCHS = 2


def photographs(root: Path, **changes: Any) -> StatefulGPULoader[Any]:
    recipes = [
        T.RandomResizedCrop(24),
        T.RandomHorizontalFlip(),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
        T.TrivialAugmentWide(),
        T.Normalize([0.5, 0.5, 0.5], [0.2, 0.2, 0.2]),
        T.RandomErasing(),
    ]
    given = {"batch_size": 4, "shuffle": True, "seed": 7, "transform": recipes, **changes}
    return StatefulGPULoader(FolderSource(root), **given)


def damaged_photographs(root: Path) -> StatefulGPULoader[Any]:
    next(root.rglob("photo_001.jpg")).write_bytes(b"\xff\xd8\xff no image")
    return photographs(root, on_bad_sample="replace")


def added(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "noise": torch.rand(())}


def callables(root: Path) -> StatefulGPULoader[Any]:
    """Return a loader of two callables, called in turn."""
    return StatefulGPULoader(
        Noisy(23), batch_size=4, shuffle=True, seed=1, transform=[added, add_noise]
    )


OF_FOLDERS: dict[str, Callable[[Path], StatefulGPULoader[Any]]] = {
    "photographs": photographs,
    "photographs, MixUp": lambda root: photographs(root, batch_transform=T.MixUp(num_classes=3)),
    "photographs, a bad sample": damaged_photographs,
    "photographs, a list of targets": lambda root: photographs(root, collate_fn=ragged_collate),
    "several callables": callables,
}


def maker(kind: str, root: Path) -> Callable[[], StatefulGPULoader[Any]]:
    if kind in KINDS:
        return KINDS[kind]
    pytest.importorskip("torchcodec", reason="the states were saved with its decoder")
    write_photo_folder(root, num_classes=3, per_class=6)
    return lambda: OF_FOLDERS[kind](root)


def test_every_kind_has_saved_states() -> None:
    assert set(json.loads(SAVED.read_text())) >= {*KINDS, *OF_FOLDERS}


@pytest.mark.filterwarnings("ignore:.* are read again:UserWarning")
@pytest.mark.parametrize("kind", [*KINDS, *OF_FOLDERS])
def test_saved_states_resume_exactly(kind: str, tmp_path: Path) -> None:
    make = maker(kind, tmp_path)
    expected, _ = uninterrupted(make(), EPOCHS)
    for epoch, delivered, text in json.loads(SAVED.read_text())[kind]:
        loader = make()
        loader.set_state(text)
        assert_same_rest(loader, expected, (epoch, delivered), EPOCHS)


def _write() -> None:
    saved = json.loads(SAVED.read_text()) if SAVED.exists() else {}
    for kind in [*KINDS, *OF_FOLDERS]:
        if kind in saved:
            continue
        with tempfile.TemporaryDirectory() as folder:
            loader = maker(kind, Path(folder))()
            texts = []
            for epoch in range(EPOCHS):
                for delivered, _ in enumerate(loader, 1):
                    if delivered == 2 - epoch:
                        texts.append((epoch, delivered, loader.get_state()))
            saved[kind] = texts
    SAVED.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    _write()
