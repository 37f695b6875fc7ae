"""Tars as streams: each sample from each cursor."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset
from torch.utils.data import DataLoader

from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.datasets.tar.shards import TarRecords, TarShards
from stateful_gpu_loader.datasets.tar.source import TarSource
from tests.conformance import same
from tests.datasets.compression import TARS
from tests.datasets.source_conformance import assert_every_cursor
from tests.datasets.tar.tar_files import (
    FORMATS,
    sample_entries,
    tar_bytes,
    write_photo_tars,
    write_tar,
)

ODD = [
    ("__meta__", b"meta"),
    *sample_entries(0, 2),
    ("README", b"no sample"),
    ("x.cls", b"1"),
    ("long/" * 40 + "y.jpg", b"a long name"),
    ("NOTES", b"between two members"),
    ("long/" * 40 + "y.cls", b"9"),
    ("z.jpg", b"no class"),
    *sample_entries(2, 5),
    ("END", b"after the last sample"),
]


def plain(item: Any) -> Any:
    if isinstance(item, dict):
        return item
    return item.data.numpy().tobytes(), item.target, item.name


def read(dataset: ShardedDataset, shard: str, cursor: int = 0) -> list[tuple[Any, int]]:
    return [(plain(sample), after) for sample, after in dataset.read_shard(shard, cursor)]


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
@pytest.mark.parametrize("tar_format", ["gnu", "pax"])
def test_from_every_cursor_the_rest_is_the_rest(
    tmp_path: Path, ending: str, tar_format: str
) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(TARS[ending](tar_bytes(ODD, FORMATS[tar_format])))
    shards = TarShards(path, missing="skip")
    assert_every_cursor(shards)
    assert_every_cursor(TarRecords(path))
    found = [plain(sample)[:2] for sample, _ in shards.read_shard(f"a{ending}", 0)]
    assert [target for _, target in found] == [0, 1, 9, 2, 3, 4]
    assert found[2] == (b"a long name", 9)
    cursors = [after for _, after in read(shards, f"a{ending}")]
    if ending == ".tar":
        assert all(cursor % 512 == 0 for cursor in cursors)
    else:
        assert cursors == [1, 2, 3, 4, 5, 6]


def test_samples_are_those_by_index_and_of_webdataset(tmp_path: Path) -> None:
    paths = write_photo_tars(tmp_path)
    target: Any = {"y": "cls", "text": "txt", "key": "__key__"}
    shards, source = TarShards(paths, target=target), TarSource(paths, target=target)
    streamed = [sample for shard in shards.shards() for sample, _ in shards.read_shard(shard, 0)]
    assert [*map(plain, streamed)] == [plain(source.read(index)) for index in range(13)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = [str(path) for path in paths]
        theirs = list(webdataset.WebDataset(names, shardshuffle=False).decode())
    own = ("__url__", "__local_path__")
    assert list(TarRecords(paths)) == [
        {key: value for key, value in sample.items() if key not in own} for sample in theirs
    ]


def test_uneven_and_empty_shards(tmp_path: Path) -> None:
    """Without a target it is the byte of the sample, after a resume and for a compressed tar."""
    paths = [
        write_tar(tmp_path / "a.tar", []),
        write_tar(tmp_path / "b.tar", sample_entries(0, 1)),
        write_tar(tmp_path / "c.tar", sample_entries(1, 8)),
        write_tar(tmp_path / "d.tar", [("README", b"")]),
    ]
    shards = TarShards(paths)
    assert [len(read(shards, shard)) for shard in shards.shards()] == [0, 1, 7, 0]
    assert_every_cursor(shards)
    (tmp_path / "c.tar.gz").write_bytes(gzip.compress(paths[2].read_bytes()))
    for name in ("c.tar", "c.tar.gz"):
        shards = TarShards(tmp_path / name, target=None)
        assert_every_cursor(shards)
        targets = [sample.target for sample, _ in shards.read_shard(name, 0)]
        assert targets == [*range(0, 7 * 2048, 2048)]


def test_torch_iterates_them_too(tmp_path: Path) -> None:
    """Without a loader of this package, torch's workers divide the shards."""
    shards = TarShards(write_photo_tars(tmp_path))
    alone = list(shards)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = DataLoader(shards, batch_size=None, num_workers=2)
    divided = sorted((data.tolist(), target) for data, target in loader)
    assert divided == sorted((data.tolist(), target) for data, target in alone)
    assert same(alone[0][0], TarSource(write_photo_tars(tmp_path))[0][0])


