"""The configuration of a reader of dynamic mode, compared field by field with that in a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateful_gpu_loader.integrations.dali_identity import (
    NOT_GIVEN,
    Differences,
    brief,
    differences,
)
from stateful_gpu_loader.integrations.dali_pipeline.content import contents_of
from stateful_gpu_loader.integrations.dali_pipeline.graph import IGNORED, Operator
from stateful_gpu_loader.state.descriptions import describe

_FREE = IGNORED | {"name", "enable_checkpointing", "max_batch_size", "num_inputs"}
_DEFAULTS: dict[str, Any] = {
    "device": "cpu",
    "initial_fill": 1024,
    "num_shards": 1,
    "pad_last_batch": False,
    "random_shuffle": False,
    "shard_id": 0,
    "shuffle_after_epoch": False,
    "stick_to_shard": False,
}
"""DALI's own defaults: giving one of them explicitly does not change the reader."""


def configuration_of(reader_type: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return, as JSON values, all that determines what a reader delivers, before it reads.

    Paths are described by the data there; options that only change the speed are left out.

    >>> class File: ...
    >>> configuration_of(File, {"random_shuffle": True, "seed": 7, "read_ahead": True})["seed"]
    7
    """
    given = {
        name: _plain(value)
        for name, value in arguments.items()
        if value is not None and name not in _FREE
    }
    reader = Operator("reader", f"readers.{reader_type.__name__}", (), given)
    described = {**_DEFAULTS, **given, **contents_of(reader)}
    return {
        "reader": f"{reader_type.__module__}.{reader_type.__qualname__}",
        **{name: brief(described[name]) for name in sorted(described)},
    }


def changes(
    saved: Mapping[str, Any], present: Mapping[str, Any], *, brings_seed: bool
) -> Differences:
    """Return the differences between two configurations.

    Args:
        saved: configuration in a state.
        present: configuration of a reader.
        brings_seed: whether the state contains DALI's own state, which replaces the seed. A seed
            that was not given is then not compared.
    """
    found = differences(saved, present)
    if brings_seed and NOT_GIVEN in found.get("seed", ()):
        del found["seed"]
    return found


def _plain(value: Any) -> Any:
    """Return the value as JSON would restore it, or a description if it has no such form."""
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "__fspath__"):
        return str(value)
    if hasattr(value, "tolist"):  # arrays of NumPy and torch
        return _plain(value.tolist())
    return describe(value)
