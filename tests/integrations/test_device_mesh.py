"""Ranks of a DeviceMesh: those of one tensor-parallel or pipeline group get the same batches."""

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
from tests.trainer_data import Seen, image_loader, photos, seen, tars

Step: TypeAlias = list[Seen]
"""One batch, sample by sample."""

GLOBAL_BATCH = 4
STEPS = 6
"""Of an epoch of 24 samples."""
SAVED_AFTER = STEPS + 2
KINDS = ("map-style", "lanes")
MESHES = {"tp": ("dp", "tp"), "pp": ("pp", "dp")}
"""The names of two dimensions of two ranks each, by the one that shares its batches."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    photos(folder, 24)
    tars(folder / "tars", lengths=(6, 6, 6, 6))
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    """Two epochs on four ranks, on each mesh, and other loaders on the first."""
    return on_ranks(_two_epochs, 4, folder)


@pytest.fixture(scope="module")
def saved(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    return {kind: ranks[0]["tp", kind]["gathered"] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", list(MESHES))
def test_ranks_of_one_group_get_the_same_batches(
    shared: str, kind: str, ranks: list[dict[str, Any]]
) -> None:
    """Numbers and pixels, of the stages of a pipeline, too; together each sample once."""
    of_group: dict[int, list[list[Step]]] = {0: [], 1: []}
    for rank in ranks:
        of_group[rank[shared, kind]["dp rank"]].append(rank[shared, kind]["steps"])
    for group in of_group.values():
        assert len(group) == 2
        assert group[0] == group[1]
    for epoch in range(2):
        steps = [group[0][epoch * STEPS : (epoch + 1) * STEPS] for group in of_group.values()]
        assert sorted(_numbers(chain(*steps))) == list(range(24))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", list(MESHES))
def test_state_is_the_same_on_all_ranks(
    shared: str, kind: str, ranks: list[dict[str, Any]]
) -> None:
    """Of lanes, once it is gathered over the data-parallel dimension."""
    which = "state" if kind == "map-style" else "gathered"
    states = [rank[shared, kind][which] for rank in ranks]
    assert all(state == states[0] for state in states)
    assert states[0]["epoch"] == 1


def test_lanes_gathered_over_all_ranks_are_refused(ranks: list[dict[str, Any]]) -> None:
    """Each lane would be there twice; the numbers are named on every rank."""
    for rank in ranks:
        assert "8 cursors in all, expected was 4 different lanes" in rank["over all"].replace(
            "'", ""
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_other_meshes_go_on(
    kind: str,
    num_ranks: int,
    folder: Path,
    saved: dict[str, Any],
    ranks: list[dict[str, Any]],
    request: pytest.FixtureRequest,
) -> None:
    """From (2, 2) on (4, 1), (1, 4) and (1, 2), with the global batches that were left."""
    resumed = request.getfixturevalue(f"resumed_on_{num_ranks}")
    undisturbed = _global_steps([rank["tp", kind] for rank in ranks])[SAVED_AFTER:]
    for shape in SHAPES[num_ranks]:
        found = _global_steps([rank[shape, kind] for rank in resumed])
        if kind == "lanes":
            rest = STEPS - SAVED_AFTER % STEPS
            assert sorted(chain(*found[:rest])) == sorted(chain(*undisturbed)), shape
        else:
            assert found[: len(undisturbed)] == undisturbed, shape
        assert sorted(_numbers(found[-STEPS:])) == list(range(24)), shape


def test_torchs_sampler_of_the_mesh_gives_one_group_the_same(ranks: list[dict[str, Any]]) -> None:
    """Augmentations are keyed by the ranks that a DistributedSampler was given."""
    of_rank = [rank["torch's sampler"] for rank in ranks]
    assert of_rank[0] == of_rank[1]
    assert of_rank[2] == of_rank[3]
    assert sorted(_numbers(of_rank[0] + of_rank[2])) == list(range(24))


@pytest.mark.parametrize("owner", ["own sampler", "iterable"])
def test_objects_that_do_not_tell_their_ranks_draw_by_the_worlds(
    owner: str, ranks: list[dict[str, Any]]
) -> None:
    """The samples are the same, the augmentations are not."""
    first, second = ranks[0][owner], ranks[1][owner]
    assert _numbers(first) == _numbers(second)
    assert first != second


@pytest.mark.parametrize("owner", ["own sampler", "iterable"])
def test_objects_that_tell_their_ranks_give_one_group_the_same(
    owner: str, ranks: list[dict[str, Any]]
) -> None:
    """By ``num_replicas`` and ``rank``; data-parallel groups still draw others."""
    of_rank = [rank[f"{owner}, told"] for rank in ranks]
    assert of_rank[0] == of_rank[1]
    assert of_rank[2] == of_rank[3]
    assert not set(chain(*of_rank[0])) & set(chain(*of_rank[2]))


@pytest.fixture(scope="module")
def resumed_on_2(folder: Path, saved: dict[str, Any]) -> list[dict[Any, Any]]:
    return on_ranks(_resume, 2, folder, saved, 2)


@pytest.fixture(scope="module")
def resumed_on_4(folder: Path, saved: dict[str, Any]) -> list[dict[Any, Any]]:
    return on_ranks(_resume, 4, folder, saved, 4)


SHAPES = {2: ((1, 2),), 4: ((4, 1), (1, 4))}


def _loader(folder: Path, mesh: DeviceMesh, kind: str) -> StatefulGPULoader[Any]:
    data_parallel = mesh["dp"]
    return image_loader(
        _photos(folder)
        if kind == "map-style"
        else TarShards(sorted((folder / "tars").iterdir()), num_lanes=4),
        batch_size=GLOBAL_BATCH // data_parallel.size(),
        num_replicas=data_parallel.size(),
        rank=data_parallel.get_local_rank(),
    )


def _two_epochs(rank: int, folder: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for shared, names in MESHES.items():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        for kind in KINDS:
            loader, steps, state = _loader(folder, mesh, kind), [], {}
            for _ in range(2):
                for batch in loader:
                    steps.append(_samples(batch))
                    if len(steps) == SAVED_AFTER:
                        state = loader.state_dict()
                        gathered = gather_state_dict(state, group=mesh["dp"].get_group())
            found[shared, kind] = {
                "dp rank": mesh["dp"].get_local_rank(),
                "steps": steps,
                "state": state,
                "gathered": gathered,
            }
            if kind == "lanes":
                found["over all"] = _said(state)
    dp_rank = init_device_mesh("cpu", (2, 2), mesh_dim_names=MESHES["tp"])["dp"].get_local_rank()
    source = _photos(folder)
    samplers = {
        "torch's sampler": DistributedSampler(source, num_replicas=2, rank=dp_rank),
        "own sampler": _EveryOther(24, dp_rank),
        "own sampler, told": _Told(24, dp_rank),
    }
    for name, sampler in samplers.items():
        loader = image_loader(source, shuffle=None, sampler=sampler)
        found[name] = [_samples(batch) for batch in loader]
    for name, dataset in {
        "iterable": _Noise(dp_rank),
        "iterable, told": _ToldNoise(dp_rank),
    }.items():
        stream: StatefulGPULoader[Any] = StatefulGPULoader(dataset, batch_size=2, seed=1)
        found[name] = [_samples(batch) for batch in stream]
    return found


def _resume(rank: int, folder: Path, saved: dict[str, Any], num_ranks: int) -> dict[Any, Any]:
    """The rest of the second epoch, and the third."""
    found: dict[Any, Any] = {}
    for shape in SHAPES[num_ranks]:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=MESHES["tp"])
        for kind in KINDS:
            loader = _loader(folder, mesh, kind)
            loader.load_state_dict(saved[kind])
            steps = [_samples(batch) for _ in range(2) for batch in loader]
            found[shape, kind] = {"dp rank": mesh["dp"].get_local_rank(), "steps": steps}
    return found


def _said(state: dict[str, Any]) -> str:
    try:
        gather_state_dict(state)
    except StateMismatch as error:
        return str(error)
    return "merged"


def _global_steps(ranks: list[dict[str, Any]]) -> list[Step]:
    """Of one rank of each data-parallel group, in no order within a step."""
    of_group = {rank["dp rank"]: rank["steps"] for rank in ranks}
    assert all(of_group[rank["dp rank"]] == rank["steps"] for rank in ranks)
    return [sorted(chain(*step)) for step in zip(*of_group.values(), strict=True)]


def _samples(batch: Any) -> Step:
    return [seen((image[None], number[None])) for image, number in zip(*batch, strict=True)]


def _numbers(steps: Any) -> list[int]:
    return [number for step in steps for numbers, _ in step for number in numbers]


def _photos(folder: Path) -> FolderSource:
    paths = sorted((folder / "class_00").iterdir())
    return FolderSource.from_paths(paths, range(len(paths)))


class _EveryOther(Sampler[int]):
    """A sampler of one's own that divides by the mesh."""

    def __init__(self, length: int, dp_rank: int) -> None:
        self.indices = range(dp_rank, length, 2)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class _Told(_EveryOther):
    def __init__(self, length: int, dp_rank: int) -> None:
        super().__init__(length, dp_rank)
        self.num_replicas, self.rank = 2, dp_rank


class _Noise(IterableDataset[Any]):
    """An iterable of one's own that divides by the mesh, and draws."""

    def __init__(self, dp_rank: int) -> None:
        self.dp_rank = dp_rank

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.dp_rank, 8, 2):
            yield torch.rand(3, 2, 2), number


class _ToldNoise(_Noise):
    def __init__(self, dp_rank: int) -> None:
        super().__init__(dp_rank)
        self.num_replicas, self.rank = 2, dp_rank
