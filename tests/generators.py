"""States of the global generators, which a loader must leave as they were."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def generators() -> tuple[Any, ...]:
    """Return the states of ``random``'s, NumPy's and torch's generators; draws change them."""
    numpy_state = np.random.get_state(legacy=False)
    return random.getstate(), str(numpy_state), torch.get_rng_state().tolist()
