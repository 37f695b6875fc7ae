"""Raw pixels become a file that every decoder decodes exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from stateful_gpu_loader.decoders import make_decoder, probe
from stateful_gpu_loader.decoders.png import stored_png
from tests.datasets.lmdb.lmdb_files import pixels_of
from tests.images import photograph

PIXELS = arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=70))


def as_batch(pixels: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Return uint8 [3, height, width], the form of a decoder's output."""
    colors = np.repeat(pixels, 4 - pixels.shape[2], axis=2)[:, :, :3]
    return torch.from_numpy(colors.transpose(2, 0, 1).copy())


@given(PIXELS)
def test_grey_pixels_are_kept(pixels: npt.NDArray[np.uint8]) -> None:
    assert np.array_equal(pixels_of(stored_png(pixels[..., None])), pixels)


@given(arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))))
def test_colours_are_kept(pixels: npt.NDArray[np.uint8]) -> None:
    assert np.array_equal(pixels_of(stored_png(pixels)), pixels)
    assert np.array_equal(pixels_of(stored_png(pixels, "BGR")), pixels[:, :, ::-1])


@pytest.mark.parametrize("name", ["coffee", "chelsea"])
def test_photographs_are_decoded_as_they_are_by_the_loaders_decoder(name: str) -> None:
    """Files above 64 KB, which have several blocks, and negative strides."""
    decoder = make_decoder("torchvision")
    whole = np.asarray(photograph(name))
    for pixels in (whole, whole[::-1, ::2, ::-1], whole[:, :, 1:2], whole[5:6, 7:8]):
        data = torch.from_numpy(stored_png(pixels))
        header = probe(data)
        assert (header.height, header.width) == pixels.shape[:2]
        assert torch.equal(decoder.decode(data, header), as_batch(pixels))


def test_a_file_is_little_longer_than_its_pixels() -> None:
    pixels = np.asarray(photograph("coffee"))
    assert len(stored_png(pixels)) < pixels.size * 1.01 + 100
