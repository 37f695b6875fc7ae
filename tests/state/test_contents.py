"""Digests of all data: equal for equal data in every process, and different otherwise."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from stateful_gpu_loader import MixedDataset
from stateful_gpu_loader.state import contents
from stateful_gpu_loader.state.descriptions import describe_dataset, describe_transforms_of
from tests.state.content_kinds import (
    ALL,
    LETTERS,
    MANY,
    PLAIN,
    UNORDERED,
    UNORDERED_LONG,
    Holding,
    described,
)


@pytest.mark.parametrize("kind", ALL)
def test_one_changed_entry_is_another_digest_and_so_is_another_order(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 5,000 names, too. Longer data is sampled, and the text says so."""
    make, given = ALL[kind]
    digest_of = described(make(given))
    assert digest_of.content is not None
    assert not digest_of.is_sampled
    assert digest_of.content == described(make(given)).content
    place = len(given) // 2 + 1
    changed = given[place].replace("0", "9") if given is MANY else "eta"
    other = described(make((*given[:place], changed, *given[place + 1 :])))
    assert other.content != digest_of.content
    turned = described(make(given[::-1]))
    assert (turned.content == digest_of.content) == (kind in {*UNORDERED, *UNORDERED_LONG})
    monkeypatch.setattr(contents, "MAX_COST", 100)
    sampled = described(make(given))
    assert sampled.is_sampled
    assert sampled.content is not None
    assert sampled.content.endswith(", sampled")
    assert sampled.content == described(make(given)).content != digest_of.content


GOLDEN = {
    "array of objects": "blake2b bb56d965389aff3e479ab6958c5b2afb",
    "set": "blake2b fbded29e9df497aa4e8398c896746216",
    "nested mixtures": "blake2b 773c6607414f0848c04d5741a7c46a00",
    "list of pairs": "blake2b 71232409df95466f0150a5e61aa2e04b",
    "dict": "blake2b f64a84f3d9d438a14435a6259acd619d",
    "tensor": "blake2b ef17e77aa657489ab8a6bc406f330016",
}


TEXTS = {
    "list of pairs": "5000 entries blake2b 9e4f48300459a44689c6a79944994fe8",
    "list of dicts": "5000 entries blake2b bd4c88532abe5f0eae7223ddb16371b0",
    "dict": "5000 entries blake2b b78a5b72ec69d1ee61fbe28e385f64fa",
    "tensor": "int64 [15000] blake2b 743ff10edacf886ff660d9622c76d1ad",
}


ALL_OF_THEM = "f83d8d749ca597bbc38a5402e643c2ce"


def test_digests_and_texts_are_golden() -> None:
    """States hold them: a change would refuse every saved state.

    They are the same in every process, whatever the order of hashes in a set.
    """
    digest_of = {kind: described(make(given)).content for kind, (make, given) in PLAIN.items()}
    assert {kind: digest_of[kind] for kind in GOLDEN} == GOLDEN
    assert hashlib.sha256(json.dumps(digest_of).encode()).hexdigest()[:32] == ALL_OF_THEM
    for kind, text in TEXTS.items():
        make, given = ALL[kind]
        assert described(make(given)).text == f"(samples={text})"


def test_paths_count_below_the_folder_that_they_share() -> None:
    """Moved data is the same; a file in another subfolder is different."""

    def digest_of(make: Any, root: str, folder: str = "cat") -> str | None:
        return described(make([f"{root}/dog/1.jpg", f"{root}/{folder}/2.jpg"])).content

    for make in (deque, set, lambda paths: np.array(paths, object)):
        assert digest_of(make, "/data") == digest_of(make, "/mnt/disk/data")
        assert digest_of(make, "/data") != digest_of(make, "/data", "mouse")
    assert described("/data/names.txt").content == described("/mnt/names.txt").content
    assert described("/data/names.txt").content != described("/data/others.txt").content


def test_files_below_the_root_of_a_dataset_keep_their_folders() -> None:
    def digest_of(root: str, folder: str) -> str | None:
        dataset = Holding(deque([f"{root}/{folder}/1.jpg"]))
        dataset.root = root  # type: ignore[attr-defined]
        return describe_dataset(dataset).content

    assert digest_of("/data", "cat") == digest_of("/mnt", "cat") != digest_of("/data", "dog")


