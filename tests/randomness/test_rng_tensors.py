"""RNG with a dtype: the same draws as tensors, rounded within bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stateful_gpu_loader.randomness.rng import RNG

HALF_REJECTED = 2**63 + 1
"""A span of integers at which nearly every second draw is rejected."""

WITH_DTYPE = {
    "uniform": lambda rng, **more: rng.uniform(-30, 30, **more),
    "normal": lambda rng, **more: rng.normal(5, 2, **more),
    "integers": lambda rng, **more: rng.integers(-5, 100, **more),
    "integers, many rejected": lambda rng, **more: rng.integers(
        -(2**63), HALF_REJECTED - 2**63, **more
    ),
    "coin_flip": lambda rng, **more: rng.coin_flip(0.3, **more),
}
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
ROUNDED = FLOATS[1:]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8]
UNSIGNED = [torch.uint64, torch.uint32, torch.uint16, torch.uint8]
DTYPES = {
    "uniform": FLOATS,
    "normal": FLOATS,
    "integers": INTEGERS,
    "integers, many rejected": [torch.int64],
    "coin_flip": [torch.bool, *FLOATS, *INTEGERS, *UNSIGNED],
}
each_dtype = pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name, dtypes in DTYPES.items() for dtype in dtypes],
    ids=str,
)


@each_dtype
def test_a_tensor_holds_the_numbers_of_numpy_from_the_same_draws(name, dtype):
    """E3"""
    call, array_rng, tensor_rng = WITH_DTYPE[name], RNG(3), RNG(3)
    array = call(array_rng, size=(40, 5))
    tensor = call(tensor_rng, size=(40, 5), dtype=dtype)
    assert tensor.device.type == "cpu"
    assert tensor.dtype == dtype
    assert tensor_rng.get_state() == array_rng.get_state()
    assert torch.equal(tensor, torch.from_numpy(array).to(dtype))


@each_dtype
def test_a_tensor_holds_what_single_calls_give(name, dtype):
    call, together, singly = WITH_DTYPE[name], RNG(3), RNG(3)
    tensor = call(together, size=12, dtype=dtype)
    singles = [call(singly, dtype=dtype) for _ in range(12)]
    assert {single.shape for single in singles} == {()}
    assert torch.equal(tensor, torch.stack(singles))
    assert together.get_state() == singly.get_state()
    assert call(together, size=(), dtype=dtype).shape == ()
    assert call(together, size=[2, 0], dtype=dtype).shape == (2, 0)


def test_golden_tensors():
    """B8"""
    rng = RNG(42)
    assert rng.uniform(size=3, dtype=torch.bfloat16).tolist() == [
        0.8671875,
        0.064453125,
        0.50390625,
    ]
    assert rng.integers(1000, size=5, dtype=torch.int16).tolist() == [3, 7, 850, 68, 978]
    assert rng.integers(2**63 - 9, 2**63, dtype=torch.uint64).item() == 9223372036854775799
    assert rng.coin_flip(size=4, dtype=torch.uint8).tolist() == [1, 0, 1, 0]
    assert rng.permutation(7, dtype=torch.uint8).tolist() == [3, 6, 0, 4, 2, 5, 1]


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (-1, 0), (0.1, 0.7), (-0.7, -0.1), (1 / 3, 2 / 3), (-30, 30), (0, 1e-7), (1, 1.02)],
)
def test_uniform_stays_within_its_ends_whatever_the_dtype(low, high, dtype):
    """Rounding to bfloat16 would turn one in 512 numbers of [0, 1) into 1."""
    drawn = RNG(5).uniform(low, high, size=10_000, dtype=dtype).double()
    assert drawn.min() >= low
    assert drawn.max() < high
    nearest = torch.from_numpy(RNG(5).uniform(low, high, size=10_000)).to(dtype).double()
    inside = (nearest >= low) & (nearest < high)
    assert torch.equal(drawn[inside], nearest[inside])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_uniform_rounds_out_of_no_end(dtype):
    """What would leave the interval becomes the last number within it."""
    drawn = RNG(5).uniform(size=10_000, dtype=dtype)
    last = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype))
    exact = RNG(5).uniform(size=10_000)
    beyond = torch.from_numpy(exact).to(dtype) == 1
    assert beyond.any()
    assert (drawn[beyond] == last).all()


def test_uniform_between_neighbours_of_a_dtype_is_the_nearest():
    drawn = RNG(1).uniform(1.001, 1.002, size=5, dtype=torch.bfloat16)
    assert drawn.tolist() == [1.0] * 5
    assert RNG(1).uniform(0.1, 0.1, dtype=torch.float32) == torch.tensor(0.1)


def test_integers_reach_the_ends_of_a_dtype():
    for dtype in (*INTEGERS, *UNSIGNED[1:]):
        limits = torch.iinfo(dtype)
        drawn = RNG(1).integers(limits.min, limits.max + 1, size=2000, dtype=dtype)
        assert drawn.dtype == dtype
        reach = float(limits.max) - float(limits.min)
        values = drawn.to(torch.float64)
        assert float(values.max() - values.min()) > 0.99 * reach
    assert RNG(1).integers(2**63 - 1, 2**63, dtype=torch.uint64).item() == 2**63 - 1


def test_permutations_fill_their_dtype():
    assert sorted(RNG(1).permutation(256, dtype=torch.uint8).tolist()) == list(range(256))
    assert RNG(1).permutation(0, dtype=torch.int8).shape == (0,)
    tensor = RNG(1).permutation(100, dtype=torch.int32)
    assert tensor.dtype == torch.int32
    assert tensor.tolist() == RNG(1).permutation(100).tolist()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_farthest_normal_number_fits_its_dtype(dtype):
    std = torch.finfo(dtype).max / 8.6 * (1 - 1e-15)
    assert RNG(1).normal(0, std, size=1000, dtype=dtype).isfinite().all()
    rng = RNG(1)
    rng._units = lambda num_draws: np.tile([1 - 2.0**-53, 0.0], num_draws // 2)
    assert 8.57 < rng.normal() < 8.6


@pytest.mark.parametrize(
    "call",
    [
        lambda rng: rng.uniform(dtype=torch.int64),
        lambda rng: rng.uniform(dtype=torch.float8_e5m2),
        lambda rng: rng.uniform(dtype=torch.complex64),
        lambda rng: rng.uniform(dtype=np.float32),
        lambda rng: rng.uniform(dtype="float32"),
        lambda rng: rng.uniform(0, 65_520, dtype=torch.float16),
        lambda rng: rng.uniform(-1e39, 0, dtype=torch.float32),
        lambda rng: rng.normal(dtype=torch.int64),
        lambda rng: rng.normal(0, 8000, dtype=torch.float16),
        lambda rng: rng.normal(-65_000, 100, dtype=torch.float16),
        lambda rng: rng.normal(1.7e308, 1e307, dtype=torch.float64),
        lambda rng: rng.integers(257, dtype=torch.uint8),
        lambda rng: rng.integers(-1, 3, dtype=torch.uint8),
        lambda rng: rng.integers(-129, 0, dtype=torch.int8),
        lambda rng: rng.integers(-1, 3, dtype=torch.uint64),
        lambda rng: rng.integers(2**63, dtype=torch.int32),
        lambda rng: rng.integers(3, dtype=torch.float32),
        lambda rng: rng.integers(2, dtype=torch.bool),
        lambda rng: rng.coin_flip(dtype=torch.complex64),
        lambda rng: rng.coin_flip(dtype=bool),
        lambda rng: rng.permutation(257, dtype=torch.uint8),
        lambda rng: rng.permutation(3, dtype=torch.float32),
    ],
)
def test_numbers_that_a_dtype_may_not_hold_are_refused_and_draw_nothing(call):
    rng = RNG(1)
    before = rng.get_state()
    with pytest.raises(ValueError, match=r"Remedy"):
        call(rng)
    assert rng.get_state() == before


def test_a_default_device_changes_nothing() -> None:
    expected = RNG(1).uniform(size=3, dtype=torch.float32)
    with torch.device("meta"):
        found = RNG(1).uniform(size=3, dtype=torch.float32)
    assert found.device.type == "cpu"
    assert torch.equal(found, expected)
