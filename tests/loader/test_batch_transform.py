"""batch_transform: the keys of its draws, its input, and the cost of its exceptions."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.conformance import assert_same_rest, copy_of, loaded, refusal, same, uninterrupted
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.makers import MAKERS
from tests.stream_kinds import Labelled

__all__ = ["fake_gpu"]
Loader = StatefulGPULoader[Any]
N = 22


def noise(batch: list[torch.Tensor]) -> list[Any]:
    images, labels = batch
    images = images + torch.rand(()) + random.random() + float(np.random.rand())
    return [images, labels]


def make(given: Any = noise, **changes: Any) -> Loader:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, **changes}
    return StatefulGPULoader(Labelled(N), batch_transform=given, **arguments)


@pytest.mark.processes
def test_the_generator_of_the_device_is_keyed_and_put_back(fake_gpu: FakeGpu) -> None:
    """Like the CPU's generator, it is keyed by the batch's first position."""

    def noisy(batch: list[torch.Tensor]) -> list[torch.Tensor]:
        return [batch[0] + torch.rand((), generator=fake_gpu.generator), batch[1]]

    build = partial(make, noisy, device="cuda")
    expected, states = uninterrupted(build(), 2)
    resumed = loaded(build(num_workers=2), states[0, 3])
    assert_same_rest(resumed, expected, (0, 3), 2)
    fake_gpu.generator.manual_seed(9)
    before = fake_gpu.generator.get_state()
    images = torch.cat([images for images, _ in build()])
    assert same(fake_gpu.generator.get_state(), before)
    plain = torch.cat([images for images, _ in make(lambda batch: batch)])
    drawn = (images - plain)[:, 0, 0, 0]
    assert len(set(drawn[::4].tolist())) == len(drawn[::4]), "each batch draws its own"


def test_batches_of_one_address_have_equal_draws_and_others_do_not() -> None:
    """The key consists of seed, epoch and first position."""
    expected, _ = uninterrupted(make(), 2)
    again, _ = uninterrupted(make(num_workers=2), 2)
    assert same(again, expected)
    other_seed, _ = uninterrupted(make(seed=4), 1)
    assert not same(other_seed[0], expected[0])
    shares = [
        float((images[0] - images[0].round()).flatten()[0])
        for batches in expected
        for images, _ in batches
    ]
    assert len(set(shares)) == len(shares)


def test_two_batch_recipes_have_independent_draws() -> None:
    """Adding a recipe at the end changes no draw of the others."""
    seen: dict[str, list[float]] = {"one": [], "two": []}

    class Spy(T.MixUp):
        def __init__(self, name: str) -> None:
            super().__init__(num_classes=5)
            self.name = name

        def draw(self, uniforms: Any, *rest: Any) -> Any:
            seen[self.name] += uniforms.tolist()
            return super().draw(uniforms, *rest)

        def fingerprint(self) -> str:
            return self.name

    list(make([Spy("one")]))
    alone = seen["one"].copy()
    seen["one"].clear()
    list(make([Spy("one"), Spy("two")]))
    assert seen["one"] == alone
    assert not set(seen["one"]) & set(seen["two"])


def test_it_receives_the_batch_and_may_return_anything() -> None:
    loader = make(lambda batch: {"images": batch[0].shape, "type": type(batch)}, drop_last=True)
    assert list(loader) == [{"images": (4, 3, 8, 8), "type": list}] * 5


def test_an_exception_affects_only_its_batch_and_the_state_stays_before_it() -> None:
    calls: list[int] = []

    def fails_once(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError("in the transform")
        return batch

    expected = [copy_of(batch) for batch in make(lambda batch: batch)]
    loader = make(fails_once, num_workers=2)
    batches = iter(loader)
    found = [next(batches), next(batches)]
    state = loader.state_dict()
    with pytest.raises(ZeroDivisionError, match="in the transform"):
        next(batches)
    assert loader.state_dict() == state
    assert same([*found, *batches], [*expected[:2], *expected[3:]])


def test_out_of_order_an_exception_does_not_hold_the_state_back() -> None:
    """When a later batch is delivered, the failed batch is given up."""
    calls: list[int] = []

    def fails_once(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError
        return batch

    loader = make(fails_once, num_workers=1, in_order=False)
    batches = iter(loader)
    next(batches)
    next(batches)
    with pytest.raises(ZeroDivisionError):
        next(batches)
    next(batches)
    state = loader.state_dict()
    assert (state["position"], state["ahead"]) == (16, None)


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), torch.OutOfMemoryError("CUDA out of memory.")], ids=repr
)
def test_an_interrupt_and_full_memory_lose_no_batch(error: BaseException, workers: int) -> None:
    """The batch may have been half changed, so it is made again; the state stays before it."""
    calls: list[int] = []

    def fails_twice(batch: Any) -> Any:
        calls.append(1)
        if len(calls) in (3, 4):
            batch[0].zero_()
            raise error
        return noise(batch)

    expected = [copy_of(batch) for batch in make()]
    loader = make(fails_twice, num_workers=workers)
    batches = iter(loader)
    found = [copy_of(next(batches)), copy_of(next(batches))]
    state = loader.state_dict()
    for _ in range(2):
        with pytest.raises(type(error)):
            next(batches)
        assert loader.state_dict() == state
    assert same([*found, *(copy_of(batch) for batch in batches)], expected)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.* of the iterable dataset are read again:UserWarning")
@pytest.mark.parametrize(
    ("kind", "workers"), [("dataset with state", 0), ("sampler and dataset with state", 2)]
)
def test_an_interrupt_keeps_states_of_objects_exact(kind: str, workers: int) -> None:
    """Their states return to the delivered place."""
    calls: list[int] = []

    def fails_twice(batch: Any) -> Any:
        calls.append(1)
        if len(calls) in (3, 5):
            raise KeyboardInterrupt
        return batch

    expected = [copy_of(batch) for batch in MAKERS[kind](num_workers=workers)]
    loader = MAKERS[kind](num_workers=workers, batch_transform=fails_twice)
    batches, found = iter(loader), []
    for _ in range(len(expected) + 2):
        try:
            found.append(copy_of(next(batches)))
        except KeyboardInterrupt:
            assert len(found) in (2, 3)
    assert same(found, expected)


def test_another_batch_transform_is_a_mismatch() -> None:
    state = make(T.MixUp(num_classes=5)).state_dict()
    for other in (T.MixUp(num_classes=6), noise, None):
        assert "MixUp" in refusal(make(other), state, "batch_transform").saved
    make(None).load_state_dict(state, accept={"batch_transform"})
    make(T.MixUp(num_classes=5)).load_state_dict(state)


def test_a_state_of_a_version_without_batch_transforms_loads() -> None:

    state = make(None).state_dict()
    fields = json.loads(state["fingerprint"])
    del fields["batch_transform"]
    older = {**state, "fingerprint": json.dumps(fields)}
    make(None).load_state_dict(older)
    refusal(make(noise), older, "batch_transform")


def test_a_non_callable_is_refused() -> None:
    with pytest.raises(TypeError, match=r"batch_transform has 3 of type int"):
        make([noise, 3])
