"""Damaged, truncated, changed and missing shards: the right samples, then a named error."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.datasets.tar.shards import TarRecords, TarShards
from tests.datasets.compression import TARS
from tests.datasets.tar.tar_files import sample_entries, tar_bytes, write_tar

ENTRIES = sample_entries(0, 4)
WHOLE = tar_bytes(ENTRIES)


def until_the_error(dataset: ShardedDataset, shard: str, cursor: int = 0) -> tuple[list[Any], str]:
    """Return the samples before the first ValueError, and its text."""
    found = []
    try:
        for sample, _ in dataset.read_shard(shard, cursor):
            if isinstance(sample, ValueError):
                raise sample
            found.append(sample if isinstance(sample, dict) else sample.data.numpy().tobytes())
    except ValueError as error:
        return found, str(error)
    return found, ""


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    shards = TarShards([write_tar(tmp_path / "a.tar", ENTRIES), tmp_path / "gone.tar"])
    assert len(list(shards.read_shard("a.tar", 0))) == 4
    for cursor in (0, 512):
        with pytest.raises(FileNotFoundError, match=r"gone\.tar"):
            list(shards.read_shard("gone.tar", cursor))
    with pytest.raises(FileNotFoundError, match=r"memory://gone\.tar"):
        list(TarShards("memory://gone.tar").read_shard("gone.tar", 0))


@pytest.mark.fuzz
@pytest.mark.parametrize("ending", TARS)
def test_a_shard_cut_off_at_any_byte_gives_a_prefix(tmp_path: Path, ending: str) -> None:
    """A plain one at the edges of each block and at every eleventh byte."""
    path = tmp_path / f"a{ending}"
    # Without the zeros with which tarfile fills up a record.
    data = TARS[ending](tar_bytes(sample_entries(0, 2))[:5120])
    for make in (TarShards, TarRecords):
        path.write_bytes(data)
        dataset = make(path)
        expected, error = until_the_error(dataset, path.name)
        assert (len(expected), error) == (2, "")
        for size in reversed(range(len(data))):
            if ending == ".tar" and size % 11 and (size + 2) % 512 > 4:
                continue
            os.truncate(path, size)
            found, error = until_the_error(dataset, path.name)
            assert found == expected[: len(found)], size
            if error:
                assert all(word in error for word in (path.name, "byte", "Remedy"))
            if ending != ".tar":
                assert error or found == expected


def test_an_archive_without_its_end_is_read_where_nothing_can_be_missing(tmp_path: Path) -> None:
    """Like tarfile and webdataset, but members of the last sample may be missing."""
    path = tmp_path / "a.tar"
    path.write_bytes(WHOLE[:8192])
    found, error = until_the_error(TarShards(path), "a.tar")
    assert (len(found), error) == (4, "")
    found, error = until_the_error(TarRecords(path), "a.tar")
    assert len(found) == 3
    assert "record '0003', byte 8192: the file ends without the block of zeros" in error


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.zst"])
def test_the_samples_before_the_damage_come(tmp_path: Path, ending: str) -> None:
    """The sample that breaks off may lack members, so it is not delivered."""
    path = tmp_path / f"a{ending}"
    for header, whole in ((0, 0), (1024, 0), (2048, 0), (3072, 1), (4096, 1), (6144, 2)):
        data = WHOLE[: header + 5] + b"\xff" + WHOLE[header + 6 :]
        path.write_bytes(TARS[ending](data))
        for dataset in (TarShards(path), TarRecords(path)):
            found, error = until_the_error(dataset, path.name)
            assert len(found) == whole
            assert f"a{ending}', byte {header}: not a tar header: its checksum differs" in error


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz"])
def test_damaged_compressed_bytes_are_named(tmp_path: Path, ending: str) -> None:
    """A ValueError, because retries do not help."""
    path = tmp_path / f"a{ending}"
    data = bytearray(TARS[ending](WHOLE))
    middle = len(data) // 2
    data[middle : middle + 8] = bytes(byte ^ 0x55 for byte in data[middle : middle + 8])
    path.write_bytes(data)
    _, error = until_the_error(TarShards(path), path.name)
    assert f"a{ending}', record " in error
    path.write_bytes(b"not compressed at all" * 40)
    _, error = until_the_error(TarShards(path), path.name)
    assert "its compressed bytes are damaged" in error


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz"])
def test_a_checksum_behind_the_archives_end_is_compared(tmp_path: Path, ending: str) -> None:
    """Found by the fuzzer of inputs: it comes after the zeros that close a tar."""
    noise = random.Random(0).randbytes(1 << 21)
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    whole = (compress if ending == ".tar.zst" else TARS[ending])(WHOLE + noise)
    path = tmp_path / f"a{ending}"
    for place in (-12, -4) if ending == ".tar.xz" else (-4,):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        found, text = until_the_error(TarRecords(path), path.name)
        assert len(found) == 4
        assert "its compressed bytes are damaged" in text


def test_a_sample_without_image_or_target_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [*ENTRIES, ("b.jpg", b""), *sample_entries(7, 8)])
    found, error = until_the_error(TarShards(path), "a.tar")
    assert len(found) == 4
    assert error == (
        f"{str(path)!r}, record 'b', byte 8192: lacks the target (cls), has jpg. Remedy: pass "
        "the members' extensions as image= and target=, or missing='skip' to leave it out"
    )
    whole = list(TarShards(path).read_shard("a.tar", 0))
    kinds = [isinstance(sample, ValueError) for sample, _ in whole]
    assert kinds == [False] * 4 + [True, False], "it is left out alone"
    assert len(until_the_error(TarShards(path, missing="skip"), "a.tar")[0]) == 5
    found, error = until_the_error(TarShards(path, image="png"), "a.tar")
    assert found == []
    assert "lacks the image (png), has jpg, cls" in error
    with pytest.raises(ValueError, match="missing = 'drop'"):
        TarShards(path, missing="drop")  # type: ignore[arg-type]


def test_a_malformed_target_and_a_doubled_member_are_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("k.jpg", b""), ("k.cls", b"seven")])
    for dataset in (TarShards(path), TarRecords(path)):
        _, error = until_the_error(dataset, "a.tar")
        assert "record 'k', byte 1024: its member 'cls' cannot be read" in error
    write_tar(path, [*ENTRIES, ("k.jpg", b""), ("k.JPG", b"")])
    found, error = until_the_error(TarRecords(path), "a.tar")
    assert len(found) == 4
    assert "byte 8704: the sample 'k' has two members" in error


def test_a_cursor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """The shard became shorter after the state was saved, or is another."""
    for ending, end in ((".tar", 8192), (".tar.gz", 4)):
        path = tmp_path / f"a{ending}"
        path.write_bytes(TARS[ending](WHOLE))
        shards = TarShards(path)
        assert until_the_error(shards, path.name, end) == ([], "")
        _, error = until_the_error(shards, path.name, 99999)
        assert "it ends" in error
        assert "resume with the file that the state was saved with" in error
    path = write_tar(tmp_path / "a.tar", [("k.jpg", b"x" * 2000), ("k.cls", b"1")])
    found, error = until_the_error(TarShards(path), "a.tar", 1024)
    assert found == []
    assert "byte 1024: not a tar header" in error
