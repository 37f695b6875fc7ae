"""The share of images left to the CPUs, chosen evenly by their bytes."""

from __future__ import annotations

import pickle

import numpy as np
import torch

from stateful_gpu_loader.decoders import make_batch_decoder, probe
from stateful_gpu_loader.decoders.cpu_share import SharedOut, fraction_of
from stateful_gpu_loader.decoders.registry import FAMILIES
from tests.decoders.cuda_stub import DEVICE
from tests.decoders.variants import photo
from tests.images import encode


def test_fractions_are_even_and_of_the_bytes_alone() -> None:
    chance = np.random.default_rng(0)
    files = [
        torch.from_numpy(chance.integers(0, 256, size, dtype=np.uint8))
        for size in chance.integers(1, 2000, 4000)
    ]
    fractions = np.array([fraction_of(data) for data in files])
    assert [fraction_of(data.clone()) for data in files] == fractions.tolist()
    found, _ = np.histogram(fractions, bins=10, range=(0, 1))
    assert 0 <= fractions.min() <= fractions.max() < 1
    assert np.abs(found - 400).max() < 5 * 400**0.5


def test_shares_are_nested_and_never_hold_what_the_gpu_does_not_take() -> None:
    """Another share moves no more images than necessary."""
    decoder = make_batch_decoder("torchvision", DEVICE)
    files = [encode(photo(20 + i, 30)) for i in range(100)]
    left = [
        {
            i
            for i, data in enumerate(files)
            if not SharedOut(decoder, share).takes(probe(data), data)
        }
        for share in (0.0, 0.1, 0.5, 1.0)
    ]
    assert left[0] == set()
    assert left[0] < left[1] < left[2] < left[3] == set(range(100))
    png = encode(photo(20, 30), "PNG")
    assert not SharedOut(decoder, 0.0).takes(probe(png), png)


def test_it_travels_to_workers_and_auto_finds_its_family() -> None:
    for name, make in (("torchvision", "torchvision-cuda"), ("nvimgcodec", "nvimgcodec")):
        assert FAMILIES[make] == name
    shared = SharedOut(make_batch_decoder("torchvision", DEVICE), 0.3)
    data = encode(photo(20, 30))
    takes = pickle.loads(pickle.dumps(shared.takes))
    assert takes(probe(data), data) == (fraction_of(data) >= 0.3)
    assert SharedOut(shared, 1).family == SharedOut(shared, 1.0).family
    again = make_batch_decoder("auto", DEVICE, prefer=shared.family)
    assert again.family == "torchvision-cuda"
