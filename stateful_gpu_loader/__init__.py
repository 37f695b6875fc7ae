"""A DataLoader that brings back exactly the stream that was interrupted.

The names here are those of a first program. Other samplers are in
:mod:`stateful_gpu_loader.samplers`, and base classes of datasets in
:mod:`stateful_gpu_loader.datasets`.

>>> from stateful_gpu_loader import StatefulGPULoader
>>> from stateful_gpu_loader import transforms as T
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from stateful_gpu_loader import transforms
from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.datasets import (
    Caffe2LMDBSource,
    CaffeLMDBSource,
    CallableSource,
    CocoSource,
    FolderSource,
    MixedDataset,
    ParquetShards,
    ParquetSource,
    PreparedSource,
    RecordIOShards,
    RecordIOSource,
    ShardedDataset,
    TarShards,
    TarSource,
    TFRecordShards,
    TFRecordSource,
)
from stateful_gpu_loader.engine.makers.collate import ragged_collate
from stateful_gpu_loader.engine.resume.rank_states import gather_state_dict, merge_state_dicts
from stateful_gpu_loader.engine.start_workers import start_workers
from stateful_gpu_loader.errors import (
    BadSample,
    CheckpointError,
    CheckpointNotFound,
    LoaderError,
    MissingDependency,
    NoSuchPlace,
    StateMismatch,
    WorkerLost,
)
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.randomness.rng import RNG
from stateful_gpu_loader.records import BatchInfo, SampleInfo
from stateful_gpu_loader.samplers import (
    DistributedShuffledSampler,
    ShuffledSampler,
    WeightedSampler,
)
from stateful_gpu_loader.tools.verify import verify_resume

__all__ = [
    "RNG",
    "BadSample",
    "BatchInfo",
    "Caffe2LMDBSource",
    "CaffeLMDBSource",
    "CallableSource",
    "Checkpoint",
    "CheckpointError",
    "CheckpointNotFound",
    "CocoSource",
    "DistributedShuffledSampler",
    "FolderSource",
    "LoaderError",
    "MissingDependency",
    "MixedDataset",
    "NoSuchPlace",
    "ParquetShards",
    "ParquetSource",
    "PreparedSource",
    "RecordIOShards",
    "RecordIOSource",
    "SampleInfo",
    "ShardedDataset",
    "ShuffledSampler",
    "StateMismatch",
    "StatefulGPULoader",
    "TFRecordShards",
    "TFRecordSource",
    "TarShards",
    "TarSource",
    "WeightedSampler",
    "WorkerLost",
    "gather_state_dict",
    "merge_state_dicts",
    "ragged_collate",
    "start_workers",
    "transforms",
    "verify_resume",
]

__version__ = "0.2.0"

_MOVED = {
    "BalancedSampler": "samplers",
    "Blocks": "samplers",
    "EncodedShards": "datasets",
    "LastBatchPolicy": "samplers",
    "LoaderStats": "engine.stats",
    "MixtureSampler": "samplers",
    "RepeatedSampler": "samplers",
    "ShardSampler": "samplers",
    "Source": "datasets",
    "SubsetSampler": "samplers",
    "TarRecords": "datasets",
}
"""Modules of the names that were here in version 0.2; they stay importable from here until 1.0."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MOVED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = f"{__name__}.{_MOVED[name]}"
        warnings.warn(
            f"{__name__}.{name} is deprecated and will be removed in version 1.0. Remedy: "
            f"from {module} import {name}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(module), name)
