"""Fields that identify DALI pipelines, each by itself, and changes that may be accepted."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import torch

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.integrations.dali import DALILoader
from stateful_gpu_loader.integrations.dali_pipeline.description import changes
from tests.conformance import copy_of, differing, same
from tests.integrations.dali_readers import (
    Arguments,
    after_two_batches,
    augmented,
    loader,
    numbers,
    piped,
)

pytest.importorskip("nvidia.dali")


def test_operators_are_compared_before_what_follows_from_them() -> None:
    """Whatever their names."""
    saved = {"outputs": "x", "a.b.size": 3, "operator a.b": "Crop", "batch_size": 2}
    found = changes(saved, {"outputs": "y", "batch_size": 2})
    assert list(found) == ["operator a.b", "outputs", "a.b.size"]


@pytest.mark.parametrize("name", ["seed", "batch_size", "reader_name", "outputs"])
def test_an_operator_may_have_the_name_of_a_field(
    datasets: dict[str, Arguments], name: str
) -> None:
    """The field is still compared: another seed is another seed."""
    made = partial(loader, numbers(), "file", {**datasets["file"], "name": name})
    state = after_two_batches(made())
    made().load_state_dict(state)
    for changed, field in (({"seed": 99}, "seed"), ({"batch_size": 4}, "batch_size")):
        with pytest.raises(StateMismatch) as caught:
            made(**changed).load_state_dict(state)
        assert caught.value.field == field


def test_another_reader_that_ends_the_epochs_is_refused(datasets: dict[str, Arguments]) -> None:
    """Its position would be another place. Naming the only reader changes nothing."""
    from nvidia.dali import fn

    def build(reader_name: str | None, names: str = "ab") -> DALILoader:
        def outputs() -> Any:
            return tuple(fn.readers.file(name=name, **datasets["file"])[1] for name in names)

        return piped(outputs, *names, reader_name=reader_name)

    state = after_two_batches(build("a"))
    with pytest.raises(StateMismatch, check=differing("reader_name", saved="a", present="b")):
        build("b").load_state_dict(state)
    build("a").load_state_dict(state)
    build("a", "a").load_state_dict(after_two_batches(build(None, "a")))


def test_a_nan_among_the_arguments_is_not_a_change(datasets: dict[str, Arguments]) -> None:
    from nvidia.dali import fn

    def build(fill_value: float) -> DALILoader:
        def outputs() -> Any:
            labels = fn.readers.file(name="reader", **datasets["file"])[1]
            drawn = fn.random.uniform(range=(0.0, 1.0), shape=[3])
            return fn.pad(drawn, fill_value=fill_value, shape=[4], name="pad"), labels

        return piped(outputs, "drawn", "labels")

    run = build(float("nan"))
    batches = iter(run)
    next(batches)
    state = run.state_dict()
    resumed = build(float("nan"))
    resumed.load_state_dict(state)
    for batch, again in zip(batches, resumed, strict=True):
        assert torch.equal(batch["drawn"][:, :3], again["drawn"][:, :3])
    with pytest.raises(StateMismatch, check=differing("pad.fill_value")):
        build(0.0).load_state_dict(state)


def test_an_operators_argument_may_be_accepted(datasets: dict[str, Arguments]) -> None:
    """The crops are drawn as before, and resized to another size."""
    state = after_two_batches(loader(augmented(), "file", datasets["file"], size=12))
    other = loader(augmented(), "file", datasets["file"], size=16)
    accept = {"__RandomResizedCrop_1.size"}
    other.load_state_dict(state, accept=accept)
    expected = loader(augmented(), "file", datasets["file"], size=16)
    after_two_batches(expected)
    assert same(list(other), [copy_of(batch) for batch in expected])


def test_changes_that_move_the_readers_place_cannot_be_accepted(
    datasets: dict[str, Arguments],
) -> None:
    reading = {**datasets["file"], "num_shards": 2, "random_shuffle": True}
    loaded = loader(augmented(), "file", reading)
    state = after_two_batches(loaded)
    fields = {
        "batch_size",
        "seed",
        "last_batch_policy",
        "reader.epoch_size",
        "reader.num_shards",
        "reader.random_shuffle",
        "operator reader",
        "outputs",
        "__Rotate_3.inputs",
        "__Rotate_3.device",
    }
    assert fields <= set(json.loads(state["pipeline"]))
    for accept in (*({field} for field in fields), {"no such field"}, "seed", 3):
        with pytest.raises(ValueError, match=r"'reader\.files'"):
            loaded.load_state_dict(state, accept=accept)  # type: ignore[arg-type]
        assert loaded.state_dict() == state
