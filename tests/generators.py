"""The global generators' states, which a loader leaves as its caller had them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def generators() -> tuple[Any, ...]:
    """The states of ``random``'s, NumPy's and torch's: equal if nothing was drawn between."""
    numpy_state = np.random.get_state(legacy=False)
    return random.getstate(), str(numpy_state), torch.get_rng_state().tolist()
