"""Time to the first batch after a resume, in a file of very many records, compared with peers.

The samples stay encoded: our loader and StatefulDataLoader get the same plain dataset. DALI's
pipeline and webdataset open their files each time, so this is part of their time at the beginning
of the epoch, too. Opening our source has its own figure.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks import dali_readers
from benchmarks.arguments import Arguments
from benchmarks.datasets import Numbers
from benchmarks.format_writers import CAFFE, RECORDIO, TAR, TFRECORD
from benchmarks.harness import Contestant, measured
from benchmarks.results import Measurement, is_installed
from benchmarks.source_files import FORMATS, SourceFiles
from benchmarks.source_readers import open_source, webdataset_samples
from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.datasets.source import Source

BATCH_SIZE = dali_readers.BATCH_SIZE
PLACES = (0.0, 0.9)
"""Delivered shares of the epoch."""
OURS, TORCHDATA, DALI, WEBDATASET, OPENING = "ours", "torchdata", "dali", "webdataset", "opening"
PEERS = {
    OURS: "StatefulGPULoader",
    TORCHDATA: "StatefulDataLoader",
    DALI: "DALI",
    WEBDATASET: "webdataset",
}
UNIT = "ms"

_MOST_ROUNDS_OF_READING = 3
"""Maximum number of rounds for webdataset, which reads everything before the place."""

Resume = Callable[[], Any]
"""Returns the first batch."""


def resume_name(peer: str, name: str, place: float) -> str:
    return f"{peer} resume {name} {place:.0%}"


def opening_name(name: str) -> str:
    """Return the key of the time to open a source with a kept index and compute its fingerprint."""
    return f"{OPENING} {name}"


def measure_resume(name: str, files: SourceFiles, arguments: Arguments) -> list[Measurement]:
    """Measure all resumes of a format at both places."""
    source = open_source(name, files)
    source.fingerprint()
    peers = [TORCHDATA]
    if name in (CAFFE, TFRECORD, RECORDIO) and is_installed("nvidia.dali"):
        peers.append(DALI)
    several = arguments.rounds if arguments.quick else 5 * arguments.rounds
    ways = {TORCHDATA: lambda: _torchdata(source), DALI: lambda: _dali(name, files)}
    found = _measured(name, OURS, _ours(source), several, arguments)
    for peer in peers:
        found += _measured(name, peer, ways[peer](), arguments.rounds, arguments)
    if name == TAR and is_installed("webdataset"):
        rounds = min(arguments.rounds, _MOST_ROUNDS_OF_READING)
        found += _measured(name, WEBDATASET, _webdataset(files), rounds, arguments, warm_up=0)
    return found + _opening(name, files, arguments)


def _measured(
    name: str,
    peer: str,
    resumes: list[Resume],
    rounds: int,
    arguments: Arguments,
    *,
    warm_up: int | None = None,
) -> list[Measurement]:
    def milliseconds(resume: Resume) -> float:
        started = time.perf_counter()
        batch = resume()
        seconds = time.perf_counter() - started
        if len(batch) != BATCH_SIZE:
            raise ValueError(
                f"{PEERS[peer]} gave {len(batch)} samples of {FORMATS[name]}. Remedy: find out why"
            )
        return seconds * 1e3

    return measured(
        [
            Contestant(
                resume_name(peer, name, place),
                f"{FORMATS[name]}, {PEERS[peer]}, {place:.0%} delivered",
                functools.partial(milliseconds, resume),
            )
            for place, resume in zip(PLACES, resumes, strict=True)
        ],
        arguments,
        title=f"resume {FORMATS[name]}, {PEERS[peer]}",
        unit=UNIT,
        rounds=rounds,
        warm_up_rounds=warm_up,
    )


class _Undecoded(Dataset[Any]):
    """A source as a plain dataset, which no loader decodes."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return self._source[index]

    def fingerprint(self) -> str:
        return self._source.fingerprint()


def _batches_before(n: int, place: float) -> int:
    return int(n * place) // BATCH_SIZE


def _ours(source: Source) -> list[Resume]:
    """Resume a new loader each time, from one state whose position is set."""

    def make() -> Any:
        return StatefulGPULoader(
            _Undecoded(source), BATCH_SIZE, shuffle=True, seed=42, collate_fn=list
        )

    def resume(state: dict[str, Any]) -> Any:
        loader = make()
        loader.load_state_dict(state)
        return next(iter(loader))

    state = make().state_dict()
    positions = [_batches_before(len(source), place) * BATCH_SIZE for place in PLACES]
    return [functools.partial(resume, {**state, "position": position}) for position in positions]


def _torchdata(source: Source) -> list[Resume]:
    """Resume from states that were reached over equally many trivial samples."""

    def make(dataset: Dataset[Any]) -> Any:
        torch.manual_seed(42)
        return StatefulDataLoader(dataset, BATCH_SIZE, shuffle=True, collate_fn=list)

    def resume(state: dict[str, Any]) -> Any:
        loader = make(_Undecoded(source))
        loader.load_state_dict(state)
        return next(iter(loader))

    resumes: list[Resume] = []
    for place in PLACES:
        loader = make(Numbers(len(source)))
        for _ in itertools.islice(loader, _batches_before(len(source), place)):
            pass
        resumes.append(functools.partial(resume, loader.state_dict()))
    return resumes


def _dali(name: str, files: SourceFiles) -> list[Resume]:
    """Resume a newly built pipeline from checkpoints."""

    def resume(checkpoint: str) -> Any:
        pipeline = dali_readers.pipeline(name, files, checkpoint=checkpoint)
        pipeline.build()
        images, _ = pipeline.run()
        return images

    resumes: list[Resume] = []
    for place in PLACES:
        pipeline = dali_readers.pipeline(name, files)
        pipeline.build()
        for _ in range(_batches_before(files.num_samples, place)):
            pipeline.run()
        resumes.append(functools.partial(resume, pipeline.checkpoint()))
    return resumes


def _webdataset(files: SourceFiles) -> list[Resume]:
    """Resume like webdataset's users: read to the place and drop what was read."""

    def resume(place: float) -> Any:
        samples: Iterator[Any] = iter(webdataset_samples(files.paths(TAR)))
        skipped = _batches_before(files.num_samples, place) * BATCH_SIZE
        return list(itertools.islice(samples, skipped, skipped + BATCH_SIZE))

    return [functools.partial(resume, place) for place in PLACES]


def _opening(name: str, files: SourceFiles, arguments: Arguments) -> list[Measurement]:
    def milliseconds() -> float:
        started = time.perf_counter()
        open_source(name, files).fingerprint()
        return (time.perf_counter() - started) * 1e3

    label = f"{FORMATS[name]}, opening the source"
    contestant = Contestant(opening_name(name), label, milliseconds)
    return measured([contestant], arguments, title=label, unit=UNIT)
