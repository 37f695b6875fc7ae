"""torch's default_collate stacks batches into the workers' segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.makers.memory import empty_host
from stateful_gpu_loader.engine.torch_names import stack_into
from stateful_gpu_loader.engine.workers.segments import MAX_COPY
from tests.conformance import same
from tests.engine.workers import fakes

IMAGE = torch.arange(12, dtype=torch.float32).reshape(3, 4)
SAMPLES: dict[str, list[torch.Tensor]] = {
    "float": [IMAGE, IMAGE + 1],
    "transposed": [IMAGE.T, IMAGE.T + 1],
    "numbers": [torch.tensor(1), torch.tensor(2)],
    "empty": [torch.empty(0, 3)] * 2,
    "bool and float": [IMAGE > 3, IMAGE],
    "float and int": [IMAGE, IMAGE.long()],
    "conjugate": [torch.complex(IMAGE, IMAGE).conj()] * 2,
    "needs a gradient": [IMAGE.clone().requires_grad_()] * 2,
    "parameter": [torch.nn.Parameter(IMAGE)] * 2,
    "sparse": [IMAGE.to_sparse()] * 2,
    "other sizes": [IMAGE, IMAGE[:2]],
}


@pytest.fixture(autouse=True)
def torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, default_collate_fn_map[torch.Tensor])


def outcome(samples: list[torch.Tensor]) -> Any:
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError) as error:
        return type(error)


@pytest.mark.parametrize("name", SAMPLES)
def test_it_stacks_as_torch_does(name: str) -> None:
    expected = outcome(SAMPLES[name])
    stack_into(empty_host)
    assert same(outcome(SAMPLES[name]), expected)


def test_a_function_that_a_program_has_registered_is_kept() -> None:
    default_collate_fn_map[torch.Tensor] = lambda batch, *, collate_fn_map: len(batch)
    stack_into(empty_host)
    assert default_collate([IMAGE, IMAGE]) == 2


class Large(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((MAX_COPY,), index, dtype=torch.uint8)


def stacked(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples)


@pytest.mark.processes
@pytest.mark.parametrize("collate_fn", [None, stacked])
def test_batches_of_any_dataset_are_in_segments(
    collate_fn: Callable[[Any], torch.Tensor] | None,
) -> None:
    loader: Any = StatefulGPULoader(Large(), batch_size=2, num_workers=2, collate_fn=collate_fn)
    for number, batch in enumerate(loader):
        assert batch[:, 0].tolist() == [2 * number, 2 * number + 1]
        assert fakes.NAME_OF_SEGMENTS in fakes.mapping_of(batch)
