"""Datasets of encoded images, with random access or by shard: a module or folder for each format.

``source.py`` has the base class for random access, ``sharded.py`` the base class for shards.
"""

from stateful_gpu_loader.datasets.arrays import ArraySource
from stateful_gpu_loader.datasets.caffe2_lmdb import Caffe2LMDBSource
from stateful_gpu_loader.datasets.caffe_lmdb import CaffeLMDBSource
from stateful_gpu_loader.datasets.callable import CallableSource
from stateful_gpu_loader.datasets.coco import CocoSource
from stateful_gpu_loader.datasets.folder import FolderSource
from stateful_gpu_loader.datasets.huggingface import HuggingFaceSource
from stateful_gpu_loader.datasets.mixture import MixedDataset
from stateful_gpu_loader.datasets.parquet.source import ParquetShards, ParquetSource
from stateful_gpu_loader.datasets.prepared import PreparedSource
from stateful_gpu_loader.datasets.recordio import RecordIOShards, RecordIOSource
from stateful_gpu_loader.datasets.sharded import EncodedShards, ShardedDataset
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.tar.shards import TarRecords, TarShards
from stateful_gpu_loader.datasets.tar.source import TarSource
from stateful_gpu_loader.datasets.tfrecord import TFRecordShards, TFRecordSource
from stateful_gpu_loader.datasets.wrapped import as_source

__all__ = [
    "ArraySource",
    "Caffe2LMDBSource",
    "CaffeLMDBSource",
    "CallableSource",
    "CocoSource",
    "EncodedShards",
    "FolderSource",
    "HuggingFaceSource",
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
