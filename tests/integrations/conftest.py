"""Shared fixtures of the tests of DALI's pipelines."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.integrations.dali_readers import Arguments, write_datasets


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arguments]:
    return write_datasets(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(scope="module", autouse=True)
def _leave_no_pipeline() -> Iterator[None]:
    """Leave no live pipeline: other tests of this process fork, and its threads would remain."""
    yield
    gc.collect()
