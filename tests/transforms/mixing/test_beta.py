"""The symmetric beta distribution from one uniform (D6)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from stateful_gpu_loader.transforms.mixing import beta_quantile, beta_share, checked_alpha

ALPHAS = [0.001, 0.05, 0.1, 0.2, 0.4, 0.5, 0.99, 1.0, 1.01, 1.5, 2.0, 7.7, 10.0, 300.0, 10000.0]
EXTREMES = [0.0, 2.0**-32, 0.5 - 2.0**-32, 0.5, 0.5 + 2.0**-32, 1.0 - 2.0**-32]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_quantiles_are_scipys(alpha: float) -> None:
    """D6: within 1e-13, at the ends as in the middle."""
    uniforms = np.concatenate((np.random.default_rng(0).random(60), EXTREMES))
    expected = stats.beta.ppf(uniforms, alpha, alpha)
    made = [beta_quantile(alpha, uniform) for uniform in uniforms.tolist()]
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 2.0])
def test_small_quantiles_have_a_small_relative_error(alpha: float) -> None:
    """D6: where x is 1e-20, an error of 1e-13 would be all of it."""
    for exponent in (2, 8, 32, 52):
        expected = stats.beta.ppf(2.0**-exponent, alpha, alpha)
        assert beta_quantile(alpha, 2.0**-exponent) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_shares_are_rounded_and_symmetric(alpha: float) -> None:
    """Law 1: multiples of 2**-24, so that the last bits of a C library do not show."""
    for uniform in (0.0, 2.0**-32, 0.1, 0.3, 0.5):
        share = beta_share(alpha, uniform)
        assert share * 2**24 == int(share * 2**24)
        assert abs(share - beta_quantile(alpha, uniform)) <= 2.0**-25
        assert np.float32(share) == share
        assert np.float32(1.0 - share) == 1.0 - share
    for uniform in (0.25, 0.375, 2.0**-20):
        assert beta_share(alpha, 1.0 - uniform) == 1.0 - beta_share(alpha, uniform)


def test_golden_shares() -> None:
    """B8: a change of any breaks every saved state; as scipy has them, in units of 2**-24."""
    golden = {0.1: [0, 14181, 8388608, 16777215], 1.0: [0, 4194304, 8388608, 15099494]}
    uniforms = [0.0, 0.25, 0.5, 0.9]
    for alpha, units in golden.items():
        assert [beta_share(alpha, uniform) * 2**24 for uniform in uniforms] == units
        assert np.rint(stats.beta.ppf(uniforms, alpha, alpha) * 2**24).tolist() == units


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1e-4, 1e5, float("nan"), float("inf")])
def test_alphas_out_of_range_are_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"alpha = {alpha}"):
        checked_alpha(alpha)
