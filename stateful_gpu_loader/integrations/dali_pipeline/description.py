"""Describes a pipeline by what must not change, to be compared field by field with a state."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from stateful_gpu_loader.integrations.dali_identity import (
    DATA,
    NOT_GIVEN,
    Differences,
    brief,
    differences,
    digest,
)
from stateful_gpu_loader.integrations.dali_pipeline.content import contents_of
from stateful_gpu_loader.integrations.dali_pipeline.graph import Graph, Operator

LONGEST_TEXT = 8192
"""Largest number of characters of a description.

In a longer one, operators other than readers are replaced by digests.
"""

NO_OPERATOR = "no such operator"

_NUMBERED = re.compile(r"__(?P<kind>.+)_(?P<number>\d+)")
"""Matches the name that DALI gives to an operator without one."""

_OPERATOR, _LENGTH, _READER_NAME = "operator ", ".epoch_size", "reader_name"

Description = dict[str, Any]
"""JSON values by field.

Fields are ``batch_size``; the kind of an operator as ``operator reader``, because an operator may
have any name; its arguments as ``reader.initial_fill``.
"""


def describe(graph: Graph, *, last_batch_policy: str) -> Description:
    """Describe all that determines the batches, as far as it is known before the pipeline is built.

    The number of threads, the number of the device and the depth of queues may change, and are left
    out.
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
    """Describe what is known of the readers once the pipeline is built.

    Args:
        metas: what ``Pipeline.reader_meta()`` returned.
        reader_name: name of the reader that ends epochs.
    """
    lengths = {f"{name}{_LENGTH}": meta["epoch_size"] for name, meta in metas.items()}
    return {_READER_NAME: reader_name, **lengths}


def before_build(description: Description) -> Description:
    """Return a description without what is known only after the build."""
    return {
        field: value
        for field, value in description.items()
        if not field.endswith(_LENGTH) and field != _READER_NAME
    }


def from_text(text: str) -> Description:
    """Read a description that was written as JSON.

    Raises:
        ValueError: the text is not a description.
    """
    description = json.loads(text)
    if not isinstance(description, dict):
        raise ValueError(f"a description is a JSON object, not {type(description).__name__}")
    return description


def changes(saved: Description, present: Description) -> Differences:
    """Return the differences between two descriptions, operators first.

    A seed that was not given is not compared, as DALI's checkpoint contains the state of every
    generator.
    """
    found = differences(saved, present)
    if None in found.get("seed", ()):
        del found["seed"]
    for field in found:
        if field.startswith(_OPERATOR):
            before, now = (NO_OPERATOR if kind == NOT_GIVEN else kind for kind in found[field])
            found[field] = before, now
    # An additional or missing operator renames others, and DALI identifies them by name.
    names = [_operator_names(description) for description in (saved, present)]
    missing, new = unmatched(*names)
    at_fault = {f"{_OPERATOR}{name}" for name in missing + new}

    def order(field: str) -> tuple[bool, bool]:
        return _is_detail(field), field.startswith(_OPERATOR) and field not in at_fault

    return dict(sorted(found.items(), key=lambda item: order(item[0])))


def unmatched(saved: Sequence[str], present: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the operators of the saved pipeline that are missing, and those that are new.

    An additional or missing operator renumbers later ones; these are returned only if there are no
    others.

    >>> unmatched(["__Image_0", "__Rotate_1", "__Resize_2"], ["__Image_0", "__Resize_1"])
    (['__Rotate_1'], [])
    """
    absent = (set(saved) - set(present), set(present) - set(saved))
    before, now = (sorted(names, key=_number) for names in (saved, present))
    kinds = [[_kind(name) for name in names] for names in (before, now)]
    missing, new = [], []
    steps = SequenceMatcher(None, kinds[0], kinds[1], autojunk=False).get_opcodes()
    for step, begin, end, new_begin, new_end in steps:
        if step != "equal":
            missing += [name for name in before[begin:end] if name in absent[0]]
            new += [name for name in now[new_begin:new_end] if name in absent[1]]
    if missing or new:
        return missing, new
    return [name for name in before if name in absent[0]], [
        name for name in now if name in absent[1]
    ]


def acceptable(*descriptions: Description) -> set[str]:
    """Return the fields that may change without affecting the readers' position and the generators.

    These are arguments of operators that read nothing, and those that tell which data readers read.
    The number of samples is a separate field.
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


def _operator_names(description: Description) -> list[str]:
    return [field[len(_OPERATOR) :] for field in description if field.startswith(_OPERATOR)]


def _kind(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return name if numbered is None else numbered["kind"]


def _number(name: str) -> tuple[int, str]:
    """Return a key that sorts operators in the order of their creation, named ones first."""
    numbered = _NUMBERED.fullmatch(name)
    return (-1, name) if numbered is None else (int(numbered["number"]), "")


def _is_detail(field: str) -> bool:
    return not field.startswith(_OPERATOR) and ("." in field or field == "outputs")


def _arguments(operator: Operator) -> dict[str, Any]:
    values = {**operator.arguments, **contents_of(operator)}
    if operator.inputs:
        values["inputs"] = list(operator.inputs)
    return {name: brief(value) for name, value in values.items()}
