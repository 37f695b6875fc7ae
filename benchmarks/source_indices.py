"""Seconds a gigabyte to index files without an index, compared with DALI's scripts."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.arguments import Arguments
from benchmarks.format_writers import RECORDIO, TAR, TFRECORD
from benchmarks.harness import Contestant, measured
from benchmarks.results import Measurement, is_installed
from benchmarks.source_files import FORMATS, SourceFiles
from benchmarks.source_readers import open_source

UNIT = "s a GB"
INDEXED = (TAR, TFRECORD, RECORDIO)
SCRIPTS = {TAR: "wds2idx", TFRECORD: "tfrecord2idx"}
"""DALI's scripts; its ``rec2idx`` needs MXNet."""


def index_name(name: str, who: str) -> str:
    """Key of a measurement; ``who`` is ``"ours"`` or a script."""
    return f"{who} index {name}"


def measure_indices(files: SourceFiles, arguments: Arguments) -> list[Measurement]:
    """Measure the indexing of tars, TFRecord and RecordIO in turn."""
    contestants = [
        Contestant(
            index_name(name, "ours"),
            f"indexing {FORMATS[name]}, ours",
            functools.partial(_seconds_a_gigabyte, _index, name, files),
        )
        for name in INDEXED
    ]
    for name, make in _scripts().items():
        contestants.append(
            Contestant(
                index_name(name, SCRIPTS[name]),
                f"indexing {FORMATS[name]}, {SCRIPTS[name]}",
                functools.partial(_seconds_a_gigabyte, make, name, files),
            )
        )
    return measured(contestants, arguments, title="indices", unit=UNIT)


def _seconds_a_gigabyte(
    make: Callable[[str, SourceFiles, str], object], name: str, files: SourceFiles
) -> float:
    size = sum(Path(path).stat().st_size for path in files.paths(name))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        make(name, files, folder)
        return (time.perf_counter() - started) / size * 1e9


def _index(name: str, files: SourceFiles, folder: str) -> None:
    open_source(name, files, cache_dir=folder)


def _scripts() -> dict[str, Callable[[str, SourceFiles, str], object]]:
    """Return the installed scripts, run in this process to exclude the start of another Python."""
    found: dict[str, Callable[[str, SourceFiles, str], object]] = {}
    if is_installed("wds2idx"):
        found[TAR] = _wds2idx
    script = Path(sys.executable).with_name("tfrecord2idx")
    if path := (str(script) if script.is_file() else shutil.which("tfrecord2idx")):
        found[TFRECORD] = functools.partial(_tfrecord2idx, path)
    return found


def _wds2idx(name: str, files: SourceFiles, folder: str) -> None:
    creator_class = importlib.import_module("wds2idx").IndexCreator
    for number, path in enumerate(files.paths(name)):
        with creator_class(path, f"{folder}/{number}.idx", verbose=False) as creator:
            creator.create_index()


def _tfrecord2idx(script: str, name: str, files: SourceFiles, folder: str) -> None:
    given = sys.argv
    try:
        for number, path in enumerate(files.paths(name)):
            sys.argv = [script, path, f"{folder}/{number}.idx"]
            with contextlib.redirect_stdout(io.StringIO()):
                runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = given
