"""JPEGs at a smaller scale: which images, at which scale, and that the rest of the rule stays."""

from __future__ import annotations

import importlib.util
import itertools
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import adaptive_avg_pool2d

from stateful_gpu_loader.decoders import make_decoder, probe, scaled
from stateful_gpu_loader.decoders.decoder import Box, part_of
from stateful_gpu_loader.decoders.scaled import ScaledDecoder, scale_of
from stateful_gpu_loader.errors import MissingDependency
from tests.decoders.variants import ORIENTATIONS, by_rule, exif, photo, small_variants
from tests.images import encode, photograph

TORCHVISION = make_decoder("torchvision")
SMALL = small_variants()
IS_SCALED = {
    name
    for name in SMALL
    if name.startswith("jpeg") and not any(kind in name for kind in ("rgb", "cmyk", "ycck", "1x1"))
}


@pytest.fixture(scope="module")
def decoder() -> ScaledDecoder:
    return ScaledDecoder(TORCHVISION)


@pytest.mark.parametrize(
    ("side", "least", "scale"),
    [(448, 224, 2), (447, 224, 1), (895, 224, 2), (896, 224, 4), (4000, 224, 8), (100, 224, 1)],
)
def test_the_scale_is_the_smallest_that_leaves_enough(side: int, least: int, scale: int) -> None:
    assert scale_of((3, 5, side, 10_000), (least, 100)) == scale
    assert scale_of((3, 5, 10_000, side), (100, least)) == scale


def test_no_part_is_smaller_than_it_will_be(decoder: ScaledDecoder) -> None:
    """At any corner, by rounding."""
    data = encode(photo(151, 117))
    for least, top, left, scale in itertools.product((5, 9, 12), range(8), range(8), (2, 4, 8)):
        box = (top, left, scale * least, scale * least)
        found = decoder.decode_part(data, probe(data), box, (least, least))
        assert found.shape == (3, least, least), box


def difference(found: torch.Tensor, data: torch.Tensor, box: Box) -> float:
    """Return the mean difference from averages over the pixels of the whole decode, in levels."""
    expected = adaptive_avg_pool2d(part_of(by_rule(data), box).float(), found.shape[1:])
    return float((found.float() - expected).abs().mean())


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("progressive", [False, True])
def test_the_part_shows_what_the_whole_shows(
    decoder: ScaledDecoder, orientation: int, progressive: bool
) -> None:
    """To less than two levels where the part consists of whole blocks."""
    for sides, tolerance in (((240, 264), 2), ((241, 260), 8)):
        image = photograph("astronaut").crop((120, 40, 120 + sides[0], 40 + sides[1]))
        data = encode(image, quality=92, exif=exif(orientation), progressive=progressive)
        height, width = probe(data).height, probe(data).width
        for box in (
            (0, 0, height, width),
            (40, 16, 160, 128),
            (height - 128, width - 160, 128, 160),
        ):
            found = decoder.decode_part(data, probe(data), box, (30, 30))
            scale = scale_of(box, (30, 30))
            assert abs(found.shape[1] - box[2] / scale) < 1
            assert abs(found.shape[2] - box[3] / scale) < 1
            assert difference(found, data, box) < tolerance


@pytest.mark.parametrize("name", SMALL)
def test_only_common_jpegs_come_scaled(decoder: ScaledDecoder, name: str) -> None:
    data = SMALL[name]
    header = probe(data)
    box = (0, 0, header.height, header.width)
    half = (header.height // 2 or 1, header.width // 2 or 1)
    found = decoder.decode_part(data, header, box, half)
    assert (found.shape[1] < header.height) == (name in IS_SCALED)
    if name not in IS_SCALED:
        assert torch.equal(found, by_rule(data))
    assert torch.equal(decoder.decode_part(data, header, box, None), by_rule(data))
    assert torch.equal(decoder.decode(data, header), by_rule(data))


def verdict(decode: Callable[[], Any]) -> str | None:
    try:
        decode()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["jpeg 4:2:0", "jpeg progressive", "jpeg restart markers"])
def test_damage_is_judged_by_the_whole_decode(decoder: ScaledDecoder, name: str) -> None:
    """At any scale, so that an image is bad in every epoch or in none."""
    good = SMALL[name]
    height, width = probe(good).height, probe(good).width
    generator = torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(60):
        data = good.clone()
        where = int(torch.randint(200, good.numel() - 4, (), generator=generator))
        data[where : where + 2] = torch.tensor([0xFF, 0xC4], dtype=torch.uint8)
        if verdict(partial(probe, data)) is not None:
            continue
        expected = verdict(partial(by_rule, data))
        refused += expected is not None
        for scale in (1, 2, 8):
            part = (0, 0, height, width), (height // scale, width // scale)
            assert verdict(partial(decoder.decode_part, data, probe(data), *part)) == expected
    assert refused > 0


def test_without_pillow_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    scaled._jpeg_file.cache_clear()
    with pytest.raises(MissingDependency, match="scaled_decoding=True needs the package 'pillow'"):
        ScaledDecoder(TORCHVISION)


def test_it_names_itself_and_can_be_pickled(decoder: ScaledDecoder) -> None:
    assert decoder.family == "torchvision, scaled_decoding=True"
    assert "pillow" in decoder.version()
    assert make_decoder("auto", prefer=decoder.family).family == "torchvision"
    copy = pickle.loads(pickle.dumps(decoder))
    data = SMALL["jpeg 4:2:0"]
    box, least = (0, 0, 47, 61), (12, 15)
    assert torch.equal(
        copy.decode_part(data, probe(data), box, least),
        decoder.decode_part(data, probe(data), box, least),
    )
