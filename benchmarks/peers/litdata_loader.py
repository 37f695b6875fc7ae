"""LitData: optimized chunks in StreamingDataset and StreamingDataLoader."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import litdata
import torch

from benchmarks.peers.adapter import SEED, Delivery, Peer, Work, from_bytes, loaded, to_bytes
from benchmarks.peers.torch_loader import tensor_transform

_NUMBERS_A_CHUNK = 80_000


class LitData(Peer):
    """A StreamingDataset whose items are transformed."""

    def build_photographs(self, work: Work) -> None:
        litdata.optimize(
            fn=functools.partial(_sample, work.files),
            inputs=work.numbers,
            output_dir=str(work.folder),
            chunk_bytes="64MB",
            num_workers=1,
        )

    def build_numbers(self, work: Work) -> None:
        """Write one chunk and link the others to it, because only the index matters."""
        size = min(_NUMBERS_A_CHUNK, work.num_samples)
        litdata.optimize(
            fn=int,
            inputs=list(range(size)),
            output_dir=str(work.folder),
            chunk_size=size,
            num_workers=1,
        )
        path = work.folder / "index.json"
        index = json.loads(path.read_text(encoding="utf-8"))
        (chunk,) = index["chunks"]
        for number in range(1, work.num_samples // size):
            link = f"chunk-0-{number}.bin"
            os.link(work.folder / chunk["filename"], work.folder / link)
            index["chunks"].append({**chunk, "filename": link})
        path.write_text(json.dumps(index), encoding="utf-8")

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        dataset = _Photographs(str(work.folder), shuffle=True, seed=SEED)
        return loaded(_loader(dataset, work), state)

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        dataset = litdata.StreamingDataset(str(work.folder), shuffle=True, seed=SEED)
        return loaded(_loader(dataset, work), state)

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        found = from_bytes(state)
        samples = batches * work.batch_size
        found["num_samples_yielded"] += samples
        found["dataset"]["num_samples_yielded"] += samples
        found["dataset"]["sample_in_epoch"] += samples
        return to_bytes(found)


def _loader(dataset: Any, work: Work) -> Any:
    torch.manual_seed(SEED)
    return litdata.StreamingDataLoader(
        dataset, batch_size=work.batch_size, num_workers=work.num_workers
    )


def _sample(files: list[str], number: int) -> dict[str, Any]:
    return {"image": litdata.Image(path=files[number]), "number": number}


class _Photographs(litdata.StreamingDataset):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._transform = tensor_transform()

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return self._transform(sample["image"]), sample["number"]
