"""Tars by index compared with webdataset's and DALI's own readers, sample for sample."""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import webdataset
from wds2idx import IndexCreator

from stateful_gpu_loader.datasets.tar.source import TarSource
from tests.datasets.dali import read_by_dali
from tests.datasets.tar.tar_files import FORMATS, photo_entries, write_photo_tars, write_tar

TRICKY = [
    ("__meta__", b"data about the tar"),
    ("README", b"no extension"),
    ("a.JPG", b"upper case"),
    ("NOTES", b"between two members"),
    ("a.cls", b"0"),
    ("b.cls", b"1"),
    ("b.txt", b"lacks its image"),
    ("folder.d/c.jpg", b"a dot in the folder"),
    ("folder.d/c.cls", b"2"),
    ("folder/.hidden", b"hidden"),
    ("folder/d.x.jpg", b"two extensions"),
    ("folder/d.jpg", b"image"),
    ("folder/d.cls", b"3"),
    ("__init__.jpg", b"not meta"),
    ("__init__.cls", b"4"),
    ("a.jpg", b"the key comes back"),
    ("a.cls", b"5"),
    ("__meta__/e.jpg", b"meta"),
    ("f.jpg", b"lacks its class"),
]


def webdataset_samples(paths: list[Path]) -> list[tuple[str, bytes, bytes]]:
    """Return key, image and class of each sample that has both, as webdataset reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = [str(path) for path in paths]
        dataset = webdataset.WebDataset(names, shardshuffle=False, empty_check=False)
        return [
            (sample["__key__"], sample["jpg"], sample["cls"])
            for sample in dataset
            if "jpg" in sample and "cls" in sample
        ]


def our_samples(source: TarSource) -> list[tuple[str, bytes, int]]:
    return [
        (source.key(index), source[index][0].numpy().tobytes(), source[index][1])
        for index in range(len(source))
    ]


def dali_samples(
    paths: list[Path], extensions: list[str], indices: list[Path] | None = None
) -> list[tuple[bytes, ...]]:
    """Return the components of each sample that has all of them, as DALI's reader returns them."""
    given = {} if indices is None else {"index_paths": list(map(str, indices))}
    samples = read_by_dali(
        "webdataset",
        paths=list(map(str, paths)),
        ext=extensions,
        missing_component_behavior="skip",
        case_sensitive_extensions=False,
        **given,
    )
    return [tuple(part.tobytes() for part in sample) for sample in samples]


def index_of(path: Path) -> Path:
    """Return the index that DALI's own script writes."""
    text = path.with_suffix(".idx")
    with (
        contextlib.redirect_stdout(io.StringIO()),
        IndexCreator(str(path), str(text), verbose=False) as creator,
    ):
        creator.create_index()
    return text


def test_samples_are_those_of_webdataset(tmp_path: Path) -> None:
    paths = [*write_photo_tars(tmp_path / "photos"), write_tar(tmp_path / "tricky.tar", TRICKY)]
    theirs = webdataset_samples(paths)
    ours = our_samples(TarSource(paths, missing="skip"))
    assert ours == [(key, image, int(label)) for key, image, label in theirs]
    assert len(ours) == 13 + 5
    assert [key for key, _, _ in ours[13:]] == ["a", "folder.d/c", "folder/d", "__init__", "a"]


