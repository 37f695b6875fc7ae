"""The operations of the automatic augmentations on batches equal torchvision's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from stateful_gpu_loader.transforms.policies import Operation, Sampling, augment, augment_batch
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise

NAMES = [*v2.TrivialAugmentWide._AUGMENTATION_SPACE, "Invert"]
SIGNED = [0.0, 0.033, 0.3, 0.99, -0.4]
MAGNITUDES: dict[Operation, list[float]] = {
    **dict.fromkeys(Operation, SIGNED),
    Operation.TRANSLATE_X: [0.0, 0.9, 17.3, -17.9, 31.5],
    Operation.TRANSLATE_Y: [0.0, 0.9, 17.3, -17.9, 31.5],
    Operation.ROTATE: [0.0, 4.5, 90.0, -90.0, -133.2],
    Operation.POSTERIZE: [0.0, 2.0, 4.0, 7.0, 8.0],
    Operation.SOLARIZE: [0.0, 0.2, 0.5, 0.967, 1.0],
}
COLORS = (Operation.BRIGHTNESS, Operation.COLOR, Operation.CONTRAST, Operation.SHARPNESS)
WARPS = [("nearest", None), ("nearest", 9.0), ("bilinear", (124.0, 116.0, 104.0))]
every_operation = pytest.mark.parametrize("operation", Operation, ids=lambda o: o.name)


def by_torchvision(
    image: Tensor, operation: int, magnitude: float, interpolation: str, fill: object
) -> Tensor:
    reference = v2.TrivialAugmentWide(
        interpolation=InterpolationMode(interpolation),
        fill=list(fill) if isinstance(fill, tuple) else fill,
    )
    if operation == Operation.POSTERIZE:
        magnitude = int(magnitude)
    return reference._apply_image_or_video_transform(
        image, NAMES[operation], magnitude, reference.interpolation, reference._fill
    )


def assert_torchvisions(made: Tensor, expected: Tensor, operation: int) -> None:
    """Compare bit for bit; blends to one level in a thousand pixels or a millionth.

    torchvision's own blends depend on the number of threads.
    """
    assert made.dtype is expected.dtype
    if operation not in COLORS:
        assert torch.equal(made, expected)
    elif made.is_floating_point():
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-6)
    else:
        assert (made.int() - expected.int()).abs().max() <= 1
        assert (made != expected).float().mean() <= 1e-3


def test_operations_are_torchvisions() -> None:
    """Numbers address them by their place."""
    ours = [operation.name.replace("_", "").lower() for operation in Operation]
    assert ours == [name.lower() for name in NAMES]
    assert [*v2.RandAugment._AUGMENTATION_SPACE, "Invert"] == NAMES
    assert set(v2.AutoAugment._AUGMENTATION_SPACE) <= set(NAMES)


@pytest.mark.fuzz
@every_operation
@pytest.mark.parametrize(("interpolation", "fill"), WARPS, ids=str)
def test_photographs(operation: Operation, interpolation: str, fill: object) -> None:
    """Bytes and floats, square ones and others."""
    photographs = [decoded("coffee")[:, :224, :224], decoded("rocket")[:, :150, :201]]
    for image in (*photographs, as_float(photographs[0]), as_float(photographs[1]).contiguous()):
        for magnitude in MAGNITUDES[operation]:
            made = augment(image, operation, magnitude, Sampling(interpolation, fill))
            expected = by_torchvision(image, operation, magnitude, interpolation, fill)
            assert_torchvisions(made, expected, operation)


@every_operation
@pytest.mark.parametrize("channels", [1, 3])
def test_odd_images(operation: Operation, channels: int) -> None:
    """Single pixels, lines, and one channel."""
    for size in ODD_SIZES[:6]:
        image = noise(*size, channels=channels)
        for magnitude in MAGNITUDES[operation][1:4]:
            made = augment(image, operation, magnitude, Sampling("bilinear", 3.0))
            expected = by_torchvision(image, operation, magnitude, "bilinear", 3.0)
            assert_torchvisions(made, expected, operation)


def all_at_once() -> tuple[np.ndarray, np.ndarray]:
    """Return every operation at each of its magnitudes, shuffled: int64 [n] and float64 [n]."""
    pairs = [(int(o), magnitude) for o in Operation for magnitude in MAGNITUDES[o]]
    operations, magnitudes = zip(*pairs, strict=True)
    shuffled = np.random.default_rng(0).permutation(len(pairs))
    return np.array(operations)[shuffled], np.array(magnitudes)[shuffled]


@pytest.mark.parametrize(
    ("size", "how"),
    [
        ((33, 33), Sampling("bilinear", (124.0, 116.0, 104.0))),
        ((33, 47), Sampling("nearest", 9.0)),
        ((2, 5), Sampling("nearest", None)),
    ],
    ids=str,
)
def test_a_batch_is_its_images_one_by_one(size: tuple[int, int], how: Sampling) -> None:
    """Bit for bit, whatever the operations of other images; the batch stays unchanged."""
    operations, magnitudes = all_at_once()
    bytes_ = torch.stack([noise(*size, seed=i) for i in range(len(operations))])
    for images in (bytes_, as_float(bytes_), bytes_.contiguous()):
        before = images.clone()
        made = augment_batch(images, operations, magnitudes, how)
        for i, (operation, magnitude) in enumerate(zip(operations, magnitudes, strict=True)):
            alone = augment(images[i], int(operation), float(magnitude), how)
            assert torch.equal(made[i], alone), Operation(operation)
        assert torch.equal(images, before)
    none = augment_batch(images[:0], operations[:0], magnitudes[:0], how)
    assert none.shape == images[:0].shape


@pytest.mark.fuzz
@every_operation
def test_threads_do_not_matter(operation: Operation) -> None:
    """On more pixels than one task takes."""
    for image in (noise(641, 479), as_float(noise(641, 479))):
        magnitude = MAGNITUDES[operation][3]
        torch.set_num_threads(1)
        alone = augment(image, operation, magnitude, Sampling("bilinear", 3.0))
        torch.set_num_threads(2)
        assert torch.equal(augment(image, operation, magnitude, Sampling("bilinear", 3.0)), alone)


def test_other_integers_are_refused() -> None:
    """Equalize and the rest handle bytes and floats; other types would come out wrong."""
    with pytest.raises(TypeError, match="int32"):
        augment(noise(4, 4).int(), Operation.IDENTITY, 0.0, Sampling())
    with pytest.raises(TypeError, match="int16"):
        augment_batch(noise(4, 4)[None].short(), np.array([0]), np.array([0.0]), Sampling())
