"""Keys and file names in one block of memory."""

from __future__ import annotations

import os
import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.name_table import KeyTable, NameTable


@given(st.lists(st.binary(max_size=9)))
def test_a_table_keeps_keys_of_any_bytes(keys: list[bytes]) -> None:
    """Also one that is made again of its text and ends."""
    table = KeyTable(iter(keys))
    again = KeyTable.joined(table.text, table.ends())
    for each in (table, again):
        assert [each[index] for index in range(len(each))] == keys
        assert len(each) == len(keys)
        assert repr(each)
    assert again.blocks() == table.blocks()


def test_tables_of_the_same_text_and_other_keys_differ() -> None:
    tables = [
        KeyTable(keys) for keys in ([b"ab", b"cd"], [b"a", b"bcd"], [b"abcd"], [b"abc", b"d"])
    ]
    assert len({table.blocks() for table in tables}) == 4


def test_a_table_of_many_keys_is_built_in_blocks() -> None:
    table = KeyTable(b"%08d" % number for number in range(200_000))
    assert (len(table), table[0], table[199_999]) == (200_000, b"00000000", b"00199999")
    assert len(pickle.dumps(table)) < 200_000 * 8 + 500


@given(st.lists(st.binary(max_size=5).map(os.fsdecode), max_size=9))
def test_names_of_any_bytes_are_kept(names: list[str]) -> None:
    table = NameTable(names)
    assert [table[i] for i in range(len(table))] == names


def test_the_blocks_of_names_do_not_depend_on_whether_all_are_as_long() -> None:
    """Fingerprints of folders use them."""
    assert NameTable(["ab", "cd"]).blocks() == (b"abcd", np.array([0, 2, 4], "<i8").tobytes())
    assert NameTable(["a", "bcd"]).blocks() == (b"abcd", np.array([0, 1, 4], "<i8").tobytes())
