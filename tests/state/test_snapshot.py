"""Frozen states: fresh copies, bit for bit, or an error with the owner's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import LoaderError
from stateful_gpu_loader.state.user_states import freeze, thaw
from tests.conformance import same


@pytest.mark.parametrize(
    "value",
    [
        torch.Generator().manual_seed(3).get_state(),
        torch.randn(3, 4, dtype=torch.bfloat16),
        torch.arange(10)[::3],
        torch.tensor([True, False]),
        torch.tensor(3, dtype=torch.int8),
        torch.arange(4.0)[::2][:1],
        torch.empty(0, 5),
        torch.randn(2, 3, dtype=torch.complex64).mT,
        np.arange(6).reshape(2, 3),
        {"nested": [1, "two", {"three": None}], "tuple": (1, 2)},
    ],
    ids=lambda value: type(value).__name__,
)
def test_thawed_is_equal_and_another_object(value: Any) -> None:
    frozen = freeze(value, "Owner")
    first, second = thaw(frozen), thaw(frozen)
    assert same(first, value)
    assert same(second, value)
    assert first is not value


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, requires_grad=True),
        torch.eye(2).to_sparse(),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["requires_grad", "sparse", "conjugate", "parameter"],
)
def test_unusual_tensors_go_torchs_own_way(tensor: torch.Tensor) -> None:
    thawed = thaw(freeze(tensor, "Owner"))
    assert type(thawed) is type(tensor)
    assert thawed.requires_grad == tensor.requires_grad
    assert torch.equal(thawed.detach().to_dense(), tensor.detach().to_dense())


def test_a_frozen_state_does_not_change_with_its_origin() -> None:
    values, tensor = [1, 2], torch.zeros(3)
    frozen = freeze({"values": values, "tensor": tensor}, "Owner")
    values.append(3)
    tensor.fill_(9)
    assert thaw(frozen)["values"] == [1, 2]
    assert thaw(frozen)["tensor"].tolist() == [0, 0, 0]


def test_unpicklable_values_are_named_with_their_owner() -> None:
    with pytest.raises(LoaderError, match=r"state_dict\(\) of MySampler returned dict that cannot"):
        freeze({"function": lambda: 0}, "MySampler")
