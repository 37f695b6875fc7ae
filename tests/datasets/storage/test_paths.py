"""One path or several, URLs, braces and wildcards."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import numpy as np
import pytest
from braceexpand import braceexpand
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.storage.index_files import cached_index
from stateful_gpu_loader.datasets.storage.paths import as_paths, is_url, names_of
from stateful_gpu_loader.datasets.storage.streams import is_compressed


@pytest.mark.parametrize(
    "text", ["b/a-{000..011}.tar", "b/{train,val}-{08..10}.tar", "b/{0..3}{x,y}.tar", "b/plain.tar"]
)
def test_braces_are_those_of_webdataset(text: str) -> None:
    assert as_paths(f"s3://{text}") == list(braceexpand(f"s3://{text}"))


def test_wildcards_in_urls_are_sorted() -> None:
    """The files of macOS match none."""
    system = fsspec.filesystem("memory")
    for name in ("b.tar", "a.tar", "._a.tar", "c.txt"):
        system.pipe(f"/wildcards/{name}", b"")
    found = ["memory:///wildcards/a.tar", "memory:///wildcards/b.tar"]
    assert as_paths("memory://wildcards/*.tar") == found
    with pytest.raises(FileNotFoundError, match="'memory://wildcards/none-"):
        as_paths("memory://wildcards/none-*")


def test_a_signature_is_no_part_of_a_name() -> None:
    """Signed URLs change daily, but name the same files."""
    signed = [f"https://host/{name}.tar.gz?signature=a/{name}" for name in "xy"]
    assert as_paths(signed) == signed
    assert names_of(signed) == ["x.tar.gz", "y.tar.gz"]
    assert is_compressed(signed[0])
    with pytest.raises(ValueError, match=r"'x.tar'"):
        names_of(["memory://w/a//x.tar", "memory://w/a/x.tar"])


def test_an_index_beside_its_file_is_not_found_by_the_wildcard_that_found_the_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "train-00000-of-00001").write_bytes(b"...")
    (path,) = as_paths(tmp_path / "train-*")
    cached_index(
        path, kind="k-1", build=lambda: {"numbers": np.arange(3)}, check=lambda index, size: None
    )
    assert len(list(tmp_path.iterdir())) == 2
    assert as_paths(tmp_path / "train-*") == as_paths(tmp_path / "*") == [path]


def test_wildcards_are_sorted_and_local(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "10.tar", "[x].tar"):
        (tmp_path / name).touch()
    assert [os.path.basename(path) for path in as_paths(tmp_path / "?.tar")] == ["a.tar", "b.tar"]
    assert as_paths(tmp_path / "[x].tar") == [str(tmp_path / "[x].tar")]
    with pytest.raises(FileNotFoundError, match=r"'.*none-\*'"):
        as_paths(tmp_path / "none-*")


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may run in another folder, where fsspec would look for local files by URL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert as_paths(["a.tar", "~/b.tar"]) == [f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"]
    (tmp_path / "a{1,2}.tar").touch()
    assert as_paths("a{1,2}.tar") == [f"{tmp_path}/a{{1,2}}.tar"]
    given = ["file://a.tar", "simplecache::file://b/c.tar", "file:///d.tar", "s3://e/f.tar"]
    found = as_paths(given)
    assert found[:2] == [f"file://{tmp_path}/a.tar", f"simplecache::file://{tmp_path}/b/c.tar"]
    assert found[2:] == given[2:]
    assert names_of(found[:1]) == names_of(given[:1])


def test_nothing_and_doubles_are_refused() -> None:
    with pytest.raises(ValueError, match="names no file"):
        as_paths([])
    with pytest.raises(ValueError, match="'s3://a/1'"):
        as_paths(["s3://a/{0..2}", "s3://a/1"])


def test_what_is_a_url() -> None:
    assert all(map(is_url, ("https://a/b", "gs://a", "simplecache::s3://a/b", "memory://a")))
    assert not any(map(is_url, ("a/b", "/a/b", "a:b", "C:\\a", "a//b", "1a://b")))


def test_names_are_the_paths_without_what_they_share() -> None:
    assert names_of(["/data/a.tar"]) == ["a.tar"]
    assert names_of(["/d/x/a.tar", "/d/y/a.tar"]) == ["x/a.tar", "y/a.tar"]
    assert names_of(["s3://b/x/a.tar", "s3://b/x/b.tar"]) == ["a.tar", "b.tar"]


@given(st.lists(st.text("ab/", min_size=1, max_size=5), min_size=1, max_size=5, unique=True))
def test_names_tell_the_paths_apart(ends: list[str]) -> None:
    paths = sorted({os.path.normpath(f"/folder/{end}") for end in ends})
    names = names_of(paths)
    assert len(set(names)) == len(paths)
    assert all(path.endswith(name) for path, name in zip(paths, names, strict=True))
    assert names_of([f"/elsewhere{path}" for path in paths]) == names
