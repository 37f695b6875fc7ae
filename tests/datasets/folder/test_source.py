"""Image files from class folders, file lists and Python lists."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.datasets import ImageFolder

from stateful_gpu_loader.datasets import FolderSource
from tests.datasets.source_conformance import items
from tests.images import write_photo_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes with deep folders, and names that are easily sorted wrongly."""
    names = (
        "dog/rex.jpg",
        "dog/Rex.JPG",
        "cat/b/1.png",
        "cat/b-2/1.png",
        "cat/b.jpg",
        "cat/z.jpeg",
        "cat/a/deep/er/2.webp",
        "cat/a/10.jpg",
        "cat/a/9.jpg",
        "Äpfel/ß.jpg",
        "Äpfel/日本.jpg",
    )
    for name in names:
        write(tmp_path / "photos" / name, name.encode())
    write(tmp_path / "photos" / "cat" / "notes.txt", b"left out")
    write(tmp_path / "photos" / "stray.jpg", b"left out")
    return tmp_path / "photos"


def write(path: Path, text: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


def paths(source: FolderSource) -> list[str]:
    return [source.path(index) for index in range(len(source))]


def test_class_folders_are_those_of_torchvision(root: Path, tmp_path: Path) -> None:
    """A model trained with ImageFolder keeps its classes and their order.

    The tests' write_photo_folder is compared with ImageFolder too.
    """
    source, theirs = FolderSource(root), ImageFolder(str(root))
    assert source.classes == theirs.classes
    assert source.class_to_idx == theirs.class_to_idx
    assert source.targets.tolist() == theirs.targets
    assert list(zip(paths(source), source.targets, strict=True)) == theirs.samples
    assert len(source) == 11
    for extensions in ([".PNG"], ".png"):
        assert len(FolderSource(root / "..", extensions=extensions)) == 2
    written = write_photo_folder(tmp_path / "more", num_classes=3, per_class=5, seed=1)
    source = FolderSource(str(tmp_path / "more"))
    assert paths(source) == [path for path, _ in ImageFolder(tmp_path / "more").samples]
    assert paths(source) == [str(path) for path in written]
    assert len({data for data, _ in items(source)}) == 15


def test_the_files_of_macos_beside_images_are_no_images(root: Path) -> None:
    """AppleDouble: on a foreign disk, macOS writes ``._x.jpg`` beside each ``x.jpg``."""
    before = FolderSource(root)
    for name in ("cat/._b.jpg", "cat/a/._10.jpg", "dog/._rex.JPG"):
        write(root / name, b"\0\5\x16\7")
    after = FolderSource(root)
    assert paths(after) == paths(before)
    assert after.fingerprint() == before.fingerprint()


def test_links_are_followed_and_loops_are_named(root: Path, tmp_path: Path) -> None:
    """A dataset is often a farm of links; os.walk would list a loop forty times."""
    elsewhere = write(tmp_path / "elsewhere" / "far.jpg").parent
    (root / "dog" / "linked").symlink_to(elsewhere)
    assert paths(FolderSource(root)) == [path for path, _ in ImageFolder(root).samples]
    (root / "dog" / "loop").symlink_to(root)
    with pytest.raises(ValueError, match=r"loop.*is a link to .*which holds it"):
        FolderSource(root)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda root: root / "absent", FileNotFoundError, "no such folder: .*absent"),
        (lambda root: root / "stray.jpg", NotADirectoryError, "not a folder: .*stray"),
        (lambda root: root / "dog", FileNotFoundError, "no class folder in .*from_paths"),
        (lambda root: root, FileNotFoundError, r"1 of the 4 class folders.*: empty\. Looked for.*"),
    ],
)
def test_what_is_no_dataset_is_named(
    root: Path, make: Callable[[Path], Path], error: type[Exception], text: str
) -> None:
    """The exception types are torchvision's where torchvision refuses, too."""
    (root / "empty").mkdir()
    with pytest.raises(error, match=text):
        FolderSource(make(root))
    if error is FileNotFoundError:
        with pytest.raises(error):
            ImageFolder(make(root))


def test_an_empty_class_is_kept_if_allowed(root: Path) -> None:
    (root / "eel").mkdir()
    source = FolderSource(root, allow_empty=True)
    assert source.class_to_idx == ImageFolder(root, allow_empty=True).class_to_idx
    assert len(source) == 11
    with pytest.raises(FileNotFoundError, match=r"4.*4.*\.gif"):
        FolderSource(root, extensions=(".gif",), allow_empty=True)


