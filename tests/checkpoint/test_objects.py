"""Objects that can be registered, and the type under which each is kept."""

from __future__ import annotations

import os
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import RNG, ShuffledSampler, StatefulGPULoader, samplers
from stateful_gpu_loader.checkpoint import Checkpoint, objects
from stateful_gpu_loader.checkpoint.document import SavedState
from stateful_gpu_loader.checkpoint.objects import Stateful, type_name
from stateful_gpu_loader.errors import CheckpointError
from tests.checkpoint.counters import Counter, Text

MODULE = torch.nn.Linear(2, 2)
SGD = torch.optim.SGD(MODULE.parameters(), lr=0.1, momentum=0.9)


def saved_and_loaded(thing: Any) -> tuple[Checkpoint, Checkpoint]:
    """Return a checkpoint that holds the state of an object, and one that has loaded it."""
    saved, loaded = Checkpoint(), Checkpoint()
    saved.register(thing, "it")
    saved.collect()
    loaded.deserialize(saved.serialize())
    return saved, loaded


TYPES = {
    "stateful_gpu_loader.StatefulGPULoader": lambda: StatefulGPULoader([1, 2]),
    "stateful_gpu_loader.ShuffledSampler": lambda: ShuffledSampler([1, 2]),
    "stateful_gpu_loader.RNG": lambda: RNG(1),
    "torch.nn.Linear": lambda: MODULE,
    "torch.optim.SGD": lambda: SGD,
    "torch.optim.lr_scheduler.StepLR": lambda: torch.optim.lr_scheduler.StepLR(SGD, 2),
    "torch.optim.lr_scheduler.MultiStepLR": lambda: torch.optim.lr_scheduler.MultiStepLR(SGD, [2]),
    "torch.Generator": torch.Generator,
    "random.Random": lambda: random.Random(1),
    "module random": lambda: random,
    "module numpy.random": lambda: np.random,
    "numpy.random.Generator": lambda: np.random.default_rng(1),
    "numpy.random.RandomState": lambda: np.random.RandomState(1),
    "numpy.random.Philox": lambda: np.random.Philox(1),
    "numpy.random.MT19937": lambda: np.random.MT19937(1),
    "tests.checkpoint.counters.Counter": Counter,
    "tests.checkpoint.counters.Text": Text,
}


def test_state_survives_a_text_and_is_kept_under_the_public_name() -> None:
    for name, build in TYPES.items():
        saved, checkpoint = saved_and_loaded(build())
        assert f'"type": "{name}"' in saved.serialize()
        checkpoint.register(build(), "it")
        checkpoint.restore()
        checkpoint.collect()
        of_states = [text.serialize().partition('"states"')[2] for text in (saved, checkpoint)]
        assert of_states[0] == of_states[1]


def test_generators_resume_exactly() -> None:
    """Generators that a run of :mod:`tests.checkpoint.test_exact_runs` does not have."""
    for build in (
        lambda: np.random.RandomState(3),
        lambda: np.random.Generator(np.random.SFC64(3)),
    ):
        generator: Any = build()
        generator.normal(size=3)
        _, checkpoint = saved_and_loaded(generator)
        expected, restored = generator.normal(size=9).tolist(), build()
        checkpoint.register(restored, "it")
        assert restored.normal(size=9).tolist() == expected


class OnlyTakes:
    def state_dict(self) -> dict[str, Any]:
        return {}


def test_object_without_a_state_is_refused_by_name() -> None:
    for thing, reason in (
        (None, "builtins.NoneType has no state that can be saved and restored"),
        ({"a": 1}, "builtins.dict has no state"),
        (torch.zeros(2), "torch.Tensor has no state"),
        (torch.utils.data.DataLoader([1]), "torch.utils.data.DataLoader has no state"),
        (OnlyTakes(), r"OnlyTakes has no state .*: state_dict\(\) without load_state_dict\(\)"),
        (os, "module os has no state"),
        (RNG, "stateful_gpu_loader.RNG is a class and has no state"),
    ):
        checkpoint = Checkpoint()
        with pytest.raises(CheckpointError, match=rf"{reason}"):
            checkpoint.register(thing, "it")
        assert len(checkpoint) == 0


def test_generator_of_another_algorithm_is_refused() -> None:
    """NumPy's Generator has one type for all bit generators."""
    _, checkpoint = saved_and_loaded(np.random.default_rng(1))
    other = np.random.Generator(np.random.Philox(1))
    with pytest.raises(CheckpointError, match=r"'it'.*PCG64.*Philox"):
        checkpoint.register(other, "it")
    assert other.random() == np.random.Generator(np.random.Philox(1)).random()
    checkpoint.set_state("it", 3)
    with pytest.raises(CheckpointError, match="None"):
        checkpoint.register(other, "it")