@pytest.mark.parametrize("tar_format", FORMATS)
def test_samples_of_webdatasets_writer(tmp_path: Path, tar_format: str) -> None:
    """Members of every kind that its basic decoders know."""
    path = tmp_path / "a.tar"
    samples: list[dict[str, Any]] = [
        {
            "__key__": f"k{i:03d}/{i}",
            "jpg": bytes([i]) * i,
            "cls": i,
            "json": {"i": [i]},
            "txt": "é",
        }
        for i in range(9)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with webdataset.TarWriter(str(path)) as writer:
            writer.tarstream.format = FORMATS[tar_format]
            for sample in samples:
                writer.write(sample)
        decoded = list(webdataset.WebDataset(str(path), shardshuffle=False).decode())
    source = TarSource(path)
    assert len(source) == 9
    for index, theirs in enumerate(decoded):
        ours = source.record(index)
        assert ours == {key: theirs[key] for key in ours} == samples[index]


@pytest.mark.dali
def test_samples_are_those_of_dali(tmp_path: Path) -> None:
    """With the index that DALI infers, and with an index of its wds2idx."""
    paths = write_photo_tars(tmp_path)
    indices = [index_of(path) for path in paths]
    own = TarSource(paths)
    indexed = TarSource(paths, index_paths=indices)
    ours = [(image, str(label).encode()) for _, image, label in our_samples(own)]
    assert dali_samples(paths, ["jpg", "cls"]) == ours
    assert dali_samples(paths, ["jpg", "cls"], indices) == ours
    assert our_samples(indexed) == our_samples(own)
    assert indexed.fingerprint() == own.fingerprint()
    assert indexed.block_lengths().tolist() == [4, 3, 6]


def test_tricky_names_are_read_as_dali_reads_them(tmp_path: Path) -> None:
    """A name without extension splits a sample in DALI, but not in webdataset."""
    path = write_tar(tmp_path / "a.tar", TRICKY)
    text = index_of(path)
    indexed = TarSource(path, index_paths=text, missing="skip")
    ours = [(image, str(label).encode()) for _, image, label in our_samples(indexed)]
    assert dali_samples([path], ["jpg", "cls"], [text]) == ours
    assert [indexed.key(index) for index in range(len(indexed))] == [
        "folder.d/c",
        "folder/d",
        "__init__",
        "a",
    ]


def test_the_first_alternative_is_that_of_webdataset(tmp_path: Path) -> None:
    """``"jpg;png"`` prefers the jpg; DALI takes the first of both in the tar."""
    entries = [("a.png", b"png of a"), ("a.jpg", b"jpg of a"), ("a.cls", b"1")]
    path = write_tar(tmp_path / "a.tar", [*entries, ("b.png", b"png of b"), ("b.cls", b"2")])
    for image in ("jpg;png", "png;jpg"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = webdataset.WebDataset(str(path), shardshuffle=False).to_tuple(image, "cls")
            theirs = [found for found, _ in dataset]
        for given in (image, image.split(";")):
            ours = our_samples(TarSource(path, image=given))
            assert [found for _, found, _ in ours] == theirs
    assert dali_samples([path], ["jpg;png", "cls"])[0][0] == b"png of a"


def test_an_index_may_name_some_samples_in_any_order(tmp_path: Path) -> None:
    """With blanks in names."""
    path = write_photo_tars(tmp_path, (4,))[0]
    own = TarSource(path)
    head, *lines = index_of(path).read_text().splitlines()
    assert head == "v1.2 4"
    some = tmp_path / "some.idx"
    some.write_text("v1.2 2\n" + "\n".join([lines[3], lines[1]]) + "\n")
    chosen = TarSource(path, index_paths=some)
    assert our_samples(chosen) == [our_samples(own)[3], our_samples(own)[1]]
    assert chosen.record(0) == own.record(3)
    assert chosen.fingerprint() != own.fingerprint()
    bare = [" ".join(word for i, word in enumerate(line.split()) if i % 4 != 3) for line in lines]
    some.write_text("v1.1 4\n" + "\n".join(bare) + "\n")
    assert our_samples(TarSource(path, index_paths=some)) == our_samples(own)
    entries = [("a jpg 1 2 b.jpg", b"one"), ("a jpg 1 2 b.cls", b"1"), ("c d.cls", b"2")]
    path = write_tar(tmp_path / "a.tar", [*entries, ("c d.jpg", b"two")])
    source = TarSource(path, index_paths=index_of(path))
    assert our_samples(source) == our_samples(TarSource(path))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda text: "", "record 0: '' is not a heading"),
        (lambda text: text.replace("v1.2", "v9.9"), "record 0: 'v9.9 4' is not a heading"),
        (lambda text: text.replace("v1.2 4", "v1.2 5"), "announces 5 samples and has 4"),
        (lambda text: text.replace("jpg 512 ", "jpg 1024 "), "record 1: .* no member at byte 1024"),
        (lambda text: text.replace("jpg 512 ", "jpg 512 9"), "record 1: it names 9.* bytes of"),
        (
            lambda text: text.replace("jpg 512 ", "cls 512 "),
            "record 1: .*(not a component|of 'cls')",
        ),
        (lambda text: text.replace("jpg 512 ", "jpg "), "record 1"),
    ],
)
def test_an_index_of_another_tar_is_refused(tmp_path: Path, change: Any, text: str) -> None:
    path = write_photo_tars(tmp_path, (4,))[0]
    index = index_of(path)
    index.write_text(change(index.read_text()))
    with pytest.raises(ValueError, match=text) as caught:
        TarSource(path, index_paths=index)
    assert "Remedy: make the index of this tar again" in str(caught.value)
    with pytest.raises(ValueError, match=r"2 index_paths.*1"):
        TarSource(path, index_paths=[index, path])


def test_archives_of_gnu_tar(tmp_path: Path) -> None:
    """Files from disk, with folders, links and long names, in each of its formats."""
    folder = tmp_path / "root" / ("long" * 20)
    for name, content in photo_entries(0, 3):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (file.parent / "0000.link").symlink_to("0000.jpg")
    for tar_format in ("v7", "oldgnu", "gnu", "ustar", "posix"):
        root = folder if tar_format == "v7" else folder.parent
        path = tmp_path / f"{tar_format}.tar"
        command = ["tar", f"--format={tar_format}", "--sort=name", "-cf", str(path), "."]
        subprocess.run(command, cwd=root, check=True)
        with tarfile.open(path) as tar:
            members = [member for member in tar if member.isreg()]
            contents = {each.name: tar.extractfile(each).read() for each in members}  # type: ignore[union-attr]
        source = TarSource(path)
        assert len(source) == 3
        for index in range(3):
            assert source[index][0].numpy().tobytes() == contents[f"{source.key(index)}.jpg"]
