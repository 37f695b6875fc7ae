"""All kinds of inputs, by name."""

from __future__ import annotations

from tests.fuzz.inputs.kind import Kind
from tests.fuzz.inputs.kinds import (
    checkpoints,
    images,
    indices,
    prepared,
    records,
    saved_files,
    states,
    tables,
    tars,
    texts,
)

_MODULES = (
    states,
    checkpoints,
    saved_files,
    images,
    tars,
    records,
    indices,
    prepared,
    tables,
    texts,
)

KINDS: dict[str, type[Kind]] = {kind.name: kind for module in _MODULES for kind in module.KINDS}
