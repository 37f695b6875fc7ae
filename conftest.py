"""Which files are imported to look for tests and doctests in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import marks


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test that is selected: some import trainers and Ray."""
    return marks.holds_no_test(collection_path, config.getoption("markexpr")) or None
