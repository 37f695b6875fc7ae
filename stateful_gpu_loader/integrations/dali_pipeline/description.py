"""Which pipeline a state belongs to: a text of what must not change, compared field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.integrations.dali_pipeline.content import contents_of
from stateful_gpu_loader.integrations.dali_pipeline.graph import Graph, Operator

LONGEST_VALUE, LONGEST_TEXT = 100, 8192
"""Characters of a value and of all: what is longer stands in the state as a digest."""

_NOT_GIVEN = "not given"
_LENGTH = ".epoch_size"
_REMEDY = (
    "build the pipeline as it was when the state was saved: DALI would go on in another one "
    "without a word"
)

Description = dict[str, Any]
"""Values of JSON by field: ``batch_size``; an operator's kind by its name, ``reader``; its
arguments as ``reader.initial_fill``."""


def describe(graph: Graph, *, last_batch_policy: str) -> Description:
    """All that decides what the batches are, so far as it is known before the pipeline is built.

    Not the number of threads, the device's number or the depth of queues; these may change.
    """
    described: Description = {
        "batch_size": graph.batch_size,
        "last_batch_policy": last_batch_policy,
        "seed": graph.seed,
    }
    described |= {operator.name: operator.kind for operator in graph.operators}
    described["outputs"] = _brief(list(graph.outputs))
    arguments = {operator.name: _arguments(operator) for operator in graph.operators}
    is_long = len(json.dumps([described, arguments])) > LONGEST_TEXT
    for operator in graph.operators:
        if is_long and not operator.kind.startswith("readers."):
            described[operator.name] += f" {_digest(arguments[operator.name])}"
            continue
        for name, value in arguments[operator.name].items():
            described[f"{operator.name}.{name}"] = value
    return described


def lengths(metas: Mapping[str, Mapping[str, int]]) -> Description:
    """What is known of readers' data once the pipeline is built.

    Args:
        metas: what ``Pipeline.reader_meta()`` returned.
    """
    return {f"{name}{_LENGTH}": meta["epoch_size"] for name, meta in metas.items()}


def without_lengths(description: Description) -> Description:
    """A description as it is before the pipeline is built."""
    return {field: value for field, value in description.items() if not field.endswith(_LENGTH)}


def from_text(text: str) -> Description:
    """Read a description that was written as JSON.

    Raises:
        ValueError: it is no such text.
    """
    description = json.loads(text)
    if not isinstance(description, dict):
        raise ValueError(f"a description is a JSON object, not {type(description).__name__}")
    return description


def check_same(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Compare two descriptions.

    A seed that was not given is not compared: DALI's checkpoint brings the state of every
    generator, whatever its seed was.

    Raises:
        StateMismatch: they differ; it names the first field that does.
    """
    everything = [*present, *(field for field in saved if field not in present)]
    # Operators first: one more or one less renames others, and DALI tells them apart by name.
    for field in sorted(everything, key=lambda field: "." in field or field == "outputs"):
        before, now = saved.get(field, _NOT_GIVEN), present.get(field, _NOT_GIVEN)
        if before == now or (field == "seed" and None in (before, now)):
            continue
        raise StateMismatch(field, saved=before, present=now, remedy=_REMEDY)


def _arguments(operator: Operator) -> dict[str, Any]:
    values = {**operator.arguments, **contents_of(operator)}
    if operator.inputs:
        values["inputs"] = list(operator.inputs)
    return {name: _brief(value) for name, value in values.items()}


def _brief(value: Any) -> Any:
    text = json.dumps(value)
    if len(text) <= LONGEST_VALUE:
        return value
    count = f"{len(value)} values, " if isinstance(value, list) else ""
    return f"{text[: LONGEST_VALUE // 2]}... ({count}{_digest(value)})"


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()
