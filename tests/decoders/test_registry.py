"""Decoders by name, and errors where one is missing."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import (
    BATCH_DECODERS,
    DECODER_NAMES,
    DECODERS,
    Decoder,
    available,
    dali,
    make_batch_decoder,
    make_decoder,
    nvimgcodec,
    probe,
    torchcodec,
)
from stateful_gpu_loader.decoders.registry import CPU_FAMILIES, FAMILIES
from stateful_gpu_loader.errors import LoaderError, MissingDependency
from stateful_gpu_loader.integrations.dali import DALILoader
from tests.decoders.variants import pillow_variants
from tests.prepared_processes import run_until_exit

DEVICE = torch.device("cuda")


def forget() -> None:
    for cached in (dali.require_dali, nvimgcodec._library, torchcodec._operators):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def missing(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Set of packages that are not found; empty at first."""
    absent: set[str] = set()
    find_spec = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return None if name in absent else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    forget()
    yield absent
    forget()


def test_every_available_decoder_can_be_made_by_name() -> None:
    """A pickled decoder decodes the same."""
    data = pillow_variants()["jpeg 4:2:0"]
    for name in available():
        decoder = make_decoder(name)
        assert isinstance(decoder, Decoder)
        assert CPU_FAMILIES[decoder.family] == name
        assert decoder.version()[0].isdigit()
        assert repr(decoder)
        copy = pickle.loads(pickle.dumps(decoder))
        assert torch.equal(copy.decode(data, probe(data)), decoder.decode(data, probe(data)))


def test_auto_is_the_first_available_unless_another_is_preferred() -> None:
    first = make_decoder(available()[0]).family
    assert make_decoder("auto").family == first
    for family, name in CPU_FAMILIES.items():
        if name in available():
            assert make_decoder("auto", prefer=family).family == family
    for unknown in ("nvimgcodec", "torchvision-cuda", "a family of tomorrow"):
        assert make_decoder("auto", prefer=unknown).family == first
    assert make_decoder("torchvision", prefer="torchcodec").family == "torchvision"


def test_auto_prefers_what_decodes_parts_then_torchvision(missing: set[str]) -> None:
    pytest.importorskip("nvidia.nvimgcodec")
    assert available()[0] == "nvimgcodec"
    forget()
    missing |= {"torchcodec", "nvidia.nvimgcodec"}
    assert available()[0] == "torchvision"
    assert "torchcodec" not in available()
    assert make_decoder("auto", prefer="torchcodec").family == "torchvision"


