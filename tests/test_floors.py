"""Imports run downward only; two rooms on one floor do not import each other (architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import stateful_gpu_loader

PACKAGE = Path(stateful_gpu_loader.__file__).parent
NAME = "stateful_gpu_loader"

FLOORS = {
    "__main__": 10,
    "cli": 9,
    "tools": 8,
    "integrations": 8,
    "loader": 7,
    "engine": 6,
    "samplers": 5,
    "checkpoint": 4,
    "datasets": 4,
    "state": 3,
    "transforms": 3,
    "decoders": 2,
    "randomness": 2,
    "records": 1,
    "errors": 1,
}
"""Floor of each entry of the package's root, as a whole number."""


def test_every_room_has_a_floor() -> None:
    rooms = {_room(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert rooms == set(FLOORS)


def test_imports_run_downward() -> None:
    upward = [
        f"{path.relative_to(PACKAGE)}: {room} (floor {FLOORS[room]}) imports {imported} "
        f"(floor {FLOORS[imported]})"
        for path in PACKAGE.rglob("*.py")
        if (room := _room(path)) != "__init__"
        for imported in _imported_rooms(path)
        if imported != room and FLOORS[imported] >= FLOORS[room]
    ]
    assert not upward, "\n".join(upward)


def test_optional_packages_are_imported_in_one_file_each() -> None:
    optional = {
        "torchcodec": 1,
        "triton": 3,
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
        "ray": 1,
    }
    for package, allowed in optional.items():
        files = {
            path.name
            for path in PACKAGE.rglob("*.py")
            if any(f"{name}.".startswith(f"{package}.") for name in _imports(path))
        }
        assert len(files) <= allowed, f"{package} is imported in {sorted(files)}"


def test_private_names_of_torch_are_touched_in_one_file() -> None:
    """These names set up workers, or hold what only torch knows."""
    files = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(
            name.split(".")[0] == "torch" and any(part.startswith("_") for part in name.split("."))
            for name in _imports(path)
        )
    }
    assert files <= {"torch_names.py"}


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
