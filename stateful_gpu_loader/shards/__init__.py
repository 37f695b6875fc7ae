"""Datasets that are read shard by shard, each from a cursor: one file a format."""

from stateful_gpu_loader.shards.parquet import ParquetShards
from stateful_gpu_loader.shards.recordio import RecordIOShards
from stateful_gpu_loader.shards.sharded_dataset import EncodedShards, ShardedDataset
from stateful_gpu_loader.shards.tar import TarRecords, TarShards
from stateful_gpu_loader.shards.tfrecord import TFRecordShards

__all__ = [
    "EncodedShards",
    "ParquetShards",
    "RecordIOShards",
    "ShardedDataset",
    "TFRecordShards",
    "TarRecords",
    "TarShards",
]