def test_a_torchcodec_that_cannot_be_loaded_is_not_available_and_says_why(
    missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is installed, but its libraries do not fit, which is no ImportError."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise OSError(f"libavutil.so.60: cannot open shared object file ({name})\nand more")

    pytest.importorskip("torchcodec")
    monkeypatch.setattr(torch.ops, "torchcodec_ns", Broken(), raising=False)
    missing.add("nvidia.nvimgcodec")
    assert available()[0] == "torchvision"
    assert "torchcodec" not in available()
    assert make_decoder("auto").family == "torchvision"
    with pytest.raises(LoaderError, match=r"failed with OSError: libavutil.so.60.*\. Remedy"):
        make_decoder("torchcodec")


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


PACKAGES = {"dali": "nvidia.dali", "torchcodec": "torchcodec"}


def test_making_a_decoder_starts_nothing() -> None:
    """The CPU decoder of a family is fixed."""
    for package in PACKAGES.values():
        pytest.importorskip(package)
    for name in BATCH_DECODERS:
        decoder = make_batch_decoder(name, DEVICE)
        assert FAMILIES[decoder.family] == name
        assert decoder.family not in CPU_FAMILIES
        assert decoder.cpu.family == ("torchcodec" if name == "torchcodec" else "torchvision")
        assert decoder.version()
        assert repr(decoder).endswith("(cuda)")
    assert not torch.cuda.is_initialized()


def test_auto_takes_the_family_that_was_saved() -> None:
    for package in PACKAGES.values():
        pytest.importorskip(package)
    assert make_batch_decoder("auto", DEVICE).family == "torchcodec-cuda"
    for family in FAMILIES:
        assert make_batch_decoder("auto", DEVICE, prefer=family).family == family
    for unknown in (None, "torchvision", "a family of tomorrow"):
        assert make_batch_decoder("auto", DEVICE, prefer=unknown).family == "torchcodec-cuda"
    assert make_batch_decoder("dali", DEVICE, prefer="torchvision-cuda").family == "dali-cuda"


def test_auto_goes_on_to_what_is_installed(missing: set[str]) -> None:
    missing |= {"torchcodec", "nvidia.dali", "nvidia.nvimgcodec"}
    for prefer in (None, *FAMILIES):
        assert make_batch_decoder("auto", DEVICE, prefer=prefer).family == "torchvision-cuda"
    assert make_decoder("auto", prefer="dali").family == "torchvision"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("torchcodec", "torchcodec", "codec"),
        ("nvimgcodec", "nvidia.nvimgcodec", "nvimgcodec"),
        ("nvimgcodec", "nvidia", "nvimgcodec"),
        ("dali", "nvidia.dali", "dali"),
        ("dali", "nvidia", "dali"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    missing: set[str], name: str, package: str, extra: str
) -> None:
    missing.add(package)
    remedy = rf"decoder='{name}' needs .*pip install 'stateful_gpu_loader\[{extra}\]'"
    with pytest.raises(MissingDependency, match=remedy):
        make_batch_decoder(name, DEVICE)
    if extra in ("nvimgcodec", "dali"):
        with pytest.raises(MissingDependency, match=rf"\[{extra}-cu13\]' under CUDA 13"):
            make_batch_decoder(name, DEVICE)
    if name in DECODERS:
        with pytest.raises(MissingDependency, match=remedy):
            make_decoder(name)


@pytest.mark.parametrize(
    ("name", "module"), [("nvimgcodec", "nvidia.nvimgcodec"), ("dali", "nvidia.dali")]
)
def test_a_package_that_cannot_be_loaded_says_why(
    missing: set[str], monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    """None in ``sys.modules`` is how Python marks an import that fails."""
    parent, _, child = module.rpartition(".")
    monkeypatch.delattr(importlib.import_module(parent), child, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "found")
    with pytest.raises(LoaderError, match=rf"'{name}' cannot be used: importing .*Remedy: install"):
        make_batch_decoder(name, DEVICE)


def test_what_needs_dali_is_named_where_it_is_missing_or_broken(
    missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not always a decoder."""
    missing.add("nvidia.dali")
    with pytest.raises(MissingDependency, match=r"^DALILoader needs .*stateful_gpu_loader\[dali\]"):
        DALILoader(3, ["images"])
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "found")
    with pytest.raises(LoaderError, match=r"^DALILoader cannot be used: .*Remedy") as caught:
        DALILoader(3, ["images"])
    assert "decoder" not in str(caught.value)


def test_an_unknown_decoder_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown decoder 'pillow'.*'auto', 'torchcodec'"):
        make_decoder("pillow")
    with pytest.raises(ValueError, match=r"unknown decoder 'pillow'.*'nvimgcodec', 'dali'"):
        make_batch_decoder("pillow", DEVICE)
    with pytest.raises(ValueError, match=r"device='cpu'.*make_decoder\('dali'\)"):
        make_batch_decoder("dali", torch.device("cpu"))
    assert ("auto", *BATCH_DECODERS) == DECODER_NAMES
    assert set(DECODERS) == set(BATCH_DECODERS) == set(CPU_FAMILIES.values())


@pytest.mark.processes
def test_no_backend_is_imported_before_it_is_needed() -> None:
    """torchcodec takes a second, DALI starts with the CUDA that it finds."""
    code, errors = run_until_exit(
        "import sys, torch, stateful_gpu_loader.decoders as d\n"
        "assert 'torchcodec' not in sys.modules\n"
        "d.make_decoder('auto'); d.make_batch_decoder('auto', torch.device('cuda'))\n"
        "assert not [name for name in sys.modules if name.startswith('nvidia.dali')]\n"
    )
    assert code == 0, errors
