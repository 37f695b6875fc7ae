"""One rule: every backend gives the same pixels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from stateful_gpu_loader.decoders import Decoder, available, make_decoder, probe
from stateful_gpu_loader.decoders.rule import to_8_bits
from tests.decoders.variants import Variant, by_rule, variants

VARIANTS = variants()
TOLERANCE = {"jpeg": 2, "png": 0, "webp": 0}
"""Allowed difference in levels between builds of a library: libjpeg-turbo's rounding may differ."""


@pytest.fixture(params=available())
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return make_decoder(request.param)


def as_array(decoder: Decoder, data: torch.Tensor) -> npt.NDArray[np.uint8]:
    return decoder.decode(data, probe(data)).permute(1, 2, 0).contiguous().numpy()


def test_every_format_gives_the_pixels_of_the_rule(
    decoder: Decoder, capfd: pytest.CaptureFixture[str]
) -> None:
    """The whole grid is compared with Pillow, and with arithmetic for 16 bits.

    With the wheels that are installed here, all backends' JPEGs are equal. The bytes do not change,
    and nothing is printed (warnings are errors here).
    """
    for name, (data, expected) in VARIANTS.items():
        before = data.clone()
        shown, again = as_array(decoder, data), as_array(decoder, data)
        assert torch.equal(data, before), name
        assert capfd.readouterr() == ("", ""), name
        np.testing.assert_array_equal(shown, again, name)
        assert (shown.dtype, shown.shape) == (np.uint8, expected.shape), name
        difference = np.abs(shown.astype(int) - expected)
        assert difference.max() <= TOLERANCE[name.split()[0]], name
        np.testing.assert_array_equal(shown, by_rule(data).permute(1, 2, 0), name)


def test_a_plain_jpeg_is_not_copied_after_decoding(decoder: Decoder) -> None:
    data, _ = VARIANTS["jpeg 4:2:0"]
    image = decoder.decode(data, probe(data))
    assert image.permute(1, 2, 0).is_contiguous()


def test_16_bits_become_8_by_the_rule_for_every_value() -> None:
    """Libpng and to_8_bits round in integers; both equal the formula."""
    values = torch.arange(65536, dtype=torch.int32)
    expected = (values.double() * 255 / 65535).round().to(torch.uint8)
    assert torch.equal(to_8_bits(values.to(torch.uint16)), expected)


def test_orientations_are_eight_different_images() -> None:
    """The grid would not notice eight equal files."""
    images: list[Variant] = [VARIANTS[f"png orientation {number}"] for number in range(1, 9)]
    assert len({pixels.tobytes() for _, pixels in images}) == 8
