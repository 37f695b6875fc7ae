"""Which files are imported to look for tests and doctests in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import marks


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without any test, and in ``make test`` those without a fast one.

    Modules of adapters and helpers of their tests import trainers and Ray, which takes longer than
    all fast tests of a room.
    """
    are_fast = config.getoption("markexpr").startswith("fast or not")
    is_left_out = are_fast and marks.holds_no_fast_test(collection_path)
    return is_left_out or marks.holds_no_test(collection_path) or None
