"""Masks of COCO annotations, compared with pycocotools."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pycocotools import mask as reference

from stateful_gpu_loader.datasets.coco_annotations import (
    draw_polygon,
    draw_runs,
    outline_of,
    runs_of,
)

# pycocotools' decode under NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIDES = st.integers(1, 40)
COORDINATES = st.one_of(
    st.integers(-5, 45), st.floats(-5, 45), st.integers(-50, 450).map(lambda n: n / 10)
)
POLYGONS = st.lists(st.tuples(COORDINATES, COORDINATES), min_size=3, max_size=9)


def drawn(polygon: Any, height: int, width: int) -> Any:
    mask = np.zeros((height, width), dtype=np.uint8)
    draw_polygon(mask, outline_of([number for corner in polygon for number in corner]))
    return mask


@settings(deadline=None)
@given(POLYGONS, SIDES, SIDES)
@example([(1, 1), (1, 1), (5, 5), (1, 5), (1, 1)], 8, 8)
@example([(0, 0), (8, 0), (8, 8), (0, 8)], 8, 8)
@example([(2, 2), (2, 2), (2, 2)], 4, 4)
def test_polygons_are_those_of_pycocotools(polygon: Any, height: int, width: int) -> None:
    """To the pixel, also for polygons that leave the image or cross themselves."""
    flat = [float(number) for corner in polygon for number in corner]
    expected = reference.decode(reference.frPyObjects([flat], height, width))[:, :, 0]
    np.testing.assert_array_equal(drawn(polygon, height, width), expected)


@given(st.integers(1, 20), st.integers(1, 20), st.data())
@settings(deadline=None)
def test_runs_are_those_of_pycocotools(height: int, width: int, data: st.DataObject) -> None:
    """Compressed and plain runs."""
    bits = data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    expected = np.array(bits, dtype=np.uint8).reshape(height, width)
    encoded = reference.encode(np.asfortranarray(expected))
    runs = runs_of(encoded["counts"].decode(), height, width)
    for counts in (runs, runs_of(runs.tolist(), height, width)):
        mask = np.zeros((height, width), dtype=np.uint8)
        draw_runs(mask, counts)
        np.testing.assert_array_equal(mask, expected)


def test_long_runs_are_read() -> None:
    """Differences are negative, and numbers have many characters."""
    expected = np.zeros((1000, 1500), dtype=np.uint8)
    expected[3:900, 700:] = 1
    expected[:, 20] = 1
    encoded = reference.encode(np.asfortranarray(expected))
    mask = np.zeros_like(expected)
    draw_runs(mask, runs_of(encoded["counts"].decode(), 1000, 1500))
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([1, 2], "are 3 pixels, and it has 3x2 = 6"),
        ([7, -1], "are 6 pixels"),
        ([], "are 0 pixels"),
        ([3, 3.0], "neither a text nor a list"),
        (7, "neither a text nor a list"),
        ("21\x7f", "hold '\\\\x7f' at place 2"),
        ("2P", "end within a number"),
        ("n" * 40, "hold 'n' at place"),
    ],
)
def test_runs_that_do_not_fit_are_refused(counts: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        runs_of(counts, 2, 3)


@pytest.mark.parametrize(
    ("polygon", "text"),
    [
        ([1, 2, 3, 4], "a polygon has 4 numbers"),
        ([1, 2, 3, 4, 5, 6, 7], "a polygon has 7 numbers"),
        ([1, 2, 3, 4, 5, "x"], "not a number"),
        ([[1, 2], [3, 4], [5, 6]], "a polygon has 6 numbers"),
        ([1, 2, 3, 4, 5, float("nan")], "million pixels away, or is not a number"),
        ([1, 2, 3, 4, 5, 1e12], "million pixels away"),
    ],
)
def test_polygons_that_are_none_are_refused(polygon: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        outline_of(polygon)
