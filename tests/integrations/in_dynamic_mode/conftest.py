"""Photographs for the readers."""

from __future__ import annotations

import pytest

from tests.images import write_photo_folder


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("photos")
    write_photo_folder(folder, num_classes=3, per_class=5)
    return str(folder)
