"""Properties of the machine that decide pixels or speed, read without touching CUDA."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from stateful_gpu_loader.decoders import machine, make_batch_decoder


def test_gpu_models_are_read_from_the_drivers_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "DRIVER", tmp_path)
    for number, model in enumerate(["NVIDIA H200", "NVIDIA H200", "NVIDIA A100-SXM4-80GB"]):
        folder = tmp_path / f"0000:{number:02x}:00.0"
        folder.mkdir()
        text = f"Model: \t\t {model}\nIRQ:   \t\t 22\nVideo BIOS: 96.00\n"
        (folder / "information").write_text(text)
    assert machine.gpu_models() == ["NVIDIA A100-SXM4-80GB", "NVIDIA H200"]
    text = machine.describe_versions("pytest", "no-such-package")
    assert text == f"pytest {pytest.__version__}, NVIDIA A100-SXM4-80GB, NVIDIA H200"
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "absent")
    assert machine.gpu_models() == []


def test_packages_of_cuda_13_are_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of the decoder's library may change pixels."""
    installed = {"nvidia-nvimgcodec-cu13": "0.9.0", "nvidia-nvjpeg": "13.0.1"}

    def version(package: str) -> str:
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(machine, "version", version)
    assert machine.package_versions(*machine.NVIMGCODEC) == [
        "nvidia-nvimgcodec-cu13 0.9.0",
        "nvidia-nvjpeg 13.0.1",
    ]
    pytest.importorskip("nvidia.dali")
    installed["nvidia-dali-cuda130"] = "2.4"
    decoder = make_batch_decoder("dali", torch.device("cuda"))
    assert decoder.version().startswith("nvidia-dali-cuda130 2.4, nvidia-nvimgcodec-cu13 0.9.0")


def test_ranks_of_a_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert machine.host_threads() == 16
    for ranks, threads in (("1", 16), ("5", 3), ("64", 1), ("0", 16), ("many", 16)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert machine.host_threads() == threads
