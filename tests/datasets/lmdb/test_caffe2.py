"""Caffe2's TensorProtos: the image, and labels of five kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stateful_gpu_loader.datasets.caffe2_lmdb import (
    LabelType,
    RecordLayout,
    image_file,
    parse_tensors,
    read_targets,
)
from tests.conformance import same
from tests.datasets.lmdb.lmdb_files import message, pixels_of, tensor, tensors
from tests.images import photograph

PIXELS = np.asarray(photograph("chelsea"))[40:71, 50:97]
IMAGE = tensor("string", b"\xff\xd8\xff")


def targets(*protos: bytes, **layout: Any) -> list[Any]:
    return read_targets(parse_tensors(tensors(IMAGE, *protos)), RecordLayout(**layout))


def stored(pixels: npt.NDArray[np.uint8], kind: str, dims: tuple[int, ...] | None = None) -> bytes:
    values = pixels.tobytes() if kind == "byte" else pixels.ravel().tolist()
    return tensors(tensor(kind, values, dims=pixels.shape if dims is None else dims))


@pytest.mark.parametrize("kind", ["byte", "uint8", "int32"])
def test_pixels_become_a_file_of_the_same_pixels(kind: str) -> None:
    """Blue comes first, as OpenCV gave it to Caffe2. An encoded image is handed on."""
    [image, _] = parse_tensors(tensors(IMAGE, tensor("int32", [4])))
    assert image_file(image).tobytes() == b"\xff\xd8\xff"
    for pixels in (PIXELS, PIXELS[:, :, :1], PIXELS[:, :, 0], PIXELS[:1, :1]):
        turned = pixels[:, :, ::-1] if pixels.ndim == 3 else pixels
        [image] = parse_tensors(stored(turned, kind))
        shown = pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels
        assert np.array_equal(pixels_of(image_file(image)), shown)
    [image] = parse_tensors(stored(PIXELS, kind))
    assert np.array_equal(pixels_of(image_file(image, "RGB")), PIXELS)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (stored(PIXELS, "byte", (31, 46, 3)), r"dims \[31, 46, 3\] in 4371 values"),
        (stored(PIXELS, "byte", ()), r"dims \[\] in 4371 values"),
        (stored(PIXELS[:, :, :2], "byte"), r"dims \[31, 47, 2\]"),
        (stored(PIXELS[:, :, 0], "byte", (-31, -47)), r"dims \[-31, -47\]"),
        (tensors(tensor("int32", [0, 256], dims=(1, 2))), "pixels of 0 to 256"),
        (tensors(tensor("int32", [-1, 6], dims=(1, 2))), "pixels of -1 to 6"),
        (tensors(tensor("float", [0.5], dims=(1, 1))), "an image of the data type 1"),
        (tensors(message((2, 4))), "an image of 0 strings"),
        (tensors(message((2, 4), (6, b"a"), (6, b"b"))), "an image of 2 strings"),
        (tensors(message((2, 3), (1, 4), (1, 4))), r"dims \[4, 4\] in 0 values"),
    ],
)
def test_what_is_no_image_says_what_it_holds(record: bytes, reason: str) -> None:
    [image] = parse_tensors(record)
    with pytest.raises(ValueError, match=reason):
        image_file(image)


@pytest.mark.parametrize(
    ("kind", "numbers", "dtype"),
    [
        ("float", [0.5, -2.0, 3e20], np.float32),
        ("int32", [7, -1, -(2**31)], np.int32),
        ("int64", [7, -1, 2**63 - 1], np.int64),
        ("uint8", [0, 255], np.uint8),
    ],
)
def test_numbers_are_read_packed_and_single(kind: str, numbers: list[float], dtype: Any) -> None:
    for packed in (True, False):
        [found] = parse_tensors(tensors(tensor(kind, numbers, packed=packed)))
        assert same(found.values(), np.array(numbers, dtype=dtype))


def test_doubles_and_packed_dims() -> None:
    numbers = np.array([0.1, -1e300])
    for parts in ([numbers.tobytes()], [numbers[:1].tobytes(), numbers[1:].tobytes()]):
        record = message((1, b"\x02\x03"), (2, 13), *((9, part) for part in parts))
        [found] = parse_tensors(tensors(record))
        assert found.dims == (2, 3)
        assert np.array_equal(found.values(), numbers)
    single = message((2, 13)) + b"\x49" + numbers[:1].tobytes()
    assert parse_tensors(tensors(single))[0].values().tolist() == [0.1]
    with pytest.raises(ValueError, match=r"double_data.*7"):
        parse_tensors(tensors(message((9, bytes(7)))))


@pytest.mark.parametrize("label_type", list(LabelType))
def test_further_tensors_and_a_box_follow_the_label(label_type: LabelType) -> None:
    label = [tensor("int32", [1]), tensor("float", [0.5])]
    further = [tensor("int64", [2**40]), tensor("float", [1.5, 2.5])]
    box = tensor("int32", [1, 2, 3, 4])
    layout = RecordLayout(label_type=label_type, num_labels=3, additional_inputs=2, bbox=True)
    protos = [IMAGE, *label[: layout.num_label_tensors], *further, box]
    found = read_targets(parse_tensors(tensors(*protos)), layout)
    assert [np.asarray(each).tolist() for each in found[-3:]] == [[2**40], [1.5, 2.5], [1, 2, 3, 4]]
    assert len(found) == (3 if label_type == LabelType.NO_LABEL else 4)


@pytest.mark.parametrize(
    ("protos", "layout", "reason"),
    [
        ([], {}, "1 tensors in the record; label_type=0, .* ask for 2"),
        ([tensor("int32", [1])], {"bbox": True}, "2 tensors .* bbox=True ask for 3"),
        ([tensor("int32", [1])], {"additional_inputs": 1}, "2 tensors .*inputs=1 .* ask for 3"),
        ([tensor("int32", [1])], {"label_type": LabelType(3), "num_labels": 2}, "ask for 3"),
        ([tensor("int32", [1, 2])], {}, "a single label of 2 values"),
        ([tensor("int32", [])], {}, "a single label of 0 values"),
        ([IMAGE], {}, "a tensor of the data type 4, expected one of numbers"),
        ([tensor("int32", [2])], {"label_type": LabelType(1), "num_labels": 2}, r"labels \[2\]"),
        ([tensor("int32", [-1])], {"label_type": LabelType(1), "num_labels": 2}, r"labels \[-1\]"),
        ([tensor("float", [0.5])], {"label_type": LabelType(1), "num_labels": 2}, r"labels \[0.5"),
        (
            [tensor("int32", [1]), tensor("float", [1, 2])],
            {"label_type": LabelType(3), "num_labels": 2},
            "2 weights for 1 labels",
        ),
        (
            [tensor("int32", [1]), tensor("int32", [1])],
            {"label_type": LabelType(3), "num_labels": 2},
            "weights of int32, expected float32",
        ),
        ([tensor("int32", [1]), tensor("int32", [1, 2])], {"bbox": True}, "a box of 2 values"),
        ([tensor("int32", [1]), tensor("float", [1] * 4)], {"bbox": True}, "4 values of float32"),
    ],
)
def test_what_the_layout_does_not_say_is_named(
    protos: list[bytes], layout: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        targets(*protos, **layout)


def test_layouts_and_labels_that_cannot_be_are_refused() -> None:
    """Labels that are no numbers without a warning."""
    for number in (float("nan"), float("inf"), 3e38):
        with pytest.raises(ValueError, match=r"0.*4"):
            targets(tensor("float", [number]), label_type=LabelType(1), num_labels=5)
    for label_type in (LabelType(1), LabelType(3)):
        for num_labels in (None, 0):
            with pytest.raises(ValueError, match="num_labels"):
                RecordLayout(label_type=label_type, num_labels=num_labels)
    with pytest.raises(ValueError, match=r"additional_inputs.*-1"):
        RecordLayout(additional_inputs=-1)


def test_damage_is_named_with_the_tensor_and_its_place() -> None:
    label = tensor("int32", [300])
    record = bytearray(tensors(IMAGE, label))
    record[-1] |= 0x80
    place = len(record) - len(label)
    with pytest.raises(ValueError, match=rf"tensor 1.*byte {place}"):
        parse_tensors(bytes(record))
    with pytest.raises(ValueError, match="protos has the wire type 0"):
        parse_tensors(message((1, 7)))
    with pytest.raises(ValueError, match=r"tensor 0.* float_data.*wire.*0"):
        parse_tensors(tensors(message((3, 7))))
    with pytest.raises(ValueError, match=r"tensor 0.* int32_data.*wire.*5"):
        parse_tensors(tensors(message((4, 7.0))))
