"""The picture of scaled decoding shows each scale once, and a difference at each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("tqdm")
pytest.importorskip("matplotlib")

from benchmarks.scaled_picture import CROPS, decoded, draw_scaled
from stateful_gpu_loader.decoders.scaled import SCALES, scale_of


def test_every_scale_is_shown(tmp_path: Path) -> None:
    scales = [scale_of(crop.box, (crop.side, crop.side)) for crop in CROPS]
    assert sorted(scales) == sorted(SCALES)
    for crop in CROPS:
        whole, scaled = decoded(crop)
        assert whole.shape == scaled.shape == (3, crop.side, crop.side)
        assert 1 < (whole.float() - scaled.float()).abs().mean() < 8
        assert torch.equal(decoded(crop)[1], scaled)
    draw_scaled(tmp_path / "scaled.png")
    assert (tmp_path / "scaled.png").read_bytes().startswith(b"\x89PNG")