def test_class_may_move_inside_its_package() -> None:
    """The state is kept under the shortest name. The longer names of older files are recognised."""
    thing = Stateful("rng", RNG(1))
    for known in ("stateful_gpu_loader.RNG", "stateful_gpu_loader.rng.RNG"):
        thing.check(SavedState.of(known, "x"))
    for other in ("RNG", "rng.RNG", "stateful_gpu_loader.loader.RNG", "RNG.RNG"):
        with pytest.raises(CheckpointError, match="is of type"):
            thing.check(SavedState.of(other, "x"))


def test_class_of_a_function_or_of_no_module_has_a_name() -> None:
    class Local(Counter):
        pass

    assert type_name(Local()) == (
        f"{__name__}.test_class_of_a_function_or_of_no_module_has_a_name.<locals>.Local"
    )
    Local.__module__ = "gone.away"
    assert type_name(Local()).startswith("gone.away.test_class")


def test_class_of_the_same_name_elsewhere_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = types.ModuleType("pack"), types.ModuleType("pack.inner")

    class Thing(Counter):
        pass

    Thing.__module__, Thing.__qualname__ = "pack.inner", "Thing"
    package.Thing = Counter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pack", package)
    monkeypatch.setitem(sys.modules, "pack.inner", module)
    assert type_name(Thing()) == "pack.inner.Thing"
    package.Thing = Thing  # type: ignore[attr-defined]
    assert type_name(Thing()) == "pack.Thing"


def test_class_of_the_main_script_is_that_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved by ``python net.py`` and loaded by a script that imports net, and the reverse."""

    class Net(Counter):
        pass

    class Other(Counter):
        pass

    Net.__qualname__, Other.__qualname__ = "Net", "Other"
    for saving, loading in (("__main__", "net"), ("net", "__main__"), ("__main__", "__main__")):
        monkeypatch.setattr(Net, "__module__", saving)
        saved = Stateful("net", Net()).take()
        assert saved.type_name == f"{saving}.Net"
        monkeypatch.setattr(Net, "__module__", loading)
        Stateful("net", Net()).check(saved)
        monkeypatch.setattr(Other, "__module__", loading)
        with pytest.raises(CheckpointError, match=rf"{saving}\.Net, .*{loading}\.Other"):
            Stateful("net", Other()).check(saved)
    with pytest.raises(CheckpointError, match="is of type"):
        Stateful("random", random).check(SavedState.of("__main__.module", "x"))


def test_tensors_leave_their_graph_and_their_memory() -> None:
    counter = Counter()
    weight = torch.ones(2, requires_grad=True)
    counter.history = [(weight * 2).detach(), weight.detach()[:1]]  # type: ignore[list-item]
    saved = Stateful("it", counter).take()
    assert [tensor.tolist() for tensor in saved.state["history"]] == [[2.0, 2.0], [1.0]]
    with torch.no_grad():
        weight.zero_()
    assert saved.state["history"][1].tolist() == [1.0]
    assert saved.state["history"][1].untyped_storage().nbytes() == 4


@pytest.mark.gpu
def test_state_on_a_gpu_is_saved_from_and_put_back_onto_it() -> None:
    module = torch.nn.Linear(2, 2, device="cuda")
    generator = torch.Generator("cuda").manual_seed(3)
    checkpoint = Checkpoint()
    checkpoint.register(module, "module")
    checkpoint.register(generator, "generator")
    before, drawn = module.weight.detach().clone(), None
    checkpoint.collect()
    drawn = torch.rand(3, device="cuda", generator=generator)
    with torch.no_grad():
        module.weight.zero_()
    checkpoint.deserialize(checkpoint.serialize())
    checkpoint.restore()
    assert module.weight.device.type == "cuda"
    assert torch.equal(module.weight, before)
    assert torch.equal(torch.rand(3, device="cuda", generator=generator), drawn)


MOVED = {
    "BalancedSampler": lambda: samplers.BalancedSampler([0, 1] * 8, seed=1),
    "RepeatedSampler": lambda: samplers.RepeatedSampler(range(3), 2, seed=1),
    "SubsetSampler": lambda: samplers.SubsetSampler([1, 2], seed=1),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_file_that_names_a_class_at_the_root_loads_since_it_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    saved, loaded = Checkpoint(), Checkpoint()
    saved.register(MOVED[name](), "sampler")
    with monkeypatch.context() as before:
        before.setattr(objects, "_type_names", lambda thing: [f"stateful_gpu_loader.{name}"])
        saved.collect()
        path = saved.save(str(tmp_path / "run.json"))
    loaded.load(path)
    loaded.register(MOVED[name](), "sampler")
