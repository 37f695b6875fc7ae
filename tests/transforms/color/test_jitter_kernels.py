"""ColorJitter's Triton kernels: interpreted, compiled for Hopper, and run where there is a GPU."""

from __future__ import annotations

import importlib
import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from stateful_gpu_loader.transforms import ColorJitter
from stateful_gpu_loader.transforms.color import jitter
from tests.transforms.batch_recipes import images, numbers_for, one_by_one
from tests.transforms.color.jitter_cases import DTYPES, SIZE, USUAL, cases, in_any_order
from tests.transforms.triton_runs import interpreted, needs_triton, ptx_for_hopper

NAMES = list(cases())


@pytest.fixture(scope="module")
def found() -> Any:
    """The kernels' results for each case."""
    return interpreted("tests.transforms.color.interpreted_jitter")


@needs_triton
@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_are_torchs_path(found: Any, name: str) -> None:
    """Bit for bit, in every order and layout, in separate memory with the same layout."""
    made = found[name]
    assert made["num_different"] > 0 or name == "a whole turn, uint8"
    assert made["num_unequal"] == 0
    assert made["dtypes"][0] == made["dtypes"][1]
    assert made["shapes"][0] == made["shapes"][1]
    assert made["is_input_as_before"]
    assert not made["is_memory_shared"]
    assert all(is_so or not was_so for was_so, is_so in zip(*made["layouts"], strict=True))


@needs_triton
@pytest.mark.parametrize("dtype", ["u8", "fp32"])
@pytest.mark.parametrize("kernel", ["grey_kernel", "jitter_kernel"])
def test_the_kernels_compile_for_hopper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str, kernel: str
) -> None:
    """To machine code, by triton's ptxas, and fused only where intended."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from stateful_gpu_loader.transforms.color import jitter_kernels

    constants = {"FIELDS": jitter_kernels.FIELDS, "BLOCK": jitter_kernels.BLOCK}
    pointers = {"table": "*fp64", "images": f"*{dtype}", "out": f"*{dtype}"}
    num_warps = jitter_kernels.NUM_WARPS
    text = ptx_for_hopper(getattr(jitter_kernels, kernel), pointers, constants, num_warps)
    pixels = jitter_kernels.BLOCK // (32 * jitter_kernels.NUM_WARPS)
    # Three for each blend, two for each grey.
    assert text.count("fma.rn.f32") == pixels * (8 if kernel == "jitter_kernel" else 7)
    assert text.count("div.rn.f32") == pixels * 3
    # No quotient is approximate, and only floor flushes the smallest float32 to 0.
    assert not re.search(r"(?<!cvt\.rmi)\.ftz|\.approx|div\.full", text)


@needs_triton
@pytest.mark.parametrize(
    ("module", "kernel"),
    [
        ("color.jitter_kernels", "grey_kernel"),
        ("color.jitter_kernels", "jitter_kernel"),
        ("batches.kernels", "resample_kernel"),
    ],
)
def test_no_number_makes_triton_compile_again(module: str, kernel: str) -> None:
    """A new batch size would otherwise wait for the compiler in the middle of a pass."""
    kernels = importlib.import_module(f"stateful_gpu_loader.transforms.{module}")
    tensors = ("table", "images", "out", "parameters", "coefficients")
    numbers = [
        parameter
        for parameter in getattr(kernels, kernel).params
        if not parameter.is_constexpr and parameter.name not in tensors
    ]
    assert len(numbers) >= 4
    assert all(parameter.do_not_specialize for parameter in numbers)


def test_what_the_kernels_do_not_know_is_left_to_torch() -> None:
    """Channels, dtypes, devices, and distances beyond 32 bits; nothing is allocated here."""
    with FakeTensorMode():
        # Made directly: a fake tensor's views and copies ask torch 2.8 for a CUDA driver.
        new = partial(torch.empty, device="cuda")
        strided = partial(torch.empty_strided, device="cuda")
        for dtype in DTYPES:
            assert jitter._within_kernels(new(2, 3, 8, 8, dtype=dtype))
        assert jitter._within_kernels(new(2, 3, 8, 8, memory_format=torch.channels_last))
        assert not jitter._within_kernels(new(2, 1, 8, 8))
        assert not jitter._within_kernels(new(2, 3, 8, 8, dtype=torch.float16))
        assert not jitter._within_kernels(new(2, 3, 8, 8, dtype=torch.float64))
        assert not jitter._within_kernels(torch.empty(2, 3, 8, 8))
        large = new(1, 3, 2**15, 2**15, dtype=torch.uint8)
        assert not jitter._within_kernels(large)
        assert jitter._within_kernels(new(1, 3, 2**14, 2**14, dtype=torch.uint8))
        assert not jitter._within_kernels(strided((1, 3, 8, 8), large.stride(), dtype=torch.uint8))
        assert not jitter._within_kernels(strided((1, 3, 2**15, 2**15), (192, 64, 0, 0)))


def test_where_triton_does_not_run_torch_does(caplog: pytest.LogCaptureFixture) -> None:
    """On a CPU triton refuses, or is missing: one warning, no error."""
    with caplog.at_level(logging.WARNING):
        assert jitter._kernels.__wrapped__(torch.device("cpu")) is None
    assert "torch changes colors" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_makes_what_its_torch_makes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Bytes bit for bit; the last bit of a float sum, which a later hue scales up to 1e-6."""
    recipe, batch, numbers = cases()[name]
    there = batch.cuda()
    assert jitter._kernels(there.device) is not None
    made = recipe.apply_batch(there, numbers)
    monkeypatch.setattr(jitter, "_kernels", lambda device: None)
    expected = recipe.apply_batch(there, numbers)
    if batch.dtype is torch.uint8:
        assert torch.equal(made, expected)
    else:
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gpu_makes_what_the_cpu_makes_of_each_image(dtype: torch.dtype) -> None:
    recipe, batch, numbers = in_any_order(images(24, (224, 224), dtype, "planes"))
    made = recipe.apply_batch(batch.cuda(), numbers).cpu()
    expected = one_by_one(recipe, batch, numbers)
    level = 1 if dtype is torch.uint8 else 1e-6
    difference = (made.double() - expected.double()).abs()
    assert difference.max() <= level
    assert (difference > 0).double().mean() <= 1e-4 or dtype is torch.float32


