"""Image and target of an Example: the features and types that are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader.datasets.framed import Place
from stateful_gpu_loader.datasets.tfrecord import ExampleImages
from tests.conformance import same
from tests.datasets.record_files import delimited, example, imagenet_example

PLACE = Place("a.tfrecord", 3, 600)
BOXES = "image/object/bbox/xmin"


def payload(message: bytes) -> Any:
    return np.frombuffer(bytearray(message), dtype=np.uint8)


def taken(features: dict[str, Any], **choice: Any) -> tuple[bytes, Any]:
    arguments = {"image": "image/encoded", "target": "image/class/label", "variable_length": ()}
    images = ExampleImages(**{**arguments, **choice})
    data, target = images.take(payload(example(features)), PLACE, 9)
    assert data.dtype == torch.uint8
    return data.numpy().tobytes(), target


def test_targets_come_in_the_shape_that_was_asked_for() -> None:
    features = imagenet_example(b"jpeg", 7)
    label, text = "image/class/label", "image/class/text"
    image, target = taken(features)
    assert (image, target, type(target)) == (b"jpeg", 7, int)
    tench = b"tench, Tinca tinca"
    assert taken(features, target=None)[1] == 9
    assert taken(features, target=(label, text))[1] == (7, tench)
    assert taken(features, target=[label])[1] == (7,)
    assert taken(features, target={"y": label, "s": text})[1] == {"y": 7, "s": tench}


def test_values_keep_their_types_and_can_be_collated() -> None:
    features = {"image/encoded": [b"j"], "n": [5], "f": [0.1], "fs": [0.1, 0.2], "b": [b"x"]}
    features |= {"ns": [1, 2], "bs": [b"", b"b"]}
    names = ("n", "f", "fs", "ns", "b")
    target = taken(features, target={name: name for name in names})[1]
    assert same(target["f"], np.float32(0.1))
    assert same(target["fs"], np.array([0.1, 0.2], dtype=np.float32))
    assert same(target["ns"], np.array([1, 2]))
    assert taken(features, target="bs")[1] == [b"", b"b"]
    batch = default_collate([target] * 3)
    assert same(batch["n"], torch.tensor([5] * 3))
    assert same(batch["f"], torch.full((3,), 0.1))
    assert same(batch["fs"], torch.tensor([[0.1, 0.2]] * 3))
    assert batch["b"] == [b"x"] * 3


def test_a_feature_of_variable_length_is_always_an_array() -> None:
    """Boxes of a single object do not become single numbers."""
    for label in (1, 2):
        features = imagenet_example(b"jpeg", label)
        target = taken(features, target=(BOXES,), variable_length=BOXES)[1]
        assert target[0].shape == (label,)
        assert target[0].dtype == np.float32
    text = "image/class/text"
    assert taken(features, target=text, variable_length=[text])[1] == [b"tench, Tinca tinca"]


def test_the_first_of_several_image_features_is_taken() -> None:
    names = ("image/encoded", "image")
    assert taken({"image": [b"b"], "image/encoded": [b"a"]}, image=names, target=None)[0] == b"a"
    assert taken({"image": [b"b"]}, image=names, target=None)[0] == b"b"


@pytest.mark.parametrize(
    ("features", "text"),
    [
        ({"picture": [b"a"]}, "no feature 'image/encoded'; its features are 'picture'"),
        ({}, "its features are none"),
        ({"image/encoded": [b"a"]}, "no feature 'image/class/label'"),
        ({"image/encoded": [b"a", b"b"]}, "'image/encoded' is 2 values of bytes, not one encoded"),
        ({"image/encoded": [3]}, "'image/encoded' is 1 values of int64, not one encoded"),
        ({"image/encoded": []}, "'image/encoded' is 0 values of int64"),
    ],
)
def test_what_a_record_lacks_is_named(features: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"'a.tfrecord', record 3, byte 600: .*{text}"):
        taken(features)


@pytest.mark.parametrize("image", [b"", b"jpeg"])
def test_an_image_that_is_written_in_two_parts_or_empty_is_taken(image: bytes) -> None:
    """Merged messages are copied. Like others, the image must be writable for torch."""
    value = delimited(1, delimited(1, image))
    name = delimited(1, b"image/encoded")
    for entry in (
        name + delimited(2, value),
        name + delimited(2, delimited(1, b"") + value),
        name + delimited(2, delimited(1, b"")) + delimited(2, value),
    ):
        images = ExampleImages("image/encoded", None, ())
        data, _ = images.take(payload(delimited(1, delimited(1, entry))), PLACE, 0)
        assert data.numpy().tobytes() == image


def test_a_feature_without_a_kind_is_as_good_as_none() -> None:
    entry = delimited(1, delimited(1, b"image/encoded") + delimited(2, b""))
    images = ExampleImages("image/encoded", None, ())
    with pytest.raises(ValueError, match="'image/encoded'"):
        images.take(payload(delimited(1, entry)), PLACE, 0)


@pytest.mark.parametrize(
    ("choice", "error", "text"),
    [
        ({"image": ()}, ValueError, "names no feature"),
        ({"variable_length": "boxes"}, ValueError, r"variable_length names \['boxes'\]"),
        ({"target": (1, 2)}, TypeError, "does not name fields"),
        ({"target": {"a": 1}}, TypeError, "does not name fields"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(
    choice: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        taken({}, **choice)


def test_choices_are_told_apart_by_their_text() -> None:
    """They are part of the content id."""
    choices = [
        ExampleImages("a", "b", ()),
        ExampleImages("a", ["b"], ()),
        ExampleImages("a", {"b": "b"}, ()),
        ExampleImages("a", None, ()),
        ExampleImages("b", "b", ()),
        ExampleImages("a", "b", "b"),
        ExampleImages(("a", "b"), "b", ()),
    ]
    assert len({repr(choice) for choice in choices}) == len(choices)
    assert repr(ExampleImages(["a"], "b", [])) == repr(choices[0])


def test_a_whole_record_comes_in_plain_types() -> None:
    images = ExampleImages("image/encoded", None, ())
    record = images.record(payload(example(imagenet_example(b"jpeg", 2))), PLACE)
    assert len(record) == 11
    assert record["image/encoded"] == [b"jpeg"]
    assert record["image/height"].tolist() == [400]
    assert record[BOXES].dtype == np.float32
    with pytest.raises(ValueError, match="record 3, byte 600: malformed"):
        images.record(payload(b"\x0a\x09abc"), PLACE)
