"""Decoders by name, and what happens where one is missing (D1, D2)."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import Decoder, available, make_decoder, probe
from stateful_gpu_loader.decoders import torchcodec_decoder as codec
from stateful_gpu_loader.errors import LoaderError, MissingDependency
from tests.decoders.variants import pillow_variants


@pytest.fixture
def without_torchcodec(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def find_no_torchcodec(name: str, *rest: Any) -> Any:
        return None if name == "torchcodec" else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_no_torchcodec)
    codec._operators.cache_clear()


@pytest.fixture
def with_broken_torchcodec(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise OSError(f"libavutil.so.60: cannot open shared object file ({name})\nand more")

    monkeypatch.setattr(torch.ops, "torchcodec_ns", Broken(), raising=False)
    codec._operators.cache_clear()


@pytest.fixture(autouse=True)
def _forget_operators() -> Any:
    yield
    codec._operators.cache_clear()


def test_every_available_decoder_can_be_made_by_name() -> None:
    """D1, D2."""
    for name in available():
        decoder = make_decoder(name)
        assert isinstance(decoder, Decoder)
        assert decoder.family == name
        assert decoder.version()[0].isdigit()
        assert repr(decoder)


def test_auto_is_the_first_available_unless_another_is_preferred() -> None:
    assert make_decoder("auto").family == available()[0]
    for family in available():
        assert make_decoder("auto", prefer=family).family == family
    assert make_decoder("auto", prefer="a family of tomorrow").family == available()[0]
    assert make_decoder("torchvision", prefer="torchcodec").family == "torchvision"


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown decoder 'pillow'.*'auto', 'torchcodec'"):
        make_decoder("pillow")


@pytest.mark.usefixtures("without_torchcodec")
def test_without_torchcodec_auto_is_torchvision() -> None:
    """D2: optional; asked for by name, it says how to get it."""
    assert available()[0] == "torchvision"
    assert "torchcodec" not in available()
    assert make_decoder("auto", prefer="torchcodec").family == "torchvision"
    with pytest.raises(MissingDependency, match=r"pip install 'stateful_gpu_loader\[codec\]'"):
        make_decoder("torchcodec")


@pytest.mark.usefixtures("with_broken_torchcodec")
def test_a_torchcodec_that_cannot_be_loaded_is_not_available_and_says_why() -> None:
    """D2: it is installed, but its libraries do not fit; that is no ImportError of Python's."""
    pytest.importorskip("torchcodec")
    assert available()[0] == "torchvision"
    assert "torchcodec" not in available()
    assert make_decoder("auto").family == "torchvision"
    with pytest.raises(LoaderError, match=r"failed with OSError: libavutil.so.60.*\. Remedy"):
        make_decoder("torchcodec")


@pytest.mark.processes
def test_importing_the_package_imports_no_backend() -> None:
    """They take a second, and torchcodec is optional."""
    code = (
        "import sys, stateful_gpu_loader.decoders as d;"
        "print('torchcodec' in sys.modules, d.available())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("False ['torch")


@pytest.mark.parametrize("name", available())
def test_a_pickled_decoder_decodes_the_same(name: str) -> None:
    data = pillow_variants()["jpeg 4:2:0"]
    decoder = make_decoder(name)
    copy = pickle.loads(pickle.dumps(decoder))
    assert torch.equal(copy.decode(data, probe(data)), decoder.decode(data, probe(data)))


@pytest.mark.fuzz
@pytest.mark.parametrize("name", available())
def test_threads_decode_what_one_thread_decodes(name: str) -> None:
    """The default engine decodes in threads."""
    files = list(pillow_variants().values())
    decoder = make_decoder(name)

    def decode(data: torch.Tensor) -> torch.Tensor:
        return decoder.decode(data, probe(data))

    alone = [decode(data) for data in files]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(decode, files * 4))
    assert all(torch.equal(image, alone[i % len(files)]) for i, image in enumerate(together))
