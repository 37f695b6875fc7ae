"""A DataLoader that brings back exactly the stream that was interrupted.

>>> from stateful_gpu_loader import StatefulGPULoader
>>> from stateful_gpu_loader import transforms as T
"""

from stateful_gpu_loader import transforms
from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.datasets import (
    Caffe2LMDBSource,
    CaffeLMDBSource,
    CallableSource,
    CocoSource,
    EncodedShards,
    FolderSource,
    MixedDataset,
    ParquetShards,
    ParquetSource,
    PreparedSource,
    RecordIOShards,
    RecordIOSource,
    ShardedDataset,
    Source,
    TarRecords,
    TarShards,
    TarSource,
    TFRecordShards,
    TFRecordSource,
)
from stateful_gpu_loader.engine.makers.collate import ragged_collate
from stateful_gpu_loader.engine.resume.rank_states import gather_state_dict, merge_state_dicts
from stateful_gpu_loader.engine.start_workers import start_workers
from stateful_gpu_loader.engine.stats import LoaderStats
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
    BalancedSampler,
    Blocks,
    DistributedShuffledSampler,
    LastBatchPolicy,
    MixtureSampler,
    RepeatedSampler,
    ShardSampler,
    ShuffledSampler,
    SubsetSampler,
    WeightedSampler,
)
from stateful_gpu_loader.tools.verify import verify_resume

__all__ = [
    "RNG",
    "BadSample",
    "BalancedSampler",
    "BatchInfo",
    "Blocks",
    "Caffe2LMDBSource",
    "CaffeLMDBSource",
    "CallableSource",
    "Checkpoint",
    "CheckpointError",
    "CheckpointNotFound",
    "CocoSource",
    "DistributedShuffledSampler",
    "EncodedShards",
    "FolderSource",
    "LastBatchPolicy",
    "LoaderError",
    "LoaderStats",
    "MissingDependency",
    "MixedDataset",
    "MixtureSampler",
    "NoSuchPlace",
    "ParquetShards",
    "ParquetSource",
    "PreparedSource",
    "RecordIOShards",
    "RecordIOSource",
    "RepeatedSampler",
    "SampleInfo",
    "ShardSampler",
    "ShardedDataset",
    "ShuffledSampler",
    "Source",
    "StateMismatch",
    "StatefulGPULoader",
    "SubsetSampler",
    "TFRecordShards",
    "TFRecordSource",
    "TarRecords",
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
