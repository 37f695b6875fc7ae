"""Samples as DALI's own readers return them, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def read_by_dali(reader: str, **arguments: Any) -> list[list[Any]]:
    """Return each sample's outputs of one epoch, as arrays in the reader's order."""
    dali = pytest.importorskip("nvidia.dali")

    def outputs() -> tuple[Any, ...]:
        found = getattr(dali.fn.readers, reader)(name="reader", **arguments)
        if isinstance(found, dict):
            return tuple(found.values())
        return tuple(found) if isinstance(found, list | tuple) else (found,)

    pipeline = dali.pipeline_def(outputs)(batch_size=1, num_threads=1, device_id=None)
    pipeline.build()
    length = pipeline.epoch_size("reader")
    return [[np.array(output.at(0)) for output in pipeline.run()] for _ in range(length)]
