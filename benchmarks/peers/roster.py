"""Loaders to compare, with the facts needed before they are imported."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from benchmarks.peers.adapter import Peer
from benchmarks.results import is_installed

OURS = "ours"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A loader as its own documents recommend it."""

    name: str
    """Key in the JSON."""
    label: str
    """Name in the table."""
    module: str
    """Module that has to be installed."""
    adapter: str
    """Module and class."""
    method: str
    """Short description of the method."""
    guide: str
    """Documents that recommend the method."""
    note: str | None = None
    """Explanation of its figures, a whole sentence."""
    has_state: bool = True
    """Whether it has a state. Otherwise a resume begins the pass again and skips the seen
    batches."""
    has_format: bool = False
    """Whether it reads its own format, which has to be written first."""
    can_be_moved: bool = True
    """Whether a state can be advanced without reading; otherwise the epoch is walked through."""

    @property
    def is_installed(self) -> bool:
        return is_installed(self.module)

    def load(self) -> Peer:
        module, _, name = self.adapter.partition(":")
        peer: Peer = getattr(importlib.import_module(module), name)()
        return peer


ENTRIES = (
    Entry(
        name="ours",
        label="StatefulGPULoader",
        module="stateful_gpu_loader",
        adapter="benchmarks.peers.ours:Ours",
        method="its own source and transforms, in threads",
        guide="README.md",
    ),
    Entry(
        name="torch_pillow",
        label="DataLoader, Pillow",
        module="torch",
        adapter="benchmarks.peers.torch_loader:TorchPillow",
        method="Pillow and torchvision's v2, a seeded generator",
        guide="pytorch.org/docs, torch.utils.data and Reproducibility",
        has_state=False,
    ),
    Entry(
        name="torch_torchvision",
        label="DataLoader, torchvision",
        module="torch",
        adapter="benchmarks.peers.torch_loader:TorchTensors",
        method="torchvision's decoder and v2, a seeded generator",
        guide="pytorch.org/docs, torch.utils.data and Reproducibility",
        has_state=False,
    ),
    Entry(
        name="torchdata",
        label="StatefulDataLoader",
        module="torchdata",
        adapter="benchmarks.peers.torchdata_loader:Torchdata",
        method="torchvision's decoder and v2",
        guide="torchdata/stateful_dataloader/README.md",
    ),
    Entry(
        name="dali",
        label="DALI, CPU",
        module="nvidia.dali",
        adapter="benchmarks.peers.dali_loader:Dali",
        method="its file reader and operators, in threads",
        guide="docs.nvidia.com/deeplearning/dali, Checkpointing and Parallel External Source",
    ),
    Entry(
        name="spdl",
        label="SPDL",
        module="spdl.pipeline",
        adapter="benchmarks.peers.spdl_loader:Spdl",
        method="its pipeline of threads; torchvision's decoder, as its own needs FFmpeg; v2",
        guide="facebookresearch.github.io/spdl, Building High-Performance DataLoaders",
        has_state=False,
    ),
    Entry(
        name="webdataset",
        label="webdataset",
        module="webdataset",
        adapter="benchmarks.peers.webdataset_loader:Webdataset",
        method="tar files, Pillow and v2, a buffer of 1,000 samples shuffled, in WebLoader",
        guide="README.md of webdataset; its maintainers advise resampling instead of resuming",
        has_state=False,
        has_format=True,
    ),
    Entry(
        name="grain",
        label="Grain",
        module="grain",
        adapter="benchmarks.peers.grain_loader:Grain",
        method="grain.DataLoader, torchvision's decoder, its generators draw the crops",
        guide="google-grain.readthedocs.io, DataLoader tutorial",
    ),
    Entry(
        name="streaming",
        label="MosaicML Streaming",
        module="streaming",
        adapter="benchmarks.peers.streaming_loader:Streaming",
        method="MDS shards, Pillow and v2",
        guide="docs.mosaicml.com/projects/streaming, Main Concepts and Fast Resumption",
        has_format=True,
    ),
    Entry(
        name="litdata",
        label="LitData",
        module="litdata",
        adapter="benchmarks.peers.litdata_loader:LitData",
        method="optimized chunks, its decoder, v2",
        guide="README.md of litdata",
        has_format=True,
    ),
    Entry(
        name="datasets",
        label="Hugging Face datasets",
        module="datasets",
        adapter="benchmarks.peers.datasets_loader:HuggingFace",
        method="Parquet as an IterableDataset, Pillow and v2, in StatefulDataLoader",
        guide="huggingface.co/docs/datasets, Stream and Use with PyTorch",
        note=(
            "What the shuffle buffer of Hugging Face datasets holds is lost when it resumes, as "
            "the documents of IterableDataset.state_dict say. Its state is the places in all open "
            "files, which can only be reached by reading: 90 million samples of 100 million"
        ),
        can_be_moved=False,
        has_format=True,
    ),
)


def entry_of(name: str) -> Entry:
    return next(entry for entry in ENTRIES if entry.name == name)
