"""Datasets of encoded images, by index or shard by shard: one folder a format, or from a function.

``source.py`` is the base of those that are read by index, ``sharded.py`` of those that are read
shard by shard.
"""

from stateful_gpu_loader.datasets.callable import CallableSource
from stateful_gpu_loader.datasets.coco.source import CocoSource
from stateful_gpu_loader.datasets.folder.source import FolderSource
from stateful_gpu_loader.datasets.lmdb.caffe import CaffeLMDBSource
from stateful_gpu_loader.datasets.lmdb.caffe2_source import Caffe2LMDBSource
from stateful_gpu_loader.datasets.mixture import MixedDataset
from stateful_gpu_loader.datasets.parquet.shards import ParquetShards
from stateful_gpu_loader.datasets.parquet.source import ParquetSource
from stateful_gpu_loader.datasets.prepared.source import PreparedSource
from stateful_gpu_loader.datasets.recordio.source import RecordIOShards, RecordIOSource
from stateful_gpu_loader.datasets.sharded import EncodedShards, ShardedDataset
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.tar.shards import TarRecords, TarShards
from stateful_gpu_loader.datasets.tar.source import TarSource
from stateful_gpu_loader.datasets.tfrecord.source import TFRecordShards, TFRecordSource
from stateful_gpu_loader.datasets.wrapped import as_source

__all__ = [
    "Caffe2LMDBSource",
    "CaffeLMDBSource",
    "CallableSource",
    "CocoSource",
    "EncodedShards",
    "FolderSource",
    "MixedDataset",
    "ParquetShards",
    "ParquetSource",
    "PreparedSource",
    "RecordIOShards",
    "RecordIOSource",
    "ShardedDataset",
    "Source",
    "TFRecordShards",
    "TFRecordSource",
    "TarRecords",
    "TarShards",
    "TarSource",
    "as_source",
]
