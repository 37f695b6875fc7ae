"""Runs the tests of this folder on the pretend GPU, and counts the batches that they compare."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.pretend_gpu.build import Unavailable
from tests.pretend_gpu.processes import IN_CHILD, PretendGpu

_GPU = pytest.StashKey[PretendGpu]()
_MISSING = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a test in a process that sees the pretend GPU; this process does not see it."""
    if item.get_closest_marker("pretend_gpu") is None or IN_CHILD in os.environ:
        return None
    gpu = _built(item.config)
    if gpu is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in gpu.run(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _built(config: pytest.Config) -> PretendGpu | None:
    stash = config.stash
    if _GPU not in stash and _MISSING not in stash:
        try:
            stash[_GPU] = gpu = PretendGpu()
        except Unavailable as error:
            stash[_MISSING] = str(error)
        else:
            config.add_cleanup(gpu.close)
    return stash.get(_GPU, None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if IN_CHILD not in os.environ:
        pytest.skip(f"no pretend GPU: {item.config.stash[_MISSING]}")


@pytest.fixture
def count(record_property: Callable[[str, Any], None]) -> Callable[[str, int, int], None]:
    """Record the numbers of compared and wrong batches, for the session's summary."""

    def record(what: str, compared: int, wrong: int) -> None:
        record_property("batches", (what, compared, wrong))

    return record


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the numbers of compared and wrong batches."""
    totals: dict[str, tuple[int, int]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "batches" and getattr(report, "when", "") == "call":
                    what, compared, wrong = value
                    before = totals.get(what, (0, 0))
                    totals[what] = before[0] + compared, before[1] + wrong
    for what, (compared, wrong) in totals.items():
        terminalreporter.write_line(f"{what}: {compared} compared, {wrong} wrong")
