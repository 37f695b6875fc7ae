"""Noise from seeds: exact on any device, and normal."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from scipy import stats

from stateful_gpu_loader.randomness.philox import philox4x32
from stateful_gpu_loader.transforms.color.erasing import _quantiles, normal_noise, philox

CPU = torch.device("cpu")


def test_philox_is_numpys() -> None:
    """The one that is checked against Random123's answers; the largest words among them."""
    generator = np.random.default_rng(0)
    counter = generator.integers(0, 2**32, (1000, 4), dtype=np.uint32)
    key = generator.integers(0, 2**32, (1000, 2), dtype=np.uint32)
    counter[0], key[0] = 2**32 - 1, 2**32 - 1
    made = philox(*(torch.from_numpy(words.T.astype(np.int64)) for words in (counter, key)))
    assert np.array_equal(made.numpy().T, philox4x32(counter, key))


def test_values_are_normal() -> None:
    """Kolmogorov-Smirnov and moments of 200,000 values; none beyond the outermost part."""
    values, _ = normal_noise(np.array([[7, 8]]), np.array([200_000]), CPU)
    assert values.dtype is torch.float32
    assert stats.kstest(values.numpy(), "norm").pvalue > 1e-3
    assert abs(values.std().item() - 1) < 0.01
    assert 4 < values.abs().max() < 4.34


def test_all_halves_of_all_words_are_used() -> None:
    """Eight values of a block are uncorrelated."""
    values, _ = normal_noise(np.array([[7, 8]]), np.array([80_000]), CPU)
    correlations = np.corrcoef(values.view(-1, 8).numpy().T) - np.eye(8)
    assert np.abs(correlations).max() < 0.05


def test_values_depend_on_their_own_seed_alone() -> None:
    """Law 1: on neither other seeds nor how many are drawn; both halves of a seed matter."""
    seeds = np.array([[1, 0], [0, 1], [2**32 - 1, 2**32 - 1], [1, 0]])
    counts = np.array([17, 1, 30, 5])
    values, starts = normal_noise(seeds, counts, CPU)
    parts = [values[start : start + count] for start, count in zip(starts, counts, strict=True)]
    for seed, count, part in zip(seeds, counts, parts, strict=True):
        alone, _ = normal_noise(seed[None], count[None], CPU)
        assert torch.equal(alone[:count], part)
    assert torch.equal(parts[0][:5], parts[3])
    assert not torch.equal(parts[0][:1], parts[1])
    assert not torch.equal(parts[0], parts[2][:17])


def test_golden_values() -> None:
    """B8: a change would break every saved state; the whole table, by its checksum."""
    values, _ = normal_noise(np.array([[1, 2]]), np.array([5]), CPU)
    assert (values[:5] * 2**20).tolist() == [1171639, -2114768, 1865, 257416, 160994]
    table = (_quantiles(CPU).double() * 2**20).to(torch.int64).numpy()
    assert hashlib.sha256(table.tobytes()).hexdigest()[:16] == "6c12f7acf7f7e10e"


def test_the_table_is_the_normal_distribution() -> None:
    """Within half of 2**-20 of SciPy's quantiles."""
    expected = stats.norm.ppf((np.arange(65536) + 0.5) / 65536)
    np.testing.assert_allclose(_quantiles(CPU).numpy(), expected, rtol=0, atol=0.5001 * 2**-20)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_values() -> None:
    """Law 1: bit for bit."""
    seeds, counts = np.array([[1, 2], [3, 4]]), np.array([100_001, 99])
    there, _ = normal_noise(seeds, counts, torch.device("cuda:0"))
    assert torch.equal(there.cpu(), normal_noise(seeds, counts, CPU)[0])
