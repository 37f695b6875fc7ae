"""A pytest plugin and its entry point: torchdata's own tests with StatefulGPULoader.

``run_peer_tests.sh`` runs it as a program, so that processes spawned by the tests also import it
(multiprocessing imports the main module in each) and find the loader replaced. The tests that
differ on purpose, with reasons, are listed only in ``docs/compatibility.md`` and read from there.
Each must fail every time: a test that passes fails the run, as does a row that names no test.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data
import torchdata.stateful_dataloader

from stateful_gpu_loader import StatefulGPULoader

IS_ORIGINAL = os.environ.get("PEER_ORIGINAL", "0") not in ("", "0")
"""Whether the run is for comparison: the loader is not replaced."""

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"

# Replace it before the tests are imported, in every process: they import the class by name.
if not IS_ORIGINAL:
    torchdata.stateful_dataloader.StatefulDataLoader = StatefulGPULoader

_OF_TORCH = "test/test_dataloader.py"
_JOIN_TIMEOUT = 90.0
"""Seconds that the tests wait for a process to end. Their own 13 are too few on a busy machine if
the process is spawned and imports torch."""

_ROW = re.compile(r"\| `(test_\w+\.py::[\w:]+)` \| (passes|fails) \| (.+) \|")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A test that fails on purpose."""

    passes_with_original: bool
    reason: str


def read_differences(text: str) -> dict[str, Difference]:
    """Read the rows ``| `file::Class::test` | passes or fails with torchdata | reason |`` of a
    page.

    >>> read_differences("| `test_a.py::A::test_b` | passes | private layout |")
    {'test_a.py::A::test_b': Difference(passes_with_original=True, reason='private layout')}
    """
    return {
        name: Difference(passes_with_original=original == "passes", reason=reason)
        for name, original, reason in map(re.Match.groups, _ROW.finditer(text))
    }


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Replace the loader under torch's name, but only for torch's own test module."""
    replaces = isinstance(collector, pytest.Module) and _is_of_torch(collector) and not IS_ORIGINAL
    original = torch.utils.data.DataLoader
    if replaces:
        torch.utils.data.DataLoader = StatefulGPULoader  # type: ignore[misc]
    try:
        return (yield)
    finally:
        torch.utils.data.DataLoader = original  # type: ignore[misc]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    differences = read_differences(DOCUMENT.read_text())
    if not differences:
        raise pytest.UsageError(f"{DOCUMENT} has no table of the tests that differ")
    named = {_name(item): item for item in items}
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        if hasattr(module, "JOIN_TIMEOUT"):
            module.JOIN_TIMEOUT = _JOIN_TIMEOUT
    if not any("::" in argument or _is_one_file(argument) for argument in config.args):
        _check_rows(differences, named)
    for name, difference in differences.items():
        if name in named and (not IS_ORIGINAL or not difference.passes_with_original):
            item = named[name]
            # torch's module of the same name is another version of these tests.
            strict = not _is_of_torch(item)
            item.add_marker(pytest.mark.xfail(strict=strict, reason=difference.reason))


def _check_rows(differences: Mapping[str, Difference], named: Mapping[str, Any]) -> None:
    unknown = sorted(set(differences) - set(named))
    if unknown:
        raise pytest.UsageError(
            f"{DOCUMENT} names tests that this checkout does not have: {', '.join(unknown)}. "
            "Remedy: remove the rows, or run the checkout that the page names"
        )


def _name(item: pytest.Item) -> str:
    _, _, inside = item.nodeid.partition("::")
    return f"{item.path.name}::{inside}"


def _is_of_torch(node: pytest.Item | pytest.Collector) -> bool:
    return node.path.as_posix().endswith(_OF_TORCH)


def _is_one_file(argument: str) -> bool:
    return argument.endswith(".py")


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:], plugins=[sys.modules[__name__]]))
