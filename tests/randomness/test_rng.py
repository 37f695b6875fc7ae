"""RNG: a generator that a short string restores at any draw."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import random

import numpy as np
import pytest
import torch
from scipy import stats

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.rng import RNG
from tests.conformance import differing

LEAST_PROBABILITY = 1e-4

HALF_REJECTED = 2**63 + 1
"""A span of integers for which nearly every second draw is rejected."""

CALLS = {
    "uniform": lambda rng, size=None: rng.uniform(-30, 30, size=size),
    "normal": lambda rng, size=None: rng.normal(5, 2, size=size),
    "integers": lambda rng, size=None: rng.integers(-5, 1000, size=size),
    "integers, many rejected": lambda rng, size=None: rng.integers(
        -(2**63), HALF_REJECTED - 2**63, size=size
    ),
    "coin_flip": lambda rng, size=None: rng.coin_flip(0.3, size=size),
}
TYPES = {"uniform": float, "normal": float, "coin_flip": bool}

each_call = pytest.mark.parametrize("name", CALLS)


@each_call
@pytest.mark.parametrize("num_before", [0, 1, 4])
def test_state_restores_the_stream_without_the_seed(name, num_before):
    rng = RNG(42)
    rng.uniform(size=num_before)
    state = rng.get_state()
    expected = CALLS[name](rng, size=50)
    end = rng.get_state()

    restored = RNG(7)
    restored.set_state(state)
    assert restored.get_state() == state
    assert (CALLS[name](restored, size=50) == expected).all()
    assert restored.get_state() == end


@each_call
def test_an_array_holds_what_single_calls_give(name):
    together, singly = RNG(3), RNG(3)
    together.uniform()
    singly.uniform()
    array = CALLS[name](together, size=(4, 5))
    singles = [CALLS[name](singly) for _ in range(20)]
    assert array.shape == (4, 5)
    assert array.ravel().tolist() == singles
    assert {type(number) for number in singles} == {TYPES.get(name, int)}
    assert together.get_state() == singly.get_state()


@each_call
def test_size_is_a_shape(name):
    call = CALLS[name]
    assert call(RNG(1), size=3).shape == (3,)
    assert call(RNG(1), size=np.int64(3)).shape == (3,)
    assert call(RNG(1), size=[2, 3]).shape == (2, 3)
    assert call(RNG(1), size=()).shape == ()
    assert call(RNG(1), size=0).shape == (0,)
    with pytest.raises(ValueError, match=r"-1.*Remedy"):
        call(RNG(1), size=(2, -1))


@pytest.mark.parametrize(
    ("call", "num_draws"),
    [
        (lambda rng: rng.uniform(), 1),
        (lambda rng: rng.uniform(size=7), 7),
        (lambda rng: rng.normal(), 2),
        (lambda rng: rng.normal(size=3), 6),
        (lambda rng: rng.integers(10), 1),
        (lambda rng: rng.integers(10, size=5), 5),
        (lambda rng: rng.coin_flip(), 1),
        (lambda rng: rng.coin_flip(size=4), 4),
        (lambda rng: rng.permutation(9), 9),
        (lambda rng: rng.uniform(size=0), 0),
        (lambda rng: rng.stream("x").uniform(), 0),
        (lambda rng: rng.state_dict(), 0),
    ],
)
def test_each_call_consumes_what_it_says(call, num_draws):
    """The state counts draws, so consumption is part of the format."""
    rng = RNG(0)
    call(rng)
    assert int(rng.get_state().split("_")[2], 16) == num_draws


def test_rejected_integers_consume_a_draw_each():
    rng = RNG(0)
    rng.integers(-(2**63), HALF_REJECTED - 2**63, size=1000)
    consumed = int(rng.get_state().split("_")[2], 16)
    assert abs(consumed - 2000) < 5 * math.sqrt(2000)


def test_state_has_the_same_size_whatever_was_drawn():
    rng = RNG(2**64 - 1, name="a long name " * 50)
    sizes = {len(rng.get_state())}
    for num_draws in (1, 100, 10**6):
        rng.uniform(size=num_draws)
        sizes.add(len(rng.get_state()))
    assert sizes == {41}


def test_state_dict_survives_json_and_torch_load_and_copies_go_on_by_themselves():
    rng = RNG(5)
    rng.normal(size=3)
    state = rng.state_dict()
    copies = [copy.deepcopy(rng), pickle.loads(pickle.dumps(rng))]
    rng.state_dict()["rng"] = "spoiled"
    assert rng.state_dict() == state == {"rng": rng.get_state()}
    expected = rng.uniform(size=4).tolist()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for loaded in (json.loads(json.dumps(state)), torch.load(file, weights_only=True)):
        copies.append(RNG(0))
        copies[-1].load_state_dict(loaded)
        assert copies[-1].state_dict() == state
    assert [twin.uniform(size=4).tolist() for twin in copies] == [expected] * 4


@pytest.mark.parametrize(
    "state",
    [
        "",
        "philox1",
        "philox1_1adeceffff50d997_000000000000000",
        "philox1_1adeceffff50d997_00000000000000000",
        "philox1_1adeceffff50d997_0000000000000000\n",
        "philox1_1ADECEFFFF50D997_0000000000000000",
        "philox1_1adeceffff50d99g_0000000000000000",
        "philox1_1adeceffff50d997_-000000000000001",
        "philox1_1adeceffff50d997_" + 16 * "\N{ARABIC-INDIC DIGIT ZERO}",
        "philox2_1adeceffff50d997_0000000000000000",
        "Philox_000000000000002a_0000000000000000:0000000000000000_0",
        b"philox1_1adeceffff50d997_0000000000000000",
        None,
        5,
        ["philox1_1adeceffff50d997_0000000000000000"],
    ],
)
def test_malformed_state_is_refused_and_changes_nothing(state):
    """Truncated, foreign, of a later version, of another type."""
    rng = RNG(1)
    rng.uniform(size=3)
    before = rng.get_state()
    with pytest.raises(StateMismatch, check=differing("rng", saved=state)):
        rng.set_state(state)
    with pytest.raises(StateMismatch, check=differing("rng", saved=state)):
        rng.load_state_dict({"rng": state})
    assert rng.get_state() == before


@pytest.mark.parametrize(
    "state_dict", [{}, {"rng": RNG(0).get_state(), "more": 1}, {"RNG": "x"}, None, "rng"]
)
def test_malformed_state_dict_is_refused_and_changes_nothing(state_dict):
    rng = RNG(1)
    with pytest.raises(StateMismatch, check=differing("rng")):
        rng.load_state_dict(state_dict)
    assert rng.get_state() == RNG(1).get_state()


def test_streams_depend_on_key_and_name_alone():
    rng = RNG(42)
    expected = rng.stream("crop").uniform(size=3).tolist()
    rng.uniform(size=100)
    assert rng.stream("crop").uniform(size=3).tolist() == expected
    assert RNG(42, "crop").uniform(size=3).tolist() == expected
    assert RNG(42, name="crop").get_state() == rng.stream("crop").get_state()
    restored = RNG(0)
    restored.set_state(rng.get_state())
    assert restored.stream("crop").uniform(size=3).tolist() == expected


def test_streams_of_different_names_are_different():
    rng = RNG(42)
    generators = [
        rng,
        RNG(43),
        rng.stream(""),
        rng.stream("a"),
        rng.stream("b"),
        rng.stream("ab"),
        rng.stream("a").stream("b"),
        rng.stream("b").stream("a"),
        rng.stream("日本"),
        RNG(43, "a"),
    ]
    assert len({generator.get_state() for generator in generators}) == len(generators)
    drawn = np.concatenate([generator.integers(2**63, size=100) for generator in generators])
    assert len(np.unique(drawn)) == len(drawn)


def test_golden_draws():
    rng = RNG(42)
    assert rng.get_state() == "philox1_1adeceffff50d997_0000000000000000"
    assert rng.get_state(cuda_stream=object()) == rng.get_state(), "as DALI's Checkpoint asks"
    assert repr(rng) == "<RNG philox1_1adeceffff50d997_0000000000000000>"
    assert rng.uniform(size=3).tolist() == [
        0.8665714027693875,
        0.06436330849181515,
        0.5020064147734836,
    ]
    assert rng.integers(1000, size=5).tolist() == [3, 7, 850, 68, 978]
    assert rng.integers(-(2**63), 2**63, size=2).tolist() == [
        -1499922280034784773,
        -8073308566433193318,
    ]
    assert rng.coin_flip(0.5, size=6).tolist() == [False, True, False, True, False, True]
    assert rng.permutation(7).tolist() == [0, 3, 5, 1, 2, 6, 4]
    np.testing.assert_allclose(
        rng.normal(size=3),
        [0.09326686591407825, -0.7856160857121555, 0.34533684732918096],
        rtol=1e-13,
    )
    assert rng.get_state() == "philox1_1adeceffff50d997_000000000000001d"
    assert RNG(42, "crop").get_state() == "philox1_bd95d34cbb0f888d_0000000000000000"
    nested = RNG(-1).stream("a").stream("b")
    assert nested.get_state() == "philox1_067c236ba81c5e14_0000000000000000"


def test_counter_begins_again_after_two_to_the_64_draws():
    rng = RNG(42)
    rng.set_state("philox1_1adeceffff50d997_ffffffffffffffff")
    assert rng.uniform(size=4)[1:].tolist() == RNG(42).uniform(size=3).tolist()
    assert rng.get_state() == "philox1_1adeceffff50d997_0000000000000003"


def test_uniform_is_uniform():
    drawn = RNG(1).uniform(-2, 6, size=100_000)
    assert drawn.min() >= -2
    assert drawn.max() < 6
    assert stats.kstest(drawn, stats.uniform(-2, 8).cdf).pvalue > LEAST_PROBABILITY


def test_normal_is_normal_and_uncorrelated():
    drawn = RNG(1).normal(3, 2, size=100_000)
    assert stats.kstest(drawn, stats.norm(3, 2).cdf).pvalue > LEAST_PROBABILITY
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4.5 / math.sqrt(len(drawn))
    assert RNG(1).normal(3, 0) == 3


@pytest.mark.parametrize("span", [1, 2, 3, 10, 97])
def test_integers_are_uniform(span):
    drawn = RNG(span).integers(-4, span - 4, size=20_000)
    assert drawn.dtype == np.int64
    counts = np.bincount(drawn + 4, minlength=span)
    assert len(counts) == span
    assert span == 1 or stats.chisquare(counts).pvalue > LEAST_PROBABILITY
    assert RNG(1).integers(span, size=20).tolist() == RNG(1).integers(0, span, size=20).tolist()


@pytest.mark.parametrize("span", [3 * 2**61, 3 * 2**62, HALF_REJECTED, 2**64 - 1, 2**64])
def test_integers_of_a_great_span_have_no_bias(span):
    """Without rejection, the low end of 3 * 2**62 integers would come twice as often."""
    low = -(2**63)
    drawn = RNG(8).integers(low, low + span, size=30_000).astype(object) - low
    eighths = np.bincount((drawn * 8 // span).astype(np.int64), minlength=8)
    assert stats.chisquare(eighths).pvalue > LEAST_PROBABILITY


def test_coin_flip_has_its_probability():
    num_heads = int(RNG(1).coin_flip(0.3, size=50_000).sum())
    assert stats.binomtest(num_heads, 50_000, 0.3).pvalue > LEAST_PROBABILITY
    assert RNG(1).coin_flip(1.0, size=1000).all()
    assert not RNG(1).coin_flip(0.0, size=1000).any()


def test_permutation_is_uniform():
    rng = RNG(1)
    drawn = np.stack([rng.permutation(4) for _ in range(2400)])
    assert drawn.dtype == np.int64
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > LEAST_PROBABILITY
    assert rng.permutation(0).tolist() == []
    assert sorted(rng.permutation(1000)) == list(range(1000))


@pytest.mark.parametrize(
    "call",
    [
        lambda rng: rng.uniform(1, 0),
        lambda rng: rng.uniform(0, math.nan),
        lambda rng: rng.uniform(0, math.inf),
        lambda rng: rng.uniform(-1.7e308, 1.7e308),
        lambda rng: rng.normal(0, -1),
        lambda rng: rng.normal(math.nan, 1),
        lambda rng: rng.integers(0),
        lambda rng: rng.integers(5, 5),
        lambda rng: rng.integers(0, 2**63 + 1),
        lambda rng: rng.integers(-(2**63) - 1, 0),
        lambda rng: rng.coin_flip(1.1),
        lambda rng: rng.coin_flip(math.nan),
        lambda rng: rng.permutation(-1),
        lambda rng: rng.uniform(size=-1),
        lambda rng: RNG(2**64),
        lambda rng: RNG(-(2**63) - 1),
    ],
)
def test_impossible_arguments_are_refused_and_draw_nothing(call):
    rng = RNG(1)
    before = rng.get_state()
    with pytest.raises(ValueError, match=r"Remedy"):
        call(rng)
    assert rng.get_state() == before


def test_without_a_seed_it_is_another_generator_each_time_and_restores_any():
    """DALI's RNG() does the same: the restoring side need not know the seed."""
    first, second = RNG(), RNG()
    assert first.get_state() != second.get_state()
    saved = RNG(42)
    saved.uniform(size=3)
    second.set_state(saved.get_state())
    assert second.uniform() == saved.uniform()
    first.uniform()
    resumed = RNG()
    resumed.load_state_dict(first.state_dict())
    assert (resumed.uniform(size=5) == first.uniform(size=5)).all()


