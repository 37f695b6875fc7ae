"""Raw pixels become a file that every decoder decodes exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stateful_gpu_loader.decoders import make_decoder, probe
from stateful_gpu_loader.decoders.png import stored_png
from tests.datasets.lmdb.lmdb_files import pixels_of
from tests.images import photograph


def as_batch(pixels: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Return uint8 [3, height, width], the form of a decoder's output."""
    colors = np.repeat(pixels, 4 - pixels.shape[2], axis=2)[:, :, :3]
    return torch.from_numpy(colors.transpose(2, 0, 1).copy())


@settings(max_examples=50)
@given(arrays(np.uint8, st.tuples(st.integers(1, 70), st.integers(1, 40), st.just(3))))
def test_pixels_are_kept(pixels: npt.NDArray[np.uint8]) -> None:
    """In a file that is little longer than its pixels."""
    assert np.array_equal(pixels_of(stored_png(pixels[..., :1])), pixels[..., 0])
    file = stored_png(pixels)
    assert np.array_equal(pixels_of(file), pixels)
    assert len(file) < pixels.size * 1.01 + 200
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
