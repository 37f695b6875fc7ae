"""Ranks of a DeviceMesh: those of one tensor-parallel or pipeline group get the same batches.

test_torchtitan.py shows that other meshes resume from their state.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import DistributedSampler, IterableDataset, Sampler

from stateful_gpu_loader import (
    FolderSource,
    StatefulGPULoader,
    StateMismatch,
    TarShards,
    gather_state_dict,
)
from tests.rank_processes import on_ranks
from tests.trainer_data import image_loader, photos, samples_of, tars

Step: TypeAlias = list[tuple[int, str]]
"""A batch: each sample's number and a digest of its pixels."""

KINDS = ("map-style", "lanes")
MESHES = {"tp": ("dp", "tp"), "pp": ("pp", "dp")}
"""Names of two dimensions of two ranks each, by the dimension that shares its batches."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """Batches of each of four ranks: on both meshes, and of other loaders on the first."""
    folder = tmp_path_factory.mktemp("photographs")
    photos(folder, 24)
    tars(folder / "tars", lengths=(6, 6, 6, 6))
    return on_ranks(_deliver, 4, folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", list(MESHES))
def test_ranks_of_one_group_get_the_same_batches(
    shared: str, kind: str, ranks: list[dict[Any, Any]]
) -> None:
    """Numbers and pixels, of the stages of a pipeline, too; together each sample once."""
    of_group: dict[int, list[list[Step]]] = {0: [], 1: []}
    for rank in ranks:
        dp_rank, steps = rank[shared, kind]
        of_group[dp_rank].append(steps)
    for group in of_group.values():
        assert len(group) == 2
        assert group[0] == group[1]
    assert sorted(_numbers(chain(*(group[0] for group in of_group.values())))) == list(range(24))


def test_lanes_gathered_over_all_ranks_are_refused(ranks: list[dict[Any, Any]]) -> None:
    """Each lane would be there twice. Every rank names the numbers."""
    for rank in ranks:
        assert rank["over all"] == ("lanes", "8 cursors in all", "4 different lanes")


def test_torchs_sampler_of_the_mesh_gives_one_group_the_same(ranks: list[dict[Any, Any]]) -> None:
    """Augmentations are keyed by the ranks that a DistributedSampler was given."""
    of_rank = [rank["torch's sampler"] for rank in ranks]
    assert of_rank[0] == of_rank[1]
    assert of_rank[2] == of_rank[3]
    assert sorted(_numbers(of_rank[0] + of_rank[2])) == list(range(24))


@pytest.mark.parametrize("owner", ["own sampler", "iterable"])
def test_objects_without_ranks_draw_by_the_worlds_ranks(
    owner: str, ranks: list[dict[Any, Any]]
) -> None:
    """The samples are the same, the augmentations are not."""
    first, second = ranks[0][owner], ranks[1][owner]
    assert _numbers(first) == _numbers(second)
    assert first != second


@pytest.mark.parametrize("owner", ["own sampler", "iterable"])
def test_objects_with_ranks_give_one_group_the_same(
    owner: str, ranks: list[dict[Any, Any]]
) -> None:
    """By ``num_replicas`` and ``rank``. Data-parallel groups still draw differently."""
    of_rank = [rank[f"{owner}, with ranks"] for rank in ranks]
    assert of_rank[0] == of_rank[1]
    assert of_rank[2] == of_rank[3]
    assert not set(chain(*of_rank[0])) & set(chain(*of_rank[2]))


def _deliver(rank: int, folder: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for shared, names in MESHES.items():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        for kind in KINDS:
            loader = _loader(folder, mesh, kind)
            state = loader.state_dict()
            found[shared, kind] = mesh["dp"].get_local_rank(), [samples_of(b) for b in loader]
            if kind == "lanes":
                found["over all"] = _refusal(state)
    dp_rank = init_device_mesh("cpu", (2, 2), mesh_dim_names=MESHES["tp"])["dp"].get_local_rank()
    source = _photos(folder)
    for name, sampler in {
        "torch's sampler": DistributedSampler(source, num_replicas=2, rank=dp_rank),
        "own sampler": _EveryOther(24, dp_rank),
        "own sampler, with ranks": _with_ranks(_EveryOther(24, dp_rank), dp_rank),
    }.items():
        found[name] = [samples_of(b) for b in image_loader(source, shuffle=None, sampler=sampler)]
    for name, dataset in {
        "iterable": _Noise(dp_rank),
        "iterable, with ranks": _with_ranks(_Noise(dp_rank), dp_rank),
    }.items():
        stream: StatefulGPULoader[Any] = StatefulGPULoader(dataset, batch_size=2, seed=1)
        found[name] = [samples_of(batch) for batch in stream]
    return found


def _loader(folder: Path, mesh: DeviceMesh, kind: str) -> StatefulGPULoader[Any]:
    lanes = TarShards(sorted((folder / "tars").iterdir()), num_lanes=4)
    return image_loader(
        _photos(folder) if kind == "map-style" else lanes,
        batch_size=2,
        num_replicas=mesh["dp"].size(),
        rank=mesh["dp"].get_local_rank(),
    )


def _refusal(state: dict[str, Any]) -> tuple[str, Any, Any]:
    try:
        gather_state_dict(state)
    except StateMismatch as error:
        return error.field, error.saved, error.present
    return "merged", None, None


def _numbers(steps: Any) -> list[int]:
    return [number for step in steps for number, _ in step]


def _photos(folder: Path) -> FolderSource:
    paths = sorted((folder / "class_00").iterdir())
    return FolderSource.from_paths(paths, range(len(paths)))


class _EveryOther(Sampler[int]):
    """A user's sampler that divides by the mesh."""

    def __init__(self, length: int, dp_rank: int) -> None:
        self.indices = range(dp_rank, length, 2)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class _Noise(IterableDataset[Any]):
    """A user's iterable that divides by the mesh, and draws."""

    def __init__(self, dp_rank: int) -> None:
        self.dp_rank = dp_rank

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.dp_rank, 8, 2):
            yield torch.rand(3, 2, 2), number


def _with_ranks(divided: Any, dp_rank: int) -> Any:
    divided.num_replicas, divided.rank = 2, dp_rank
    return divided