def test_a_seed_that_is_not_given_comes_from_pythons_generator():
    """It repeats where the program, or the loader for a sample, has seeded, as DALI's RNG does."""
    random.seed(5)
    first, named = RNG(), RNG(name="crop")
    random.seed(5)
    assert RNG().get_state() == first.get_state()
    assert RNG(name="crop").get_state() == named.get_state()
    random.seed(5)
    assert RNG(None, "crop").get_state() == first.stream("crop").get_state()


DTYPES = [
    *((name, torch.bfloat16) for name in ("uniform", "normal")),
    *(("integers", dtype) for dtype in (torch.int16, torch.uint64)),
    *(("coin_flip", dtype) for dtype in (torch.bool, torch.float32)),
]
AS_TENSORS = {
    "uniform": lambda rng, **more: rng.uniform(-30, 30, **more),
    "normal": lambda rng, **more: rng.normal(5, 2, **more),
    "integers": lambda rng, **more: rng.integers(5, 1000, **more),
    "coin_flip": lambda rng, **more: rng.coin_flip(0.3, **more),
}


@pytest.mark.parametrize(("name", "dtype"), DTYPES, ids=str)
def test_a_dtype_still_makes_a_tensor_of_the_same_draws_and_warns(name, dtype):
    call, array_rng, tensor_rng = AS_TENSORS[name], RNG(3), RNG(3)
    array = call(array_rng, size=(40, 5))
    with pytest.warns(DeprecationWarning, match=r"torch\.as_tensor\(.*\)\.to\(dtype\)") as said:
        tensor = call(tensor_rng, size=(40, 5), dtype=dtype)
    assert said[0].filename == __file__
    assert tensor.dtype == dtype
    assert tensor_rng.get_state() == array_rng.get_state()
    assert torch.equal(tensor, torch.from_numpy(array).to(dtype))
    with pytest.warns(DeprecationWarning, match="dtype="), torch.device("meta"):
        alone = call(RNG(3), dtype=dtype)
    assert alone.device.type == "cpu"
    assert torch.equal(alone, tensor[0, 0])


