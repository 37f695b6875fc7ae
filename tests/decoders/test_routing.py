"""Routing is a pure function of the header."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import BATCH_DECODERS, JpegHeader, make_batch_decoder, probe
from stateful_gpu_loader.decoders.batch_rule import is_common_baseline, is_common_jpeg
from tests.decoders.variants import variants

FILES = variants()
HEADERS = {name: probe(data) for name, (data, _) in FILES.items()}

RARE = ("jpeg rgb", "jpeg cmyk", "jpeg ycck")


def test_the_gpu_takes_what_cameras_write() -> None:
    """One uncommon property sends an image to the CPU."""
    taken = {name for name, header in HEADERS.items() if is_common_jpeg(header)}
    jpegs = {name for name in HEADERS if name.startswith("jpeg")}
    assert taken == {name for name in jpegs if not name.startswith(RARE)}
    header = HEADERS["jpeg 4:2:0"]
    assert isinstance(header, JpegHeader)
    for changes, is_common in ((COMMON, True), (UNCOMMON, False)):
        for change in changes:
            assert is_common_jpeg(replace(header, **change)) is is_common, change


UNCOMMON: list[dict[str, Any]] = [
    {"precision": 12},
    {"color": "rgb"},
    {"color": "cmyk", "components": 4},
    {"color": "ycck", "components": 4},
    *({"process": process} for process in (0xC1, 0xC3, 0xC9, 0xCA)),
    {"single_scan": False},
    *({"subsampling": rare} for rare in ("4:1:1", "4:1:0", "other")),
]
COMMON: list[dict[str, Any]] = [
    {},
    *({"subsampling": common} for common in ("4:4:0", "4:4:4", "4:2:2")),
    {"subsampling": "4:0:0", "components": 1, "color": "grey"},
    {"process": 0xC2},
    {"process": 0xC2, "single_scan": False},
    {"height": 20_000, "orientation": 6},
]


def test_progressive_ones_stay_with_the_workers_where_the_gpu_takes_them_one_by_one() -> None:
    """The route of each backend travels to the workers."""
    pytest.importorskip("nvidia.dali")
    pytest.importorskip("torchcodec")
    for name in BATCH_DECODERS:
        takes = make_batch_decoder(name, torch.device("cuda")).takes
        route = is_common_baseline if name in ("torchvision", "torchcodec") else is_common_jpeg
        assert pickle.loads(pickle.dumps(takes)) is route
    progressive = [name for name, header in HEADERS.items() if header.progressive]
    assert progressive
    for name, header in HEADERS.items():
        expected = is_common_jpeg(header) and name not in progressive
        assert is_common_baseline(header) is expected