def test_file_list_keeps_its_order_and_its_labels(root: Path) -> None:
    """DALI's file_list: the label is the last word, so paths may contain spaces."""
    write(root / "cat" / "tom  the cat.jpg", b"tom")
    lines = (
        "\ufeffdog/rex.jpg 7\r",
        "",
        "# a comment",
        "  cat/tom  the cat.jpg\t-3  ",
        "Äpfel/ß.jpg 0",
    )
    file = write(root / "list.txt", "\n".join(lines).encode())
    source = FolderSource.from_file_list(file)
    assert items(source) == [(b"dog/rex.jpg", 7), (b"tom", -3), ("Äpfel/ß.jpg".encode(), 0)]
    assert source.classes == []
    moved = shutil.copy(file, root.parent / "elsewhere.txt")
    assert items(FolderSource.from_file_list(moved, root=root)) == items(source)


def test_a_line_without_a_label_and_a_file_list_of_nothing_are_named(tmp_path: Path) -> None:
    bad = ("a.jpg", "a.jpg one", "a.jpg 1.0", "7", "a.jpg --1", "a.jpg 9999999999999999999")
    for line in bad:
        file = write(tmp_path / "list.txt", f"# first\n\nb.jpg 1\n{line}\n".encode())
        with pytest.raises(ValueError, match=rf"list.txt', line 4: '{line}'"):
            FolderSource.from_file_list(file)
    with pytest.raises(ValueError, match=r"list.txt'"):
        FolderSource.from_file_list(write(tmp_path / "list.txt", b"# nothing\n"))
    with pytest.raises(FileNotFoundError, match="absent"):
        FolderSource.from_file_list(tmp_path / "absent.txt")


def test_paths_given_in_python_keep_their_order(root: Path) -> None:
    """With labels of any integer type, or numbered."""
    given_paths = [root / "dog" / "rex.jpg", root / "cat" / "b.jpg"]
    numbered = FolderSource.from_paths(given_paths)
    assert items(numbered) == [(b"dog/rex.jpg", 0), (b"cat/b.jpg", 1)]
    for labels in ([5, 6], np.array([5, 6]), torch.tensor([5, 6]), iter([5, 6])):
        source = FolderSource.from_paths(["dog/rex.jpg", "cat/b.jpg"], labels, root=root)
        assert items(source) == [(b"dog/rex.jpg", 5), (b"cat/b.jpg", 6)]
        assert type(source[0][1]) is int


def test_relative_paths_are_of_the_folder_where_the_source_was_made(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absolute paths need no working directory."""
    monkeypatch.chdir(root)
    source = FolderSource.from_paths(["dog/rex.jpg", "cat/b.jpg"])
    (root / "gone").mkdir()
    monkeypatch.chdir(root / "gone")
    (root / "gone").rmdir()
    assert items(source) == [(b"dog/rex.jpg", 0), (b"cat/b.jpg", 1)]
    assert source.read(0).name == str(root / "dog" / "rex.jpg")
    source = FolderSource.from_paths([root / "dog" / "rex.jpg"])
    assert items(source) == [(b"dog/rex.jpg", 0)]


def test_labels_that_do_not_fit_and_paths_that_are_none_are_named() -> None:
    two = ["a.jpg", "b.jpg"]
    for given_paths, labels, error, text in (
        (two, [1], ValueError, "2 paths and 1 labels"),
        (two, [1, 2, 3], ValueError, "2 paths and 3 labels"),
        (two, [1, "two"], TypeError, "label 1 is 'two', not an integer"),
        (two, [1.5, 2], TypeError, "label 0 is 1.5, not an integer"),
        (two, [1, 2**63], ValueError, "label 1 is 9223372036854775808, beyond 64 bits"),
        ([], None, ValueError, "no paths were given"),
        ("a.jpg", None, TypeError, r"'a.jpg'"),
    ):
        with pytest.raises(error, match=text):
            FolderSource.from_paths(given_paths, labels)


def test_indexing_is_a_sequences(root: Path) -> None:
    source = FolderSource(root)
    last = len(source) - 1
    for index in (-1, last, np.int64(last), torch.tensor(last)):
        assert torch.equal(source[index][0], source.read(last).data)
    for index in (len(source), -len(source) - 1):
        with pytest.raises(IndexError, match=rf"index {index}.*11"):
            source[index]
    with pytest.raises(TypeError):
        source[1.0]  # type: ignore[index]


def test_a_sample_names_its_file(root: Path) -> None:
    """The decoder decides whether an empty file is a bad sample.

    An OSError stays an OSError, because it may be temporary; its text names path and index.
    """
    source = FolderSource(root)
    file, lost = root / "cat" / "b.jpg", root / "cat" / "z.jpeg"
    sample = source.read(0)
    assert (sample.name, sample.data.dtype) == (str(file), torch.uint8)
    assert sample.data.device.type == "cpu"
    file.write_bytes(b"")
    assert source.read(0).data.shape == (0,)
    lost.unlink()
    lost.mkdir()
    index = paths(source).index(str(lost))
    with pytest.raises(IsADirectoryError, match=rf"index = {index}.*z.jpeg"):
        source[index]


def test_the_fingerprint_does_not_depend_on_how_the_files_are_named(
    root: Path, tmp_path: Path
) -> None:
    source = FolderSource(root)
    relative = [os.path.relpath(path, root) for path in paths(source)]
    for given_paths in (relative, paths(source)):
        listed = FolderSource.from_paths(given_paths, source.targets, root=root)
        assert listed.fingerprint() == source.fingerprint()
    lines = "".join(f"{p} {t}\n" for p, t in zip(relative, source.targets, strict=True))
    file = write(tmp_path / "list.txt", lines.encode())
    assert FolderSource.from_file_list(file, root).fingerprint() == source.fingerprint()


def test_the_fingerprint_does_not_depend_on_the_listing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems list in any order."""
    source, scandir = FolderSource(root), os.scandir

    class Reversed:
        def __init__(self, path: str) -> None:
            with scandir(path) as entries:
                self.entries = list(entries)[::-1]

        def __enter__(self) -> object:
            return iter(self.entries)

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Reversed)
    again = FolderSource(root)
    assert paths(again) == paths(source)
    assert again.fingerprint() == source.fingerprint()


