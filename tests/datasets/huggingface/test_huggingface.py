"""A Hugging Face Dataset as a source: its own images, targets and order."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from stateful_gpu_loader import (
    BadSample,
    HuggingFaceSource,
    MixedDataset,
    PreparedSource,
    StatefulGPULoader,
    StateMismatch,
)
from stateful_gpu_loader import transforms as T
from tests.conformance import assert_exact_resume, same, uninterrupted
from tests.datasets.huggingface.saved import dataset_of, save_dataset
from tests.datasets.image_loaders import EXECUTIONS, make_loader
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.images import encode, photograph, small_photographs

__all__ = ["fake_gpu"]

Dataset = Any
N = 14


def pictures(count: int = N) -> list[tuple[bytes, int]]:
    """Return PNG files, which all decoders decode to the same pixels."""
    images = [Image.fromarray(pixels) for pixels in small_photographs(count)]
    return [(encode(image, "PNG").numpy().tobytes(), i % 3) for i, image in enumerate(images)]


@pytest.fixture
def mapped(tmp_path: Path) -> Dataset:
    texts = [f"caption {i}" for i in range(N)]
    folder = save_dataset(tmp_path / "dataset", pictures(), text=texts)
    return datasets.load_from_disk(str(folder))


def encoded(dataset: Dataset) -> list[Any]:
    """Return the bytes and the label of every row, read by ``datasets``."""
    plain = dataset.with_format(None).cast_column("image", datasets.Image(decode=False))
    return [(row["image"]["bytes"], row["label"]) for row in plain]


def read(source: HuggingFaceSource) -> list[Any]:
    samples = [source.read(index) for index in range(len(source))]
    return [(sample.data.numpy().tobytes(), sample.target) for sample in samples]


MADE: dict[str, Callable[[Dataset], Dataset]] = {
    "as it is": lambda dataset: dataset,
    "selected": lambda dataset: dataset.select([5, 2, 9, 2]),
    "a range": lambda dataset: dataset.select(range(3, 9)),
    "shuffled": lambda dataset: dataset.shuffle(seed=1),
    "shuffled and selected": lambda dataset: dataset.shuffle(seed=1).select([5, 2, 9]),
    "filtered": lambda dataset: dataset.filter(lambda label: label == 1, input_columns="label"),
    "split": lambda dataset: dataset.train_test_split(0.3, seed=2)["test"],
    "flattened": lambda dataset: dataset.shuffle(seed=1).flatten_indices(),
    "of torch": lambda dataset: dataset.with_format("torch"),
    "not decoded": lambda dataset: dataset.cast_column("image", datasets.Image(decode=False)),
    "concatenated": lambda dataset: datasets.concatenate_datasets(
        [dataset.select(range(5)), dataset, dataset_of(pictures(3))]
    ),
    "in memory": lambda dataset: dataset_of(pictures(5)),
}


@pytest.mark.parametrize("name", MADE)
def test_rows_are_those_of_the_dataset(mapped: Dataset, name: str) -> None:
    dataset = MADE[name](mapped)
    source = HuggingFaceSource(dataset)
    assert read(source) == encoded(dataset)
    assert all(type(target) is int for _, target in read(source))
    alone = [source.read_target_alone(index) for index in range(len(source))]
    assert alone == [label for _, label in encoded(dataset)]


def test_pixels_are_those_of_pillow(mapped: Dataset) -> None:
    dataset = mapped.shuffle(seed=3)
    loader = StatefulGPULoader(HuggingFaceSource(dataset), batch_size=4)
    images, labels = zip(*loader, strict=True)
    expected = np.stack([np.asarray(row["image"].convert("RGB")) for row in dataset])
    assert np.array_equal(torch.cat(images).permute(0, 2, 3, 1).numpy(), expected)
    assert torch.cat(labels).tolist() == dataset["label"][:]


def test_pillow_and_the_datasets_own_items_are_left_alone(
    mapped: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HuggingFaceSource(mapped.shuffle(seed=3))
    expected = read(source)

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(datasets.Dataset, "__getitem__", forbidden)
    monkeypatch.setattr(Image, "open", forbidden)
    assert read(source) == expected
    assert len(list(make_loader(source))) == 5


def paths_to(folder: Path) -> list[str]:
    for number, (data, _) in enumerate(pictures(4)):
        (folder / f"{number}.png").write_bytes(data)
    return [str(folder / f"{number}.png") for number in range(4)]


def of_paths(paths: list[str]) -> Dataset:
    """Return rows whose Arrow table has only paths, as folder loaders of ``datasets`` write it."""
    rows = {"image": [{"bytes": None, "path": path} for path in paths], "label": [0, 1, 2, 3]}
    dataset = datasets.Dataset.from_dict(rows)
    return dataset.cast_column("image", datasets.Image())


@pytest.mark.parametrize("kind", ["absolute", "relative", "url"])
def test_rows_without_bytes_are_read_from_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    paths = paths_to(tmp_path)
    if kind == "relative":
        monkeypatch.chdir(tmp_path)
        paths = [Path(path).name for path in paths]
    elif kind == "url":
        paths = [f"file://{path}" for path in paths]
    source = HuggingFaceSource(of_paths(paths))
    monkeypatch.chdir("/")
    assert [data for data, _ in read(source)] == [data for data, _ in pictures(4)]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    dataset = of_paths(paths_to(tmp_path))
    (tmp_path / "2.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"index = 2.*2\.png"):
        HuggingFaceSource(dataset).read(2)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("text", "caption 3"),
        (["label", "text"], {"label": 0, "text": "caption 3"}),
        (("text",), {"text": "caption 3"}),
        ({"y": "label"}, {"y": 0}),
        (None, 1),
    ],
)
def test_targets_are_the_columns_asked_for(mapped: Dataset, target: Any, expected: Any) -> None:
    source = HuggingFaceSource(mapped.select([7, 3]), target=target)
    assert source.read(1).target == source.read_target_alone(1) == expected


def test_several_targets_are_collated_to_a_dict(mapped: Dataset) -> None:
    source = HuggingFaceSource(mapped, target=["label", "text"])
    _, targets = next(iter(StatefulGPULoader(source, batch_size=3, transform=[T.Resize((8, 8))])))
    assert targets["label"].tolist() == [0, 1, 2]
    assert targets["text"] == ["caption 0", "caption 1", "caption 2"]


def several_images() -> Dataset:
    images = [[{"bytes": data, "path": None}] * 2 for data, _ in pictures(3)]
    dataset = datasets.Dataset.from_dict({"images": images, "label": [0, 1, 2]})
    return dataset.cast_column("images", datasets.Sequence(datasets.Image()))


def of_sounds() -> Dataset:
    dataset = dataset_of(pictures(3)).cast_column("image", datasets.Image(decode=False))
    features = datasets.Features({**dataset.features, "image": datasets.Audio(decode=False)})
    return datasets.Dataset(dataset.data, info=datasets.DatasetInfo(features=features))


def with_two_images() -> Dataset:
    dataset = dataset_of(pictures(3))
    masks = dataset.rename_columns({"image": "mask", "label": "other"})
    return datasets.concatenate_datasets([dataset, masks], axis=1)


def stream() -> Dataset:
    return dataset_of(pictures(3)).to_iterable_dataset()


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = {
    "list of images": (several_images, {"image": "images"}, ValueError, "'images'.*list"),
    "missing image": (lambda: dataset_of(pictures(3)), {"image": "img"}, ValueError, "label"),
    "missing target": (lambda: dataset_of(pictures(3)), {"target": "fine"}, ValueError, "label"),
    "no bytes": (lambda: dataset_of(pictures(3)), {"image": "label"}, ValueError, "int64"),
    "sounds": (of_sounds, {}, ValueError, "Audio"),
    "image as target": (with_two_images, {"target": "mask"}, ValueError, "'mask'.*Image"),
    "grey": (
        lambda: dataset_of(pictures(3)).cast_column("image", datasets.Image(mode="L")),
        {},
        ValueError,
        "mode = 'L'",
    ),
    "no row": (lambda: dataset_of(pictures(3)).select([]), {}, ValueError, "no row"),
    "function": (
        lambda: dataset_of(pictures(3)).with_transform(lambda rows: rows),
        {},
        ValueError,
        r"with_format\(None\)",
    ),
    "splits": (
        lambda: dataset_of(pictures(4)).train_test_split(0.5),
        {},
        TypeError,
        "'train', 'test'",
    ),
    "stream": (stream, {}, TypeError, "ParquetShards"),
    "something else": (lambda: [1, 2], {}, TypeError, "load_dataset"),
    "number": (lambda: dataset_of(pictures(3)), {"target": 3}, TypeError, "name fields"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_dataset_of_images_is_refused(name: str) -> None:
    make, arguments, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        HuggingFaceSource(make(), **arguments)


def test_a_struct_may_hold_image_and_target() -> None:
    rows = [{"photo": {"bytes": data, "path": None}, "y": y} for data, y in pictures(3)]
    dataset = datasets.Dataset.from_dict({"pair": rows})
    source = HuggingFaceSource(dataset, image="pair.photo", target="pair.y")
    assert read(source) == pictures(3)


def test_fingerprints_are_those_of_the_dataset(mapped: Dataset) -> None:
    one, again = HuggingFaceSource(mapped), HuggingFaceSource(mapped.select(range(N)))
    assert mapped._fingerprint in one.fingerprint()
    assert again.fingerprint() == HuggingFaceSource(mapped.select(range(N))).fingerprint()
    others = [
        HuggingFaceSource(mapped.shuffle(seed=1)),
        HuggingFaceSource(mapped.shuffle(seed=2)),
        HuggingFaceSource(mapped, target="text"),
        HuggingFaceSource(dataset_of(pictures())),
    ]
    assert len({source.fingerprint() for source in (one, *others)}) == 5
    state = make_loader(one).state_dict()
    with pytest.raises(StateMismatch) as caught:
        make_loader(others[0]).load_state_dict(state)
    assert caught.value.field == "dataset"


def with_bad_rows() -> Dataset:
    """Row 4 is truncated, row 7 has neither bytes nor a path, and row 9 has no label."""
    files = pictures()
    images = [{"bytes": data, "path": None} for data, _ in files]
    labels: list[int | None] = [label for _, label in files]
    images[4]["bytes"] = images[4]["bytes"][:60]
    images[7] = {"bytes": None, "path": None}  # type: ignore[dict-item]
    labels[9] = None
    return datasets.Dataset.from_dict({"image": images, "label": labels})


def test_a_row_that_is_damaged_is_a_bad_sample() -> None:
    source = HuggingFaceSource(with_bad_rows())
    for index, text in ((7, "neither bytes nor a path"), (9, "column 'label'.*null")):
        with pytest.raises(ValueError, match=f"row {index}.*{text}"):
            source.read(index)
    with pytest.raises(ValueError, match="row 9"):
        source.read_target_alone(9)
    with pytest.raises(BadSample) as caught:
        list(StatefulGPULoader(source, batch_size=N, transform=[T.Resize((8, 8))]))
    assert caught.value.index == 7


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_bad_rows_are_replaced_or_left_out_on_any_workers(mode: str) -> None:
    make = partial(make_loader, HuggingFaceSource(with_bad_rows()), on_bad_sample=mode)
    expected, _ = uninterrupted(make(), 2)
    for execution in EXECUTIONS[1:]:
        loader = make(**execution)
        assert same(uninterrupted(loader, 2)[0], expected)
        assert {bad.index for bad in loader.bad_samples.samples} == {4, 7, 9}


def test_prepared_images_and_mixtures_are_exact(mapped: Dataset, tmp_path: Path) -> None:
    head, tail = [T.Resize((24, 24))], [T.RandomCrop(16), T.RandomHorizontalFlip()]
    train, test = mapped.train_test_split(0.4, seed=0).values()
    sources = [HuggingFaceSource(train), HuggingFaceSource(test)]
    prepared = [PreparedSource(each, tmp_path / str(i), head) for i, each in enumerate(sources)]

    def mixed(parts: list[Any], transform: Any, **changes: Any) -> StatefulGPULoader[Any]:
        return make_loader(MixedDataset(parts, [2, 1]), transform=transform, **changes)

    expected, _ = uninterrupted(mixed(sources, [*head, *tail]), 2)
    assert same(uninterrupted(mixed(prepared, tail), 2)[0], expected)
    assert_exact_resume(partial(mixed, prepared, tail), epochs=2, other=EXECUTIONS[1:])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_gets_the_same_pixels(mapped: Dataset, fake_gpu: FakeGpu, workers: int) -> None:
    """The bytes are read straight into the memory of the batch."""
    recipes = [T.RandomCrop(16), T.RandomHorizontalFlip()]
    make = partial(make_loader, HuggingFaceSource(mapped.shuffle(seed=3)), transform=recipes)
    expected, _ = uninterrupted(make(), 2)
    assert same(uninterrupted(make(device="cuda", num_workers=workers), 2)[0], expected)


def test_exif_is_applied_as_by_datasets() -> None:
    picture = photograph("coffee").resize((40, 24))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(picture, "PNG", exif=exif).numpy().tobytes()
    dataset = dataset_of([(data, 0)])
    assert Image.open(io.BytesIO(data)).size == (40, 24)
    images, _ = next(iter(StatefulGPULoader(HuggingFaceSource(dataset))))
    expected = np.asarray(dataset[0]["image"])
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), expected)
