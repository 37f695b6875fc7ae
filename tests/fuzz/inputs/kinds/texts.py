"""Texts that list images: COCO's annotations, counts of shards, lists of files."""

from __future__ import annotations

import json
from pathlib import Path

from stateful_gpu_loader import CocoSource, FolderSource
from stateful_gpu_loader.datasets import TarRecords
from tests.datasets.coco.coco_files import annotations
from tests.datasets.tar.tar_files import sample_entries, tar_bytes
from tests.fuzz.inputs.kind import Kind
from tests.fuzz.inputs.kinds.json_texts import JsonTexts


class CocoFiles(JsonTexts):
    """COCO's boxes and masks, without the images."""

    name = "COCO annotations"
    share = 1
    warns = (UserWarning,)  # Annotations may name images that are not listed.

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "instances.json"
        whole = annotations()
        few = {**whole, "annotations": whole["annotations"][:3]}
        self.examples = [json.dumps(each).encode() for each in (whole, few)]

    def read(self, content: bytes, example: int) -> None:
        self._path.write_bytes(content)
        source = CocoSource(self.folder, self._path, masks=bool(example))
        for index in range(min(len(source), 20)):
            source.target(index), source.record(index), source.path(index)
        source.fingerprint()


class CountsFiles(JsonTexts):
    """``sizes.json`` and shard lists, as webdataset's tools write them."""

    name = "counts file"
    share = 1.5
    refusals = (ValueError, TypeError)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for number in range(2):
            (folder / f"{number}.tar").write_bytes(tar_bytes(sample_entries(0, 2)))
        self._path = folder / "sizes.json"
        shards = [{"url": f"{number}.tar", "nsamples": 2} for number in range(2)]
        self.examples = [
            json.dumps({"0.tar": 2, "1.tar": 2}).encode(),
            json.dumps({"__kind__": "wids", "shardlist": shards}).encode(),
        ]

    def read(self, content: bytes, example: int) -> None:
        self._path.write_bytes(content)
        shards = TarRecords([self.folder / f"{n}.tar" for n in range(2)], counts=self._path)
        for shard in shards.shards():
            shards.num_samples(shard)
        shards.fingerprint()


class FileLists(Kind):
    """DALI's and Caffe's file_list."""

    name = "file list"
    share = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "list.txt"
        self.examples = ["cats/tom the cat.jpg 0\ndogs/é.jpg 1\n# no\nx.jpg -7\n".encode()]

    def read(self, content: bytes, example: int) -> None:
        self._path.write_bytes(content)
        source = FolderSource.from_file_list(self._path, root=self.folder)
        source.fingerprint()


KINDS = (CocoFiles, CountsFiles, FileLists)