def test_names_and_fingerprint_do_not_depend_on_the_place(tmp_path: Path) -> None:
    """No tar is opened for them."""
    shards = TarShards([tmp_path / "train" / "a.tar", tmp_path / "val" / "a.tar"])
    assert shards.shards() == ["train/a.tar", "val/a.tar"]
    moved = TarShards(["s3://bucket/train/a.tar", "s3://bucket/val/a.tar"])
    assert moved.fingerprint() == shards.fingerprint()
    others: list[ShardedDataset] = [
        TarShards(shards.paths, target=None),
        TarShards(shards.paths, missing="skip"),
        TarShards(shards.paths, image="png"),
        TarShards(shards.paths[::-1]),
        TarShards(shards.paths[:1]),
        TarRecords(shards.paths),
    ]
    assert len({each.fingerprint() for each in [shards, *others]}) == 7


@pytest.mark.parametrize("form", ["dict", "path", "last", "list", "file", "wids"])
def test_counts_are_given_in_many_ways(tmp_path: Path, form: str) -> None:
    folders = [tmp_path / "x", tmp_path / "y"]
    for folder in folders:
        folder.mkdir()
    paths = [
        write_tar(folders[0] / "a.tar", sample_entries(0, 3)),
        write_tar(folders[1] / "b.tar", sample_entries(3, 8)),
    ]
    file = tmp_path / "sizes.json"
    sizes: Any = {"a.tar": 3, "b.tar": 5}
    if form == "wids":
        sizes = {"shardlist": [{"url": f"x/{name}", "nsamples": n} for name, n in sizes.items()]}
    file.write_text(json.dumps(sizes))
    counts: Any = {
        "dict": {"x/a.tar": 3, "y/b.tar": 5},
        "path": {str(paths[0]): 3, str(paths[1]): torch.tensor(5)},
        "last": {"a.tar": 3, "b.tar": 5, "unknown.tar": 7},
        "list": [3, 5],
        "file": file,
        "wids": str(file),
    }[form]
    for shards in (TarShards(paths, counts=counts), TarRecords(paths, counts=counts)):
        assert [shards.num_samples(shard) for shard in shards.shards()] == [3, 5]
        assert [len(read(shards, shard)) for shard in shards.shards()] == [3, 5]
    assert TarShards(paths).num_samples("x/a.tar") is None


def test_files_of_counts_and_wrong_counts_are_refused(tmp_path: Path) -> None:
    """A last part that several paths share names none of them."""
    path, file = write_tar(tmp_path / "a.tar", sample_entries(0, 3)), tmp_path / "sizes.json"
    for text in ("{", "[1]", '{"shardlist": [{}]}', '{"shardlist": 3}', "[" * 100_000):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"sizes.json'"):
            TarShards(path, counts=file)
    for text, error in (('"3"', TypeError), ("[[[3]]]", TypeError), ("-1", ValueError)):
        file.write_text(f'{{"a.tar": {text}}}')
        with pytest.raises(error, match=r"counts\['a.tar'\].*0"):
            TarShards(path, counts=file)
    with pytest.raises(ValueError, match="1 shards and 2 counts"):
        TarShards(path, counts=[3, 3])
    with pytest.raises(ValueError, match=r"counts has no 'x/a.tar', one of 2 missing shards"):
        TarShards(["/x/a.tar", "/y/a.tar"], counts={"a.tar": 3})
    shards = TarShards(path, counts=[4])
    with pytest.raises(ValueError, match=r"3.*4.*counts="):
        list(shards)
    assert len(read(shards, "a.tar", 2048)) == 2


def test_large_members_that_are_not_wanted_are_not_kept(tmp_path: Path) -> None:
    entries = [("k.wav", bytes(3 << 20)), ("k.jpg", b"image"), ("k.cls", b"3")]
    shards = TarShards(write_tar(tmp_path / "a.tar", entries))
    sample, _ = next(iter(shards.read_shard("a.tar", 0)))
    assert sample.data.numpy().tobytes() == b"image"
    assert sample.data.untyped_storage().nbytes() == 5
    assert repr(shards) == "TarShards(1 tars)"
