"""Imports run downward only; two rooms on one floor do not import each other (DESIGN.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import stateful_gpu_loader

PACKAGE = Path(stateful_gpu_loader.__file__).parent
NAME = "stateful_gpu_loader"

FLOORS: dict[str, float] = {
    "cli": 6,
    "demo": 6,
    "__main__": 7,
    "integrations": 6,
    "starting": 4.5,
    "checkpoint": 5,
    "rank_states": 5,
    "loader": 4,
    # Landings between the engine and the loader.
    "peeking": 3.8,
    "progress": 3.8,
    "crew": 3.6,
    "resumption": 3.6,
    "lane_places": 3.6,
    "torchdata_resume": 3.6,
    "assembly": 3.3,
    "attributes": 3.2,
    "arguments": 3,
    "identity": 3,
    "sampler_link": 3,
    "engine": 3,
    "samplers": 2,
    "sources": 2,
    "shards": 2,
    "decoders": 2,
    "transforms": 2,
    # Between what reads bytes and what makes samples of them.
    "formats": 1.5,
    "storage": 1,
    "bad_samples": 1,
    "collating": 1,
    "mixture": 1,
    "apportionment": 0,
    "content_id": 0,
    "cuda_driver": 0,
    "torchdata_states": 1,
    "generator_text": 0,
    "user_states": 1,
    "frozen": 0,
    "rng_tensors": 0,
    "typed_json": 0,
    "rng": 1,
    "counted_draws": 0.5,
    "fingerprints": 0.5,
    "records": 1,
    "text_state": 1,
    "rebuilding": 1,
    "order": 1,
    "passes": 1,
    "settled_seed": 1,
    "randomness": 0,
    "state": 0,
    "world": 0,
    "errors": 0,
}
NEIGHBOURS = {
    ("cli", "demo"): "the command line offers the demo",
    ("state", "errors"): "every room raises errors",
    ("order", "records"): "value types belong to all",
    ("sampler_link", "engine"): "a division belongs to the requests",
    ("arguments", "engine"): "the engine knows its worker types",
    ("generator_text", "errors"): "every room raises errors",
    ("frozen", "errors"): "every room raises errors",
}


def test_every_room_has_a_floor() -> None:
    rooms = {_room(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert rooms <= set(FLOORS), f"no floor for {rooms - set(FLOORS)}"


def test_imports_run_downward() -> None:
    upward = [
        f"{path.relative_to(PACKAGE)}: {room} (floor {FLOORS[room]}) imports {imported} "
        f"(floor {FLOORS[imported]})"
        for path in PACKAGE.rglob("*.py")
        if (room := _room(path)) != "__init__"
        for imported in _imported_rooms(path)
        if imported != room
        and FLOORS[imported] >= FLOORS[room]
        and (room, imported) not in NEIGHBOURS
    ]
    assert not upward, "\n".join(upward)


def test_optional_packages_are_imported_in_one_file_each() -> None:
    optional = {
        "torchcodec": 1,
        "triton": 2,
        "nvidia.dali": 1,
        "nvidia.nvimgcodec": 1,
        "lmdb": 1,
        "pyarrow": 1,
        "fsspec": 1,
        "zstandard": 1,
        "google_crc32c": 1,
        "pycocotools": 0,
        "webdataset": 0,
        "lightning": 1,
        "accelerate": 1,
        "transformers": 1,
        "composer": 1,
        "ray": 0,
    }
    for package, allowed in optional.items():
        files = {
            path.name
            for path in PACKAGE.rglob("*.py")
            if any(f"{name}.".startswith(f"{package}.") for name in _imports(path))
        }
        assert len(files) <= allowed, f"{package} is imported in {sorted(files)}"


def test_private_names_of_torch_are_touched_in_one_file() -> None:
    """DESIGN.md: the team of worker processes."""
    files = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(
            name.split(".")[0] == "torch" and any(part.startswith("_") for part in name.split("."))
            for name in _imports(path)
        )
    }
    assert files <= {"team.py"}


def _room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def _imported_rooms(path: Path) -> Iterator[str]:
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == NAME and len(parts) > 1 and parts[1] in FLOORS:
            yield parts[1]


@cache
def _imports(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)
