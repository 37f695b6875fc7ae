"""Names of classes and functions that are the same in every process and in later versions."""

from __future__ import annotations

import sys
from typing import Any

_MOVED = {
    f"stateful_gpu_loader.{now}": f"stateful_gpu_loader.{before}"
    for now, before in {
        "engine.makers.collate.ragged_collate": "collating.ragged_collate",
        "engine.plan.Chain": "engine.choice.Chain",
        "datasets.caffe2_lmdb.Caffe2LMDBSource": "datasets.lmdb.caffe2_source.Caffe2LMDBSource",
        "datasets.caffe_lmdb.CaffeLMDBSource": "datasets.lmdb.caffe.CaffeLMDBSource",
        "datasets.coco.CocoSource": "datasets.coco.source.CocoSource",
        "datasets.folder.FolderSource": "datasets.folder.source.FolderSource",
        "datasets.framed.FramedShards": "datasets.framed.shards.FramedShards",
        "datasets.framed.FramedSource": "datasets.framed.source.FramedSource",
        "datasets.lmdb.LmdbSource": "datasets.lmdb.source.LmdbSource",
        "datasets.parquet.source.ParquetShards": "datasets.parquet.shards.ParquetShards",
        "datasets.prepared.PreparedSource": "datasets.prepared.source.PreparedSource",
        "datasets.recordio.RecordIOShards": "datasets.recordio.source.RecordIOShards",
        "datasets.recordio.RecordIOSource": "datasets.recordio.source.RecordIOSource",
        "datasets.tfrecord.TFRecordShards": "datasets.tfrecord.source.TFRecordShards",
        "datasets.tfrecord.TFRecordSource": "datasets.tfrecord.source.TFRecordSource",
        "datasets.sharded.FileShards": "datasets.file_shards.FileShards",
        "samplers.shuffled.DistributedShuffledSampler": (
            "samplers.distributed.DistributedShuffledSampler"
        ),
        "transforms.geometry.crops.RandomResizedCrop": (
            "transforms.geometry.random_resized_crop.RandomResizedCrop"
        ),
        "transforms.policies.AugmentPolicy": "transforms.policies.recipes.AugmentPolicy",
        "transforms.policies.RandAugment": "transforms.policies.recipes.RandAugment",
        "transforms.policies.TrivialAugmentWide": "transforms.policies.recipes.TrivialAugmentWide",
        "transforms.recipe.BatchRecipe": "transforms.batch_recipe.BatchRecipe",
    }.items()
}
"""Former names of moved classes in saved states."""

_NAMED = {
    "torch",
    "torchvision",
    "torchdata",
    "numpy",
    "PIL",
    "albumentations",
    "stateful_gpu_loader",
}
"""Packages, besides Python's, whose functions are identified by name and version."""


def name_of(thing: Any, attribute: str = "") -> str:
    """Return the qualified name, without known packages' private modules."""
    module = getattr(thing, "__module__", None) or "builtins"
    if module == "__mp_main__":
        module = "__main__"  # the same script in a spawned process
    if is_named(thing):
        module = ".".join(part for part in module.split(".") if not part.startswith("_"))
    name = getattr(thing, "__qualname__", None) or thing.__name__
    first, *inner = name.split(".")
    outermost = f"{module}.{first}" if module else first
    return ".".join(part for part in (_MOVED.get(outermost, outermost), *inner, attribute) if part)


def package_of(thing: Any) -> str:
    """Return the package that defines a class or function."""
    return (getattr(thing, "__module__", None) or "builtins").partition(".")[0]


def is_named(thing: Any) -> bool:
    """Whether name and package version identify a function."""
    return package_of(thing) in _NAMED or package_of(thing) in sys.stdlib_module_names


def comes_from(thing: Any, package: str) -> bool:
    """Whether a package defines an object's class or one of its bases."""
    return any(package_of(cls) == package for cls in type(thing).__mro__)
