"""A DataLoader that brings back exactly the stream that was interrupted.

>>> from stateful_gpu_loader import StatefulGPULoader
>>> from stateful_gpu_loader import transforms as T
"""

from stateful_gpu_loader import transforms
from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.collating import ragged_collate
from stateful_gpu_loader.errors import (
    BadSample,
    CheckpointError,
    CheckpointNotFound,
    LoaderError,
    MissingDependency,
    StateMismatch,
    WorkerLost,
)
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.mixture import MixedDataset
from stateful_gpu_loader.rank_states import gather_state_dict, merge_state_dicts
from stateful_gpu_loader.records import BatchInfo, SampleInfo
from stateful_gpu_loader.rng import RNG
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
from stateful_gpu_loader.shards import (
    EncodedShards,
    ParquetShards,
    RecordIOShards,
    ShardedDataset,
    TarRecords,
    TarShards,
    TFRecordShards,
)
from stateful_gpu_loader.sources import (
    Caffe2LMDBSource,
    CaffeLMDBSource,
    CallableSource,
    CocoSource,
    FolderSource,
    ParquetSource,
    RecordIOSource,
    TarSource,
    TFRecordSource,
)
from stateful_gpu_loader.starting import start_workers

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
    "MissingDependency",
    "MixedDataset",
    "MixtureSampler",
    "ParquetShards",
    "ParquetSource",
    "RecordIOShards",
    "RecordIOSource",
    "RepeatedSampler",
    "SampleInfo",
    "ShardSampler",
    "ShardedDataset",
    "ShuffledSampler",
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
]

__version__ = "0.1.0"