def test_equal_tables_have_equal_digests_for_any_memory_layout() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    names = pyarrow.array([*LETTERS, None])
    whole = pyarrow.chunked_array([names])
    parts = pyarrow.chunked_array([names.slice(0, 2), names.slice(2)])
    assert described(whole).content == described(parts).content
    coded = pyarrow.chunked_array([part.dictionary_encode() for part in parts.chunks])
    assert described(coded).content == described(parts).content
    large = whole.cast(pyarrow.large_string())
    assert described(large).content == described(whole).content


def test_text_in_pandas_is_known_by_its_values_whatever_dtype_it_has() -> None:
    """pandas versions give it different dtypes."""
    pandas = pytest.importorskip("pandas")
    values = [*LETTERS, None]
    digest_of = {
        described(pandas.Series(values, dtype=dtype)).content
        for dtype in (object, "string", *(["str"] if pandas.__version__ >= "3" else []))
    }
    assert len(digest_of) == 1


def test_padding_between_fields_of_records_is_not_content() -> None:
    make, _ = ALL["array of records"]
    assert describe_dataset([make(MANY[:9])]) == describe_dataset([make(MANY[:9])])


def test_equal_arrays_have_equal_digests_for_any_strides() -> None:
    numbers = torch.arange(12_000).reshape(3000, 4)
    columns = numbers.t().contiguous().t()
    assert described(numbers).content == described(columns).content is not None
    assert described(numbers.numpy()).content == described(columns.numpy()).content


def test_every_part_of_wrapped_datasets_is_digested() -> None:
    def digest_of(wrapped: Any, changed: int) -> Any:
        parts = [TensorDataset(torch.zeros(5000)) for _ in range(2)]
        parts[1].tensors[0][changed] = 7
        return describe_dataset(wrapped([Subset(part, range(9)) for part in parts]))

    for wrapped in (ConcatDataset, MixedDataset, list, lambda parts: Subset(Holding(parts), [0])):
        assert digest_of(wrapped, 1234).content == digest_of(wrapped, 1234).content
        assert digest_of(wrapped, 1234).content != digest_of(wrapped, 1235).content
    assert digest_of(ConcatDataset, 1234).unknown == ()


class SizedHolding(Holding):
    def __len__(self) -> int:
        return 1


def test_transforms_of_many_parts_are_all_compared() -> None:
    """The text shows 256 of them."""

    def digest_of(changed: int) -> Any:
        parts: list[Any] = [SizedHolding([1]) for _ in range(300)]
        for number, part in enumerate(parts):
            part.transform = float if number == changed else int
        return describe_transforms_of(ConcatDataset(parts))

    changes = range(0, 300, 13)
    assert len({digest_of(number).content for number in changes}) == len(changes)
    assert digest_of(1).unknown == ()


def test_a_table_that_cannot_be_read_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"a": LETTERS})

    def failing(table: Any) -> Any:
        raise AttributeError("iloc")

    monkeypatch.setattr(contents, "columns_of", failing)
    assert described(frame).is_sampled


def test_a_lone_surrogate_is_text() -> None:
    """A caption from JSON may end in the middle of an emoji."""
    for text in ("\ud83d", "a" * 300 + "\ud83d"):
        for captions in (deque([text]), [text]):
            assert described(captions) == described(captions)


@pytest.mark.gpu
def test_a_tensor_is_the_same_on_every_device() -> None:
    numbers = torch.arange(100_000)
    assert described(numbers.cuda()).content == described(numbers).content is not None


def test_a_dataset_that_is_repeated_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    part = TensorDataset(torch.zeros(100_000))
    monkeypatch.setattr(contents, "MAX_COST", 2_000_000)
    assert not describe_dataset(ConcatDataset([part] * 20)).is_sampled


class _LongSequence(list[Any]):
    """A list that must not be iterated."""

    def __iter__(self) -> Any:
        raise AssertionError("a list that is too long is gone through")


def test_data_beyond_the_cost_limit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_COST", 10_000)
    assert described(_LongSequence(range(100_000))).is_sampled
