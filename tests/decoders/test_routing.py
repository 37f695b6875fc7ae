"""Routing is a pure function of the header."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import BATCH_DECODERS, JpegHeader, make_batch_decoder, probe
from stateful_gpu_loader.decoders.batch_rule import is_common_jpeg, takes_baseline, takes_common
from tests.decoders.variants import variants

FILES = dict(variants())
HEADERS = {name: probe(data) for name, (data, _) in FILES.items()}

RARE = ("jpeg rgb", "jpeg cmyk", "jpeg ycck")


@pytest.mark.parametrize("name", HEADERS)
def test_the_gpu_takes_what_cameras_write(name: str) -> None:
    assert is_common_jpeg(HEADERS[name]) == (name.startswith("jpeg") and not name.startswith(RARE))


@pytest.mark.parametrize(
    "change",
    [
        {"precision": 12},
        {"color": "rgb"},
        {"color": "cmyk", "components": 4},
        {"color": "ycck", "components": 4},
        {"process": 0xC1},
        {"process": 0xC3},
        {"process": 0xC9},
        {"process": 0xCA},
        {"single_scan": False},
        {"subsampling": "4:1:1"},
        {"subsampling": "4:1:0"},
        {"subsampling": "other"},
    ],
)
def test_one_uncommon_property_sends_an_image_to_the_cpu(change: dict[str, Any]) -> None:
    header = HEADERS["jpeg 4:2:0"]
    assert isinstance(header, JpegHeader)
    assert is_common_jpeg(header)
    assert not is_common_jpeg(replace(header, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"subsampling": "4:4:0"},
        {"subsampling": "4:4:4"},
        {"subsampling": "4:2:2"},
        {"subsampling": "4:0:0", "components": 1, "color": "grey"},
        {"process": 0xC2},
        {"process": 0xC2, "single_scan": False},
        {"height": 20_000, "orientation": 6},
    ],
)
def test_common_properties_keep_an_image_on_the_gpu(change: dict[str, Any]) -> None:
    header = HEADERS["jpeg 4:2:0"]
    assert isinstance(header, JpegHeader)
    assert is_common_jpeg(replace(header, **change))


def test_progressive_ones_stay_with_the_workers_where_the_gpu_takes_them_one_by_one() -> None:
    """And the route of each backend travels to the workers."""
    pytest.importorskip("nvidia.dali")
    pytest.importorskip("torchcodec")
    for name in BATCH_DECODERS:
        takes = make_batch_decoder(name, torch.device("cuda")).takes
        route = takes_baseline if name in ("torchvision", "torchcodec") else takes_common
        assert pickle.loads(pickle.dumps(takes)) is route
    progressive = 0
    for data, _ in FILES.values():
        header = probe(data)
        is_progressive = isinstance(header, JpegHeader) and header.progressive
        assert takes_common(header, data) == is_common_jpeg(header)
        assert takes_baseline(header, data) == (is_common_jpeg(header) and not is_progressive)
        progressive += is_progressive
    assert progressive