def test_the_fingerprint_notices_every_change(root: Path) -> None:
    """Another file, name, class or order is another dataset."""
    seen = {FolderSource(root).fingerprint()}
    names = ["a.jpg", "b.jpg"]
    for changed in (
        FolderSource.from_paths(names, [0, 1]),
        FolderSource.from_paths(names, [1, 0]),
        FolderSource.from_paths(names[::-1], [0, 1]),
        FolderSource.from_paths(["a.jp", "gb.jpg"], [0, 1]),
        FolderSource.from_paths(names[:1], [0]),
    ):
        seen.add(changed.fingerprint())
    write(root / "cat" / "new.jpg")
    seen.add(FolderSource(root).fingerprint())
    (root / "cat" / "new.jpg").rename(root / "cat" / "newer.jpg")
    seen.add(FolderSource(root).fingerprint())
    (root / "cat" / "newer.jpg").rename(root / "dog" / "newer.jpg")
    seen.add(FolderSource(root).fingerprint())
    assert len(seen) == 9


def test_sizes_are_in_the_fingerprint_if_asked_for(root: Path) -> None:
    def both() -> tuple[str, str]:
        sized = FolderSource(root, sizes_in_fingerprint=True)
        return FolderSource(root).fingerprint(), sized.fingerprint()

    names, sizes = both()
    assert names != sizes
    (root / "cat" / "b.jpg").write_bytes(b"a longer one than before")
    assert both()[0] == names
    assert both()[1] != sizes


def test_the_fingerprint_is_kept() -> None:
    """Later releases compare states that are saved today."""
    source = FolderSource.from_paths(["a/1.jpg", "b/2.jpg"], [0, 1])
    assert source.fingerprint() == "2 files, blake2b acf4018773cdc634834673040f46b0ff"
    assert source.fingerprint() is source.fingerprint()


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.text(max_size=9), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=4
    )
)
def test_names_of_any_text_are_kept(items: list[tuple[str, int]]) -> None:
    names, labels = [list(column) for column in zip(*items, strict=True)]
    try:
        [os.fsencode(name) for name in names]
    except UnicodeEncodeError:
        return
    source = FolderSource.from_paths(names, labels)
    assert paths(source) == [os.path.join(os.getcwd(), name) for name in names]
    assert source.targets.tolist() == labels
    assert repr(source)


def test_many_names_take_no_more_than_their_text() -> None:
    """Forked workers share ImageNet's list; reference counts would copy it."""
    names = [f"n{i % 1000:08d}/n{i % 1000:08d}_{i}.JPEG" for i in range(20_000)]
    source = FolderSource.from_paths(names)
    assert source.path(19_999) == os.path.join(os.getcwd(), names[-1])
    assert len(pickle.dumps(source)) < sum(map(len, names)) + 17 * len(names)
