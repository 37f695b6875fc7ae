"""Datasets that are read shard by shard, each from a cursor: one file a format."""

from stateful_gpu_loader.shards.sharded_dataset import EncodedShards, ShardedDataset

__all__ = ["EncodedShards", "ShardedDataset"]