@pytest.mark.gpu
def test_a_gpu_makes_the_same_bits_every_time() -> None:
    """Whatever the order in which the programs add up the grey."""
    batch = torch.rand(8, 3, 777, 999, device="cuda")
    numbers = numbers_for(USUAL, batch)
    first = USUAL.apply_batch(batch, numbers)
    for _ in range(20):
        assert torch.equal(USUAL.apply_batch(batch, numbers), first)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("recipe", "launches"),
    [(USUAL, ["grey_kernel", "jitter_kernel"]), (ColorJitter(hue=0.1), ["jitter_kernel"])],
    ids=["with contrast", "without"],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_launches_at_most_and_one_copy(
    dtype: torch.dtype, recipe: ColorJitter, launches: list[str]
) -> None:
    batch = images(64, SIZE, dtype, "planes").cuda()
    numbers = numbers_for(recipe, batch)
    recipe.apply_batch(batch, numbers)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        recipe.apply_batch(batch, numbers)
        torch.cuda.synchronize()
    events = [event for event in recorded.events() if event.device_type == DeviceType.CUDA]
    assert sorted(event.name.split(" ")[0] for event in events) == ["Memcpy", *launches]


@pytest.mark.gpu
def test_several_devices_have_kernels_of_their_own() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    batch = images(4, SIZE, torch.uint8, "planes")
    numbers = np.asarray(numbers_for(USUAL, batch))
    made = [USUAL.apply_batch(batch.to(f"cuda:{i}"), numbers) for i in range(2)]
    assert made[1].device.index == 1
    assert torch.equal(made[0].cpu(), made[1].cpu())
