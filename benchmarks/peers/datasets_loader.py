"""Hugging Face datasets: Parquet files as an IterableDataset in StatefulDataLoader."""

from __future__ import annotations

import os
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers.adapter import SEED, Delivery, Peer, Work, loaded
from benchmarks.peers.torch_loader import pillow_transform

_NUM_FILES = 80
"""Minimum number of files: a shuffle reads ten at a time, so workers see only a tenth of them."""
_NUMBERS_A_FILE = 80_000


class HuggingFace(Peer):
    """A shuffled stream of Parquet files, mapped."""

    def build_photographs(self, work: Work) -> None:
        columns = datasets.Features({"image": datasets.Image(), "number": datasets.Value("int64")})
        samples = {"image": [_encoded(file) for file in work.files], "number": work.numbers}
        dataset = datasets.Dataset.from_dict(samples, features=columns)
        for number in range(_NUM_FILES):
            shard = dataset.shard(_NUM_FILES, number, contiguous=True)
            shard.to_parquet(str(work.folder / f"{number:05d}.parquet"))

    def build_numbers(self, work: Work) -> None:
        """Write one file and link the others to it, because only the count matters."""
        size = min(_NUMBERS_A_FILE, work.num_samples // _NUM_FILES)
        first = work.folder / "00000.parquet"
        pq.write_table(pa.table({"number": range(size)}), first)
        for number in range(1, work.num_samples // size):
            os.link(first, work.folder / f"{number:05d}.parquet")

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        dataset = _streamed(work).map(_Transformed(), remove_columns=["image"])
        delivery = loaded(_loader(dataset, work), state)
        pairs = ((batch["pixels"], batch["number"]) for batch in delivery.batches)
        return Delivery(pairs, delivery.state)

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        delivery = loaded(_loader(_streamed(work), work), state)
        return Delivery((batch["number"] for batch in delivery.batches), delivery.state)

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        raise NotImplementedError("the state holds the places of all shards that are open")


def _encoded(file: str) -> dict[str, Any]:
    with open(file, "rb") as opened:
        return {"bytes": opened.read(), "path": None}


def _streamed(work: Work) -> Any:
    files = sorted(str(path) for path in work.folder.glob("*.parquet"))
    dataset = datasets.load_dataset(
        "parquet", data_files={"train": files}, split="train", streaming=True
    )
    return dataset.shuffle(seed=SEED)


def _loader(dataset: Any, work: Work) -> Any:
    torch.manual_seed(SEED)
    return StatefulDataLoader(dataset, work.batch_size, num_workers=work.num_workers)


class _Transformed:
    def __init__(self) -> None:
        self._transform = pillow_transform()

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"pixels": self._transform(sample["image"].convert("RGB"))}
