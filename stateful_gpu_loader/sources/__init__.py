"""Sources of encoded images: one file a format."""

from stateful_gpu_loader.sources.folder import FolderSource
from stateful_gpu_loader.sources.source import Source
from stateful_gpu_loader.sources.wrapped import as_source

__all__ = ["FolderSource", "Source", "as_source"]
