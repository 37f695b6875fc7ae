"""A lane's cursor as text: what is written is read, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.state.lane_cursor import LaneCursor

_numbers = st.integers(0, 2**63 - 1)


@given(_numbers, _numbers, _numbers, _numbers, _numbers)
def test_what_is_written_is_read(a: int, b: int, c: int, d: int, e: int) -> None:
    cursor = LaneCursor(turns=a, count=max(b, e), shard=c, offset=d, taken=min(b, e))
    assert LaneCursor.from_text(cursor.to_text()) == cursor
    assert cursor.window_start == max(b, e) - min(b, e)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1:2:3:4",
        "1:2:3:4:1:6",
        "1:2:3:4:3",
        "-1:2:3:4:1",
        " 1:2:3:4:1",
        "1:2:3:4:1\n",
        "1:2:3:4:x",
        "01:2:3:4:1",
        "9223372036854775808:2:3:4:1",
        "1:2:3:99999999999999999999:1",
        "\u0967:2:3:4:1",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no lane's cursor: five numbers"):
        LaneCursor.from_text(text)
