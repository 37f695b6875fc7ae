"""A thread that parses a Python literal while another thread parses one."""

from __future__ import annotations

import ast
import threading
from typing import Any

import pytest


def parse_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let another thread parse a literal, once, in the middle of the next literal of a dict.

    CPython 3.11 and 3.12 then raise SystemError for the first one.

    Returns:
        List of what the other thread parsed.
    """
    parsed: list[Any] = []

    def at_depth(frames: int) -> None:
        if frames:
            at_depth(frames - 1)
        else:
            parsed.append(ast.literal_eval("[1, 2]"))

    def set_attribute(node: ast.Dict, name: str, value: Any) -> None:
        object.__setattr__(node, name, value)
        if not parsed:
            thread = threading.Thread(target=at_depth, args=(50,))
            thread.start()
            thread.join()

    monkeypatch.setattr(ast.Dict, "__setattr__", set_attribute, raising=False)
    return parsed
