"""A DataLoader that resumes an interrupted stream exactly.

The names here are those of a first program. Other samplers are in
:mod:`stateful_gpu_loader.samplers`, and base classes of datasets in
:mod:`stateful_gpu_loader.datasets`.

>>> from stateful_gpu_loader import StatefulGPULoader
>>> from stateful_gpu_loader import transforms as T
"""

import importlib
import threading
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateful_gpu_loader import transforms as transforms
    from stateful_gpu_loader.checkpoint import Checkpoint as Checkpoint
    from stateful_gpu_loader.datasets import ArraySource as ArraySource
    from stateful_gpu_loader.datasets import Caffe2LMDBSource as Caffe2LMDBSource
    from stateful_gpu_loader.datasets import CaffeLMDBSource as CaffeLMDBSource
    from stateful_gpu_loader.datasets import CallableSource as CallableSource
    from stateful_gpu_loader.datasets import CocoSource as CocoSource
    from stateful_gpu_loader.datasets import FolderSource as FolderSource
    from stateful_gpu_loader.datasets import HuggingFaceSource as HuggingFaceSource
    from stateful_gpu_loader.datasets import MixedDataset as MixedDataset
    from stateful_gpu_loader.datasets import ParquetShards as ParquetShards
    from stateful_gpu_loader.datasets import ParquetSource as ParquetSource
    from stateful_gpu_loader.datasets import PreparedSource as PreparedSource
    from stateful_gpu_loader.datasets import RecordIOShards as RecordIOShards
    from stateful_gpu_loader.datasets import RecordIOSource as RecordIOSource
    from stateful_gpu_loader.datasets import ShardedDataset as ShardedDataset
    from stateful_gpu_loader.datasets import TarShards as TarShards
    from stateful_gpu_loader.datasets import TarSource as TarSource
    from stateful_gpu_loader.datasets import TFRecordShards as TFRecordShards
    from stateful_gpu_loader.datasets import TFRecordSource as TFRecordSource
    from stateful_gpu_loader.engine.makers.collate import ragged_collate as ragged_collate
    from stateful_gpu_loader.engine.resume.rank_states import gather_state_dict as gather_state_dict
    from stateful_gpu_loader.engine.resume.rank_states import merge_state_dicts as merge_state_dicts
    from stateful_gpu_loader.engine.start_workers import start_workers as start_workers
    from stateful_gpu_loader.errors import BadSample as BadSample
    from stateful_gpu_loader.errors import CheckpointError as CheckpointError
    from stateful_gpu_loader.errors import CheckpointNotFound as CheckpointNotFound
    from stateful_gpu_loader.errors import LoaderError as LoaderError
    from stateful_gpu_loader.errors import MissingDependency as MissingDependency
    from stateful_gpu_loader.errors import NoSuchPlace as NoSuchPlace
    from stateful_gpu_loader.errors import StateMismatch as StateMismatch
    from stateful_gpu_loader.errors import UnsupportedLoader as UnsupportedLoader
    from stateful_gpu_loader.errors import UnsupportedTransform as UnsupportedTransform
    from stateful_gpu_loader.errors import WorkerLost as WorkerLost
    from stateful_gpu_loader.loader import StatefulGPULoader as StatefulGPULoader
    from stateful_gpu_loader.randomness.rng import RNG as RNG
    from stateful_gpu_loader.records import BatchInfo as BatchInfo
    from stateful_gpu_loader.records import SampleInfo as SampleInfo
    from stateful_gpu_loader.samplers import (
        DistributedShuffledSampler as DistributedShuffledSampler,
    )
    from stateful_gpu_loader.samplers import ShuffledSampler as ShuffledSampler
    from stateful_gpu_loader.samplers import WeightedSampler as WeightedSampler
    from stateful_gpu_loader.tools.verify import verify_resume as verify_resume

__version__ = "0.2.0"

_MODULE_OF = {
    "ArraySource": "datasets",
    "BadSample": "errors",
    "BatchInfo": "records",
    "Caffe2LMDBSource": "datasets",
    "CaffeLMDBSource": "datasets",
    "CallableSource": "datasets",
    "Checkpoint": "checkpoint",
    "CheckpointError": "errors",
    "CheckpointNotFound": "errors",
    "CocoSource": "datasets",
    "DistributedShuffledSampler": "samplers",
    "FolderSource": "datasets",
    "HuggingFaceSource": "datasets",
    "LoaderError": "errors",
    "MissingDependency": "errors",
    "MixedDataset": "datasets",
    "NoSuchPlace": "errors",
    "ParquetShards": "datasets",
    "ParquetSource": "datasets",
    "PreparedSource": "datasets",
    "RNG": "randomness.rng",
    "RecordIOShards": "datasets",
    "RecordIOSource": "datasets",
    "SampleInfo": "records",
    "ShardedDataset": "datasets",
    "ShuffledSampler": "samplers",
    "StateMismatch": "errors",
    "StatefulGPULoader": "loader",
    "TFRecordShards": "datasets",
    "TFRecordSource": "datasets",
    "TarShards": "datasets",
    "TarSource": "datasets",
    "UnsupportedLoader": "errors",
    "UnsupportedTransform": "errors",
    "WeightedSampler": "samplers",
    "WorkerLost": "errors",
    "gather_state_dict": "engine.resume.rank_states",
    "merge_state_dicts": "engine.resume.rank_states",
    "ragged_collate": "engine.makers.collate",
    "start_workers": "engine.start_workers",
    "verify_resume": "tools.verify",
}
"""Module that defines each public name. It is imported on first use, because torch takes seconds
to import and ``stateful-gpu-loader --help`` does not need it."""

_SUBPACKAGES = {
    "checkpoint",
    "datasets",
    "decoders",
    "engine",
    "errors",
    "loader",
    "randomness",
    "records",
    "samplers",
    "state",
    "tools",
    "transforms",
}
"""Modules that are attributes of the package without an import of their own."""

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

__all__ = ["transforms", *_MODULE_OF]

_IMPORTING = threading.RLock()
"""Held while modules are imported on first use. Threads that import modules of torch at the same
time may crash the process."""

if not TYPE_CHECKING:

    def _imported(module: str) -> Any:
        with _IMPORTING:
            return importlib.import_module(f"{__name__}.{module}")

    def __getattr__(name: str) -> Any:
        if name in _SUBPACKAGES:
            return _imported(name)
        if name in _MODULE_OF:
            globals()[name] = getattr(_imported(_MODULE_OF[name]), name)
            return globals()[name]
        if name not in _MOVED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = f"{__name__}.{_MOVED[name]}"
        warnings.warn(
            f"{__name__}.{name} is deprecated and will be removed in version 1.0. Remedy: "
            f"from {module} import {name}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(_imported(_MOVED[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