@pytest.mark.filterwarnings("ignore:dtype= of RNG:DeprecationWarning")
def test_golden_tensors():
    """From versions in which the argument was not deprecated."""
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
    # Rounding to bfloat16 would turn one in 512 numbers of [0, 1) into 1.
    assert RNG(5).uniform(size=10_000, dtype=torch.bfloat16).max() == 1 - 2**-8
    assert RNG(5).uniform(-0.7, -0.1, size=10_000, dtype=torch.float16).double().min() >= -0.7
    assert RNG(1).uniform(1.001, 1.002, size=2, dtype=torch.bfloat16).tolist() == [1.0, 1.0]


@pytest.mark.filterwarnings("ignore:dtype= of RNG:DeprecationWarning")
@pytest.mark.parametrize(
    "call",
    [
        lambda rng: rng.uniform(dtype=torch.int64),
        lambda rng: rng.uniform(dtype="float32"),
        lambda rng: rng.uniform(0, 65_520, dtype=torch.float16),
        lambda rng: rng.normal(0, 8000, dtype=torch.float16),
        lambda rng: rng.integers(257, dtype=torch.uint8),
        lambda rng: rng.integers(-1, 3, dtype=torch.uint64),
        lambda rng: rng.coin_flip(dtype=bool),
        lambda rng: rng.permutation(257, dtype=torch.uint8),
    ],
)
def test_numbers_that_a_dtype_may_not_hold_are_refused_and_draw_nothing(call):
    rng = RNG(1)
    before = rng.get_state()
    with pytest.raises(ValueError, match=r"Remedy"):
        call(rng)
    assert rng.get_state() == before


def test_draws_are_accepted_up_to_the_greatest_multiple_of_the_span() -> None:
    """2**64 is 1 more than a multiple of 3, so only the last of all draws is rejected."""
    rng = RNG(0)
    draws = iter([2**64 - 1, 2**64 - 2])
    rng._draw = lambda num_draws: np.array([next(draws) for _ in range(num_draws)], np.uint64)
    assert rng.integers(3) == 2
