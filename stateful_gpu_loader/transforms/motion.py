"""Motions: how recipes move an image's points, for boxes and masks.

Motions are float64 [n, 2, 3], one matrix per image, and map (x, y, 1) to (x, y), in pixels from the
upper left corner: an image spans (0, 0) to (width, height).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def scaled_and_shifted(scales: npt.ArrayLike, shifts: npt.ArrayLike) -> FloatArray:
    """Return motions without rotation.

    Args:
        scales: [n, 2], along x and y; a negative scale mirrors.
        shifts: [n, 2], to the right and down, after the scaling.

    >>> scaled_and_shifted([[2, 1]], [[0, -3]])
    array([[[ 2.,  0.,  0.],
            [ 0.,  1., -3.]]])
    """
    factors, offsets = np.broadcast_arrays(
        np.asarray(scales, dtype=np.float64), np.asarray(shifts, dtype=np.float64)
    )
    motions = np.zeros((len(factors), 2, 3))
    motions[:, 0, 0], motions[:, 1, 1] = factors.T
    motions[:, :, 2] = offsets
    return motions


def at_rest(n: int) -> FloatArray:
    """Return motions of n images that move no point."""
    return scaled_and_shifted(np.ones((n, 2)), np.zeros((n, 2)))


def one_after_the_other(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the motions of two recipes in a row.

    >>> double = scaled_and_shifted([[2, 2]], [[0, 0]])
    >>> shift = scaled_and_shifted([[1, 1]], [[5, 0]])
    >>> one_after_the_other(double, shift)[0].tolist()
    [[2.0, 0.0, 5.0], [0.0, 2.0, 0.0]]
    """
    # Written out, because a matrix product's rounding depends on the BLAS.
    joined = second[:, :, :1] * first[:, :1] + second[:, :, 1:2] * first[:, 1:]
    joined[:, :, 2] += second[:, :, 2]
    return joined


def inverted(
    matrices: FloatArray, sizes: npt.NDArray[np.int64], sizes_after: npt.NDArray[np.int64]
) -> FloatArray:
    """Return the motions of warps, from matrices that map a pixel of the result to the image.

    Args:
        matrices: [n, 6], in pixels from the centers, from
            :func:`~stateful_gpu_loader.transforms.geometry.affine.inverse_affine_matrices`.
        sizes: [n, 2], height and width of the images.
        sizes_after: [n, 2], height and width of the results.
    """
    back = matrices.reshape(-1, 2, 3)
    forth = inverse(back)[:, :, :2]
    moved = sizes[:, ::-1] / 2.0 + back[:, :, 2]
    shift = sizes_after[:, ::-1] / 2.0 - (
        forth[:, :, 0] * moved[:, :1] + forth[:, :, 1] * moved[:, 1:]
    )
    return np.concatenate((forth, shift[:, :, None]), axis=2)


def inverse(motions: FloatArray) -> FloatArray:
    """Return the motions that move each point back.

    >>> inverse(scaled_and_shifted([[2, 4]], [[6, 0]]))[0].tolist()
    [[0.5, 0.0, -3.0], [0.0, 0.25, 0.0]]
    """
    a, b, c = motions[:, 0, 0], motions[:, 0, 1], motions[:, 0, 2]
    d, e, f = motions[:, 1, 0], motions[:, 1, 1], motions[:, 1, 2]
    area = a * e - b * d
    rows = (e, -b, b * f - c * e), (-d, a, c * d - a * f)
    # Adding 0.0 removes negative zeros.
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1) / area[:, None, None] + 0.0
