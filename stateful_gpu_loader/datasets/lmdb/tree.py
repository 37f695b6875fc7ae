"""The tree of an LMDB file: all keys, and how long their values are, without touching a value.

lmdb's cursors load a page of every value though only keys are asked for: a random read for each
record of a file that is not in memory, which takes minutes a million and here seconds. So the
pages of the tree are read by themselves. Their layout is that of LMDB 0.9 for 64 bits (mdb.c:
MDB_meta, MDB_page, MDB_node), little-endian.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct, unpack_from

MAGIC, VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, KINDS = 1, 2, 0x6F
"""Flags of a page: all but that of dirty pages."""
BIG = 1
"""Flag of a node whose value lies in pages of its own; the others are not plain records."""
EMPTY = 2**64 - 1
MAX_DEPTH = 32

# Number, padding, flags, lower, upper; 16 bytes.
_PAGE = Struct("<QHHHH")
# Before the key, which the value follows, or the number of its first page: the length of the value
# (in branches: the number of a page), low, high and flags, and the length of the key.
_NODE = Struct("<HHHH")
# Of a page; what a node of a value in pages of its own holds after its key.
_NUMBER = Struct("<Q")
# Magic, version; then from byte 24 the free list (its first field is the page size) and the main
# database: flags, depth, branch, leaf and overflow pages, entries, root; last page, transaction.
_META = Struct("<II16xI44xIHHQQQQQQQ")


@dataclass(frozen=True, slots=True)
class LmdbMeta:
    """What an LMDB file says of itself."""

    page_size: int
    """bytes"""
    depth: int
    """Levels of the tree; 0 where it is empty."""
    leaf_pages: int
    entries: int
    root: int
    """Number of a page."""
    last_page: int
    transaction: int
    """Number of the last one; the newer of two such pages counts."""


def read_meta(descriptor: int) -> LmdbMeta:
    """The newer meta page of an open file.

    Raises:
        ValueError: the file is no LMDB of this format.
        OSError: it cannot be read.
    """
    first = _meta_at(descriptor, 0)
    second = _meta_at(descriptor, first.page_size)
    return first if first.transaction >= second.transaction else second


def read_leaves(descriptor: int, meta: LmdbMeta) -> Iterator[tuple[list[bytes], list[int]]]:
    """For each leaf of the main database, in order: its keys, and the bytes of each value.

    The length is -1 where the value would lie beyond the file: LMDB would read it there, and the
    process would be killed.

    Raises:
        ValueError: a page is damaged or missing, or records are not plain ones (sub-databases,
            several values under one key).
        OSError: a page cannot be read.
    """
    if meta.depth > MAX_DEPTH:
        raise ValueError(f"a tree of {meta.depth} levels, at most {MAX_DEPTH} exist")
    entries = leaves = 0
    size = os.fstat(descriptor).st_size
    for page in _walk(descriptor, meta, meta.root, meta.depth) if meta.root != EMPTY else ():
        keys, lengths = [], []
        for at in _nodes(page):
            low, high, flags, key_length = _NODE.unpack_from(page, at)
            start, end = at + _NODE.size, at + _NODE.size + key_length
            if flags & ~BIG or end > len(page):
                raise ValueError(
                    "sub-databases or several values under one key, which are not read"
                    if flags & ~BIG
                    else f"a key of {key_length} bytes reaches beyond its page"
                )
            keys.append(page[start:end])
            length = low | high << 16
            if flags:
                value = page[end : end + _NUMBER.size]
                number = _NUMBER.unpack(value)[0] if len(value) == _NUMBER.size else size
                is_inside = number * meta.page_size + _PAGE.size + length <= size
            else:
                is_inside = end + length <= len(page)
            lengths.append(length if is_inside else -1)
        entries, leaves = entries + len(keys), leaves + 1
        if entries > meta.entries or leaves > meta.leaf_pages:
            break
        yield keys, lengths
    if (entries, leaves) != (meta.entries, meta.leaf_pages):
        raise ValueError(
            f"{entries} records on {leaves} pages were found, expected {meta.entries} on "
            f"{meta.leaf_pages}"
        )


def _walk(descriptor: int, meta: LmdbMeta, number: int, depth: int) -> Iterator[bytes]:
    """The leaves below a page, in order."""
    if number > meta.last_page:
        raise ValueError(f"page {number} of {meta.last_page + 1} is asked for")
    page = os.pread(descriptor, meta.page_size, number * meta.page_size)
    if len(page) < meta.page_size:
        raise ValueError(f"page {number} lies beyond the file's end")
    own_number, _, flags, _, _ = _PAGE.unpack_from(page)
    if own_number != number or flags & KINDS != (LEAF if depth == 1 else BRANCH):
        raise ValueError(f"page {number} is not the page of the tree that it should be")
    if depth == 1:
        yield page
        return
    for at in _nodes(page):
        low, high, highest, _ = _NODE.unpack_from(page, at)
        yield from _walk(descriptor, meta, low | high << 16 | highest << 32, depth - 1)


def _nodes(page: bytes) -> tuple[int, ...]:
    """At which byte each node of a page begins."""
    number, _, _, lower, _ = _PAGE.unpack_from(page)
    if _PAGE.size <= lower <= len(page):
        nodes = unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size)
        if not nodes or lower <= min(nodes) <= max(nodes) <= len(page) - _NODE.size:
            return nodes
    raise ValueError(f"page {number} is damaged")


def _meta_at(descriptor: int, place: int) -> LmdbMeta:
    data = os.pread(descriptor, _PAGE.size + _META.size, place)
    if len(data) < _PAGE.size + _META.size:
        raise ValueError(f"no meta page at byte {place}, where the file ends")
    magic, version, page_size, _, _, depth, _, leaves, _, entries, root, last, transaction = (
        _META.unpack_from(data, _PAGE.size)
    )
    if magic != MAGIC:
        raise ValueError(f"no LMDB meta page at byte {place}")
    if version != VERSION or page_size not in (1 << power for power in range(9, 17)):
        raise ValueError(f"LMDB's format {version} with pages of {page_size} bytes, not {VERSION}")
    return LmdbMeta(page_size, depth, leaves, entries, root, last, transaction)
