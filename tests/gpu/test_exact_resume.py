"""Resuming on a GPU, bit for bit, from every batch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import assert_exact_on_all, assert_exact_resume
from tests.gpu.photos import COLORFUL, make_loader, write_mixed_folder

pytestmark = pytest.mark.gpu

READERS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    *({"num_workers": 2, "prefetch_factor": ahead} for ahead in (1, 2, 3, 4)),
    {"num_workers": 2, "worker_type": "process"},
)

KINDS = (READERS[0], READERS[2], READERS[-1])


def test_every_backend_resumes_at_every_batch(mixed: Path, backend: str) -> None:
    make = partial(make_loader, mixed, decoder=backend, batch_size=3)
    assert_exact_resume(make, other=READERS)


def test_every_number_and_kind_of_readers_resumes_every_other(mixed: Path) -> None:
    assert_exact_on_all(partial(make_loader, mixed), KINDS)


def test_recipes_beside_the_one_launch_resume_exactly(mixed: Path) -> None:
    make = partial(make_loader, mixed, transform=COLORFUL)
    assert_exact_resume(make, other=({"num_workers": 2}, {"num_workers": 0}))


@pytest.mark.parametrize("policy", ["replace", "drop"])
def test_a_bad_image_affects_only_its_own_place(tmp_path: Path, backend: str, policy: str) -> None:
    """Every run has the same batches, with the same neighbours of the bad image."""
    write_mixed_folder(tmp_path)
    damaged = sorted(tmp_path.glob("*/photo_*.jpg"))[3]
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    make = partial(make_loader, tmp_path, decoder=backend, on_bad_sample=policy)
    delivered = sum(len(images) for images, _ in make())
    assert delivered == (20 if policy == "replace" else 19)
    assert_exact_resume(make, other=({"num_workers": 2}, {"num_workers": 0}))
