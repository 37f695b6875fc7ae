"""Which pipeline a state belongs to: a text of what must not change, compared field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stateful_gpu_loader.integrations.dali_identity import (
    DATA,
    Differences,
    brief,
    differences,
    digest,
)
from stateful_gpu_loader.integrations.dali_pipeline.content import contents_of
from stateful_gpu_loader.integrations.dali_pipeline.graph import Graph, Operator

LONGEST_TEXT = 8192
"""Characters of a description: in a longer one, operators that are no readers are digests."""

_OPERATOR, _LENGTH, _READER_NAME = "operator ", ".epoch_size", "reader_name"

Description = dict[str, Any]
"""Values of JSON by field: ``batch_size``; an operator's kind as ``operator reader``, because it
may have any name; its arguments as ``reader.initial_fill``."""


def describe(graph: Graph, *, last_batch_policy: str) -> Description:
    """All that decides what the batches are, so far as it is known before the pipeline is built.

    Not the number of threads, the device's number or the depth of queues; these may change.
    """
    described: Description = {
        "batch_size": graph.batch_size,
        "last_batch_policy": last_batch_policy,
        "seed": graph.seed,
    }
    described |= {f"{_OPERATOR}{operator.name}": operator.kind for operator in graph.operators}
    described["outputs"] = brief(list(graph.outputs))
    arguments = {operator.name: _arguments(operator) for operator in graph.operators}
    is_long = len(json.dumps([described, arguments])) > LONGEST_TEXT
    for operator in graph.operators:
        if is_long and not operator.kind.startswith("readers."):
            described[f"{_OPERATOR}{operator.name}"] += f" {digest(arguments[operator.name])}"
            continue
        for name, value in arguments[operator.name].items():
            described[f"{operator.name}.{name}"] = value
    return described


def of_readers(metas: Mapping[str, Mapping[str, int]], reader_name: str | None) -> Description:
    """What is known of readers once the pipeline is built.

    Args:
        metas: what ``Pipeline.reader_meta()`` returned.
        reader_name: of the one that ends epochs.
    """
    lengths = {f"{name}{_LENGTH}": meta["epoch_size"] for name, meta in metas.items()}
    return {_READER_NAME: reader_name, **lengths}


def before_build(description: Description) -> Description:
    """A description as it is before the pipeline is built."""
    return {
        field: value
        for field, value in description.items()
        if not field.endswith(_LENGTH) and field != _READER_NAME
    }


def from_text(text: str) -> Description:
    """Read a description that was written as JSON.

    Raises:
        ValueError: it is no such text.
    """
    description = json.loads(text)
    if not isinstance(description, dict):
        raise ValueError(f"a description is a JSON object, not {type(description).__name__}")
    return description


def changes(saved: Description, present: Description) -> Differences:
    """What differs between two descriptions, operators first.

    A seed that was not given is not compared: DALI's checkpoint brings the state of every
    generator, whatever its seed was.
    """
    found = differences(saved, present)
    if None in found.get("seed", ()):
        del found["seed"]
    # One operator more or less renames others, and DALI tells them apart by name.
    return dict(sorted(found.items(), key=lambda item: _is_detail(item[0])))


def acceptable(*descriptions: Description) -> set[str]:
    """Fields whose change leaves the readers' place and the generators' states what they are.

    Arguments of operators that read nothing, and which data readers read; their number of samples
    is a field of its own.
    """
    found = set()
    for description in descriptions:
        for field in description:
            name, _, argument = field.rpartition(".")
            kind = description.get(f"{_OPERATOR}{name}")
            if not isinstance(kind, str) or argument in ("inputs", "device"):
                continue
            if argument in DATA or not kind.startswith(("readers.", "ExternalSource")):
                found.add(field)
    return found


def _is_detail(field: str) -> bool:
    return not field.startswith(_OPERATOR) and ("." in field or field == "outputs")


def _arguments(operator: Operator) -> dict[str, Any]:
    values = {**operator.arguments, **contents_of(operator)}
    if operator.inputs:
        values["inputs"] = list(operator.inputs)
    return {name: brief(value) for name, value in values.items()}
