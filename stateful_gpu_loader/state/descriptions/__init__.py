"""What datasets and callables are known by: texts that are equal in every process (law 4)."""

from stateful_gpu_loader.state.descriptions.datasets import describe_dataset, describe_transforms_of
from stateful_gpu_loader.state.descriptions.describer import (
    NOTHING_KNOWN,
    Describer,
    Description,
    describe,
    own_fingerprint,
    shortened,
)

__all__ = [
    "NOTHING_KNOWN",
    "Describer",
    "Description",
    "describe",
    "describe_dataset",
    "describe_transforms_of",
    "own_fingerprint",
    "shortened",
]
