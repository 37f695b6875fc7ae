"""Selects the fast tests: those without a mark, and the first case of most tests with a mark.

The marks are those of ``pyproject.toml``. Whole folders and files are marked here, single tests by
decorators.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent

MARKED = {
    "benchmarks/test_peers.py": "benchmarks",
    "benchmarks/test_smoke.py": "benchmarks",
    "cli/test_inspect_trainers.py": "trainers",
    "demo/test_experiment.py": "benchmarks",
    "engine/workers/test_processes_leave_nothing.py": "processes",
    "integrations/hf_accelerate": "trainers",
    "integrations/hf_trainer": "trainers",
    "integrations/lightning": "trainers",
    "integrations/lightning_fabric": "trainers",
    "integrations/test_dali_dynamic.py": "dali",
    "integrations/test_dcp_refusals.py": "ranks",
    "integrations/test_device_mesh.py": "ranks",
    "integrations/test_ray_faults.py": "ray",
    "integrations/test_ray_train.py": "ray",
    "integrations/test_ray_workers.py": "ray",
    "integrations/test_reflection.py": "trainers",
    "integrations/test_torchrun.py": "ranks",
    "integrations/test_torchtitan.py": "ranks",
    "integrations/test_trainers_on_ranks.py": "trainers",
    "pretend_gpu": "pretend_gpu",
    "stateful_gpu_loader/integrations/accelerate.py": "trainers",
    "stateful_gpu_loader/integrations/fabric.py": "trainers",
    "stateful_gpu_loader/integrations/lightning": "trainers",
    "stateful_gpu_loader/integrations/transformers.py": "trainers",
    "transforms/batches/test_kernels.py": "fuzz",
    "transforms/color/test_jitter_kernels.py": "fuzz",
}
"""Mark by path in the tests' folder or in the project's. No test under these paths is fast."""

COSTLY = {
    "chaos/test_chaos.py::test_chaos_leaves_the_stream_unchanged",
    "engine/workers/test_processes_killed.py::test_killed_before_it_has_read_a_large_dataset",
    "engine/workers/test_start_method.py::test_a_worker_that_is_spawned_begins_without_torchvision",
    "engine/workers/test_users_programs.py::test_the_exit_waits_for_no_worker_where_a_handler_takes_sigterm",
    "engine/workers/test_users_programs.py::test_workers_end_with_the_main_process_though_a_child_of_it_lives",
    "integrations/test_dcp.py::test_lanes_deliver_every_sample_once",
    "integrations/test_dcp.py::test_map_style_keeps_its_global_batches",
    "loader/test_conformance.py::test_from_each_execution_to_each_other",
    "loader/test_exits.py::test_a_new_interpreter_exits_quietly",
    "loader/test_exits.py::test_rare_ways_to_exit",
    "loader/test_faults.py::test_a_stopped_worker_is_found_by_the_timeout",
    "loader/test_interrupts.py::test_a_handler_saves_at_many_lines",
    "loader/test_interrupts.py::test_an_interrupt_at_many_places_loses_and_shifts_no_sample",
    "loader/test_iterables.py::test_a_caught_exception_loses_no_batch",
    "loader/test_lanes.py::test_ten_thousand_shards",
    "loader/test_out_of_order.py::test_out_of_order_a_slow_worker_delays_no_other",
    "loader/test_starts.py::test_a_script_that_workers_cannot_import",
    "test_recipes.py::test_the_script_for_several_gpus_goes_on_in_another_size",
    "transforms/batches/test_ragged.py::test_error_against_aten",
}
"""Marked tests of which no case is fast."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark the tests under :data:`MARKED`; the first case of each other test is fast.

    Raises:
        UsageError: a mark comes from another file, so ``make test-all`` would leave the test out.
    """
    known: set[str] = set()
    for item in items:
        unseen = {one.name for one in item.iter_markers()} & {*MARKED.values(), "gpu"}
        unseen -= _marks_named_in(item.path)
        if unseen:
            raise pytest.UsageError(f"{item.nodeid}: name mark.{unseen.pop()} in this file")
        test, _, case = item.nodeid.partition("[")
        places = [place for place in _places(item.path) if place in MARKED]
        for place in places:
            item.add_marker(MARKED[place])
        is_first = bool(case) and test not in known
        if is_first and not places and test.removeprefix(f"{ROOT.name}/") not in COSTLY:
            item.add_marker("fast")
        known.add(test)


def holds_no_test(path: Path, expression: str = "") -> bool:
    """Return whether a file or folder holds no test or doctest that ``-m expression`` selects.

    Each imported file takes time, and makes the process larger, so that its forks take longer.
    """
    wanted, refused = _selected(expression)
    of_path = {MARKED[place] for place in _places(path) if place in MARKED}
    if of_path & refused:
        return True
    if path.suffix != ".py" or path.name in ("__init__.py", "conftest.py"):
        return False
    if not path.name.startswith("test_") and ">>> " not in path.read_text("utf-8"):
        return True
    return bool(wanted) and not wanted & (of_path | _marks_named_in(path))


@functools.cache
def _marks_named_in(path: Path) -> set[str]:
    return set(re.findall(r"\bmark\.(\w+)", path.read_text("utf-8")))


_SELECTS = re.compile(r"\(?(\w+(?: or \w+)*)\)?(?: and not \(?(\w+(?: or \w+)*)\)?)?")


def _selected(expression: str) -> tuple[set[str], set[str]]:
    """Return the marks of which a test needs one, if known, and those that rule a test out."""
    if expression.startswith("fast or not "):
        return set(), set(MARKED.values())  # no test under these paths is fast
    found = _SELECTS.fullmatch(expression)
    if found is None:
        return set(), set()
    wanted, refused = (set(part.split(" or ")) - {""} for part in found.groups(""))
    return (set() if "fast" in wanted else wanted), refused


def _places(path: Path) -> list[str]:
    """Return a path and its parents, relative to the tests' folder or to the project's."""
    for root in (ROOT, ROOT.parent):
        if path.is_relative_to(root):
            relative = path.relative_to(root)
            return [str(place) for place in (relative, *relative.parents)]
    return []
