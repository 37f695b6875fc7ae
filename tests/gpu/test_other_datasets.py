"""Shards, functions, and boxes that move with the pixels, resumed on a GPU from every batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import (
    CallableSource,
    CocoSource,
    StatefulGPULoader,
    TarShards,
    ragged_collate,
)
from tests.callables import FileBatches, Files
from tests.conformance import assert_exact_resume
from tests.datasets.coco.coco_files import write_coco
from tests.datasets.tar.tar_files import write_photo_tars
from tests.gpu.photos import RECIPES

pytestmark = pytest.mark.gpu

WORKERS: tuple[dict[str, Any], ...] = ({"num_workers": 2}, {"num_workers": 0})

Make = Callable[..., StatefulGPULoader[Any]]


def _shards(folder: Path) -> Make:
    paths = write_photo_tars(folder)

    def make(**changes: Any) -> StatefulGPULoader[Any]:
        return _on_gpu(TarShards(paths), shuffle=True, **changes)

    return make


def _function(folder: Path) -> Make:
    paths = sorted(folder.glob("*/*.jpg"))

    def make(**changes: Any) -> StatefulGPULoader[Any]:
        return _on_gpu(CallableSource(Files(paths), image=0), **changes)

    return make


def _function_of_batches(folder: Path) -> Make:
    paths = sorted(folder.glob("*/*.jpg"))

    def make(**changes: Any) -> StatefulGPULoader[Any]:
        source = CallableSource(FileBatches(paths), batch=True, image=0)
        return _on_gpu(source, **{**changes, "batch_size": None})

    return make


def _on_gpu(dataset: Any, **arguments: Any) -> StatefulGPULoader[Any]:
    given = {"batch_size": 3, "seed": 42, "device": "cuda", "transform": RECIPES, **arguments}
    return StatefulGPULoader(dataset, **given)


def test_shards_resume_on_any_workers(tmp_path: Path) -> None:
    assert_exact_resume(_shards(tmp_path), other=WORKERS)


@pytest.mark.parametrize("build", [_function, _function_of_batches])
def test_functions_resume_on_any_workers(photos: Path, build: Callable[[Path], Make]) -> None:
    assert_exact_resume(build(photos), other=WORKERS)


def test_boxes_and_masks_move_with_the_pixels(tmp_path: Path) -> None:
    folder, annotations = write_coco(tmp_path)

    def make(**changes: Any) -> StatefulGPULoader[Any]:
        source = CocoSource(folder, annotations, masks=True)
        return _on_gpu(source, shuffle=True, collate_fn=ragged_collate, **changes)

    assert_exact_resume(make, other=WORKERS)
