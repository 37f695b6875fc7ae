"""Which reader of dynamic mode a state belongs to: what must not change, field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.integrations.dali_pipeline.content import contents_of
from stateful_gpu_loader.integrations.dali_pipeline.graph import IGNORED, Operator
from stateful_gpu_loader.state import describe

LONGEST_VALUE = 100
"""Characters: what is longer stands in the state as a digest."""

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
"""DALI's own: whoever writes one out has not changed the reader."""

_NOT_GIVEN = "not given"
_REMEDY = (
    "build the reader as it was when the state was saved: DALI would go on in another one "
    "without a word"
)


def configuration_of(reader_type: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Values of JSON, of all that decides what a reader delivers and is known before it reads.

    Of paths, what lies there; not how fast it is read.

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
        **{name: _brief(described[name]) for name in sorted(described)},
    }


def check_same(saved: Mapping[str, Any], present: Mapping[str, Any], *, brings_seed: bool) -> None:
    """Compare two configurations.

    Args:
        saved: of a state.
        present: of a reader.
        brings_seed: whether the state holds DALI's own, which makes a seed needless. Then one that
            was not given is not compared.

    Raises:
        StateMismatch: they differ; it names the first field that does.
    """
    for field in [*present, *(field for field in saved if field not in present)]:
        before, now = saved.get(field, _NOT_GIVEN), present.get(field, _NOT_GIVEN)
        if field == "seed" and brings_seed and _NOT_GIVEN in (before, now):
            continue
        if before != now:
            raise StateMismatch(field, saved=before, present=now, remedy=_REMEDY)


def _plain(value: Any) -> Any:
    """The value as JSON would bring it back; of what has no such form, its type."""
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "__fspath__"):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy's and torch's
        return _plain(value.tolist())
    return describe(value)


def _brief(value: Any) -> Any:
    text = json.dumps(value)
    if len(text) <= LONGEST_VALUE:
        return value
    count = f"{len(value)} values, " if isinstance(value, list) else ""
    digest = blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{text[: LONGEST_VALUE // 2]}... ({count}{digest})"
