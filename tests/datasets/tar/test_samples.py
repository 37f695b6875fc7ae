"""Grouping by key, choosing and decoding members, like the package webdataset."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.autodecode import decoders
from webdataset.tariterators import base_plus_ext, group_by_keys

from stateful_gpu_loader.datasets.tar.samples import (
    MemberChoice,
    SampleGrouping,
    split_name,
    value_of,
)
from tests.conformance import same
from tests.literals import parse_in_another_thread

NAME = st.text("ab/._J\n", min_size=1, max_size=9)


@given(NAME)
def test_names_split_as_in_webdataset(name: str) -> None:
    key, extension = base_plus_ext(name)
    expected = None if key is None else (key, extension.lower())
    if name.startswith("__") and "__" in name[2:].partition("/")[0]:
        return
    if name.rpartition("/")[2].startswith("._"):
        return
    assert split_name(name) == expected


def test_names_without_a_sample() -> None:
    """Names that only look like data about the tar are members."""
    meta = ("__meta__", "__meta__/a.jpg", "____/a.jpg")
    hidden = ("README", ".hidden", "._a.jpg", "train/._a.jpg", "./._a.left.jpg")
    assert [*map(split_name, (*meta, *hidden))] == [None] * 8
    assert split_name("__init__.py") == ("__init__", "py")
    assert split_name("a/__meta__.jpg") == ("a/__meta__", "jpg")


@given(st.lists(st.sampled_from(["a.jpg", "a.JPG", "a.cls", "b.jpg", "b.cls", "x", "c/a.jpg"])))
def test_members_group_as_in_webdataset(names: list[str]) -> None:
    assert attempt(grouped, names) == attempt(grouped_by_webdataset, names)


def grouped(names: list[str]) -> list[list[str]]:
    grouping, found = SampleGrouping(), []
    for name in names:
        place = grouping.place(name)
        if place is not None:
            found += [[]] if place[0] else []
            found[-1].append(place[1])
    return found


def grouped_by_webdataset(names: list[str]) -> list[list[str]]:
    files = [{"fname": name, "data": b"", "__url__": ""} for name in names]
    samples: Any = group_by_keys(iter(files))
    return [[name for name in sample if not name.startswith("__")] for sample in samples]


def attempt(group: Callable[[list[str]], Any], names: list[str]) -> Any:
    """Return the groups of extensions, or that a name is refused."""
    try:
        return group(names)
    except ValueError:
        return "refused"


def test_values_are_those_of_webdataset() -> None:
    for extension, data in (
        ("cls", b"7"),
        ("cls2", b" -12\n"),
        ("index", b"0"),
        ("inx", b"1"),
        ("left.id", b"9"),
        ("json", b'{"a": [1, null]}'),
        ("json", json.dumps({"boxes": [[0.5, 1]], "name": "é", "none": None}).encode()),
        ("jsn", b"3"),
        ("txt", "grün".encode()),
        ("text", b""),
        ("transcript", b"a\nb"),
    ):
        assert value_of(extension, data) == decoders[extension.rpartition(".")[2]](data)


def test_arrays_are_those_of_numpy() -> None:
    for array in (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(3.5),
        np.zeros((0, 4), dtype=np.uint8),
        np.array([(1, 2.0)], dtype=[("a", "<i4"), ("b", "<f8")]),
    ):
        file = io.BytesIO()
        np.save(file, array)
        found = value_of("npy", file.getvalue())
        assert same(found, array)
        assert found.flags.writeable


def test_an_array_is_read_beside_a_thread_that_parses_literals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    parsed = parse_in_another_thread(monkeypatch)
    assert value_of("npy", file.getvalue()).tolist() == [0, 1, 2]
    assert parsed == [[1, 2]]


def test_pickles_are_never_loaded() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="pickled objects"):
        value_of("npy", file.getvalue())
    assert value_of("pth", b"anything") == b"anything"
    for argument in ("pth", "meta.pkl", "cls;pyd"):
        with pytest.raises(ValueError, match=r"pickles, which run code.*Remedy: store"):
            MemberChoice("jpg", argument)


def test_malformed_values_are_value_errors() -> None:
    """Every retry would find them malformed."""
    for extension, data in (
        ("cls", b"seven"),
        ("cls", b""),
        ("cls", b"9" * 30),
        ("cls", b"9" * 9999),
        ("txt", b"\xff"),
        ("json", b"{"),
        ("json", b"[" * 99999),
        ("json", b"\xff\xfe\xff"),
        ("npy", b""),
        ("npy", b"\x93NUMPY\x01\x00\x10\x00" + b"{" * 16),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            value_of(extension, data)


def test_choices_of_image_and_target() -> None:
    forms: list[tuple[Any, Any]] = [
        ("cls", 1),
        (("cls", "txt"), (1, 2)),
        (["cls", "cls"], (1, 1)),
        ({"y": "cls", "name": "__key__"}, {"y": 1, "name": "k"}),
        ("__key__", "k"),
        (None, 5),
    ]
    for target, expected in forms:
        choice = MemberChoice("jpg", target)
        assert choice.target([1, 2][: len(choice.slots) - 1], "k", 5) == expected
    assert MemberChoice(("JPG;png", ".webp"), None).slots == (("jpg", "png", "webp"),)
    assert MemberChoice("jpg", ("cls;cls2", "txt")).wanted == {"jpg", "cls", "cls2", "txt"}


def test_choices_that_are_none_are_refused() -> None:
    wrong: list[tuple[Any, Any, type[Exception]]] = [
        ((), "cls", ValueError),
        ("", "cls", ValueError),
        ("jpg;", "cls", ValueError),
        ("__key__", "cls", ValueError),
        ("jpg", "cls;__key__", ValueError),
        ("jpg", "", ValueError),
        ((3,), "cls", TypeError),
        ("jpg", (3,), TypeError),
        ("jpg", 3, TypeError),
    ]
    for image, target, error in wrong:
        with pytest.raises(error):
            MemberChoice(image, target)
