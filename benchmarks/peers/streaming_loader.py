"""MosaicML Streaming: MDS shards in StreamingDataset and StreamingDataLoader."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from PIL import Image
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from benchmarks.peers.adapter import SEED, Delivery, Peer, Work, from_bytes, loaded, to_bytes
from benchmarks.peers.torch_loader import pillow_transform

_NUMBERS_A_SHARD = 80_000


class Streaming(Peer):
    """A StreamingDataset whose items are transformed."""

    def build_photographs(self, work: Work) -> None:
        columns = {"image": "jpeg", "number": "int"}
        with MDSWriter(out=str(work.folder), columns=columns) as writer:
            for number, file in enumerate(work.files):
                writer.write({"image": Image.open(file), "number": number})

    def build_numbers(self, work: Work) -> None:
        """Write one shard and link the others to it, because only the index matters."""
        size = min(_NUMBERS_A_SHARD, work.num_samples)
        with MDSWriter(out=str(work.folder), columns={"number": "int"}, size_limit=None) as writer:
            for number in range(size):
                writer.write({"number": number})
        path = work.folder / "index.json"
        index = json.loads(path.read_text(encoding="utf-8"))
        (shard,) = index["shards"]
        name = shard["raw_data"]["basename"]
        for number in range(1, work.num_samples // size):
            link = f"shard.{number:05d}.mds"
            os.link(work.folder / name, work.folder / link)
            index["shards"].append({**shard, "raw_data": {**shard["raw_data"], "basename": link}})
        path.write_text(json.dumps(index), encoding="utf-8")

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        return loaded(_loader(_Photographs(**_options(work)), work), state)

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        return loaded(_loader(_Numbers(**_options(work)), work), state)

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        found = from_bytes(state)
        found["sample_in_epoch"] += batches * work.batch_size
        return to_bytes(found)


def _options(work: Work) -> dict[str, Any]:
    clean_stale_shared_memory()
    return {
        "local": str(work.folder),
        "shuffle": True,
        "shuffle_seed": SEED,
        "batch_size": work.batch_size,
    }


def _loader(dataset: Any, work: Work) -> Any:
    torch.manual_seed(SEED)
    return StreamingDataLoader(dataset, batch_size=work.batch_size, num_workers=work.num_workers)


class _Photographs(StreamingDataset):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._transform = pillow_transform()

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return self._transform(sample["image"]), sample["number"]


class _Numbers(StreamingDataset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)["number"]
