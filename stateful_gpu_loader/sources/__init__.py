"""Sources of encoded images: by index, one file a format, or from a function."""

from stateful_gpu_loader.sources.callable import CallableSource
from stateful_gpu_loader.sources.coco import CocoSource
from stateful_gpu_loader.sources.folder import FolderSource
from stateful_gpu_loader.sources.lmdb_caffe import CaffeLMDBSource
from stateful_gpu_loader.sources.lmdb_caffe2 import Caffe2LMDBSource
from stateful_gpu_loader.sources.parquet import ParquetSource
from stateful_gpu_loader.sources.recordio import RecordIOSource
from stateful_gpu_loader.sources.source import Source
from stateful_gpu_loader.sources.tar import TarSource
from stateful_gpu_loader.sources.tfrecord import TFRecordSource
from stateful_gpu_loader.sources.wrapped import as_source

__all__ = [
    "Caffe2LMDBSource",
    "CaffeLMDBSource",
    "CallableSource",
    "CocoSource",
    "FolderSource",
    "ParquetSource",
    "RecordIOSource",
    "Source",
    "TFRecordSource",
    "TarSource",
    "as_source",
]
