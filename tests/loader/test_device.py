"""``device="cuda"`` on a device simulated by the CPU: exact as on the CPU."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import (
    FolderSource,
    LoaderError,
    StatefulGPULoader,
    ragged_collate,
)
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders import make_decoder, probe
from stateful_gpu_loader.decoders.cpu_share import fraction_of
from stateful_gpu_loader.randomness.permutation import Permutation
from tests.conformance import copy_of, refusal, same, uninterrupted
from tests.damaged import undecodable
from tests.device_loaders import RECIPES, Loader, make, photos
from tests.fake_gpu import FakeDecoder, FakeGpu, FakePlace, fake_gpu
from tests.images import photograph
from tests.patience import seconds

__all__ = ["fake_gpu", "photos"]


@pytest.mark.parametrize("cpu_share", [0.0, 0.5, 1.0])
def test_every_image_has_its_own_decoder_and_draws(
    photos: Path, fake_gpu: FakeGpu, cpu_share: float
) -> None:
    """Each image is recomputed from its header and bytes, and from (seed, epoch, position).

    The CPU decodes what the GPU refuses. Crops, flips and order are those of the CPU.
    """
    source, recipes = FolderSource(photos), T.Compose(RECIPES)
    loader = make(photos, num_workers=2, cpu_share=cpu_share)
    cpu, gpu = make_decoder("torchvision"), FakeDecoder()
    counts = {"gpu": 0, "refused": 0, "cpu": 0, "left to the cpu": 0}
    for epoch in range(2):
        images = torch.cat([images for images, _ in loader])
        order = Permutation(len(source), seed=42, epoch=epoch)(np.arange(len(source)))
        for position, index in enumerate(order.tolist()):
            data = source.read(index).data
            header = probe(data)
            pixels = cpu.decode(data, header)
            kind = "cpu"
            if gpu.takes(header, data) and fraction_of(data) < cpu_share:
                kind = "left to the cpu"
            elif gpu.takes(header, data):
                (found,) = gpu.decode_batch([data], [header])
                kind = "gpu" if isinstance(found, torch.Tensor) else "refused"
                pixels = found if isinstance(found, torch.Tensor) else pixels
            counts[kind] += 1
            sizes = np.array([pixels.shape[1:]])
            drawn = recipes.draw(42, epoch, np.array([position]), sizes)
            assert same(images[position : position + 1], recipes.apply_batch([pixels], drawn))
    assert counts["cpu"] > 0
    assert (counts["gpu"] > 0, counts["refused"] > 0) == (cpu_share < 1, cpu_share < 1)
    assert (counts["left to the cpu"] > 0) == (cpu_share > 0)


def test_another_share_of_the_cpus_is_another_decoder(photos: Path, fake_gpu: FakeGpu) -> None:
    """Their pixels differ, so a state does not load silently into the other loader."""
    loader = make(photos, cpu_share=0.5)
    next(iter(loader))
    state = loader.state_dict()
    for share in (0.0, 0.25):
        refused = refusal(make(photos, cpu_share=share), state, "decoder")
        assert refused.saved == "fake-cuda, cpu_share=0.5"
    with pytest.raises(ValueError, match="cpu_share"):
        loader.cpu_share = 0.1


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"cpu_share": 1.5}, ValueError, "must be from 0 to 1"),
        ({"cpu_share": "half"}, TypeError, "must be a number"),
        (
            {"cpu_share": 0.5, "device": None},
            ValueError,
            "no GPU decodes here: device is None.*Remedy",
        ),
        ({"cpu_share": 0.5, "transform": torch.neg}, ValueError, "transform is a callable"),
    ],
)
def test_invalid_cpu_shares_are_refused(
    photos: Path, fake_gpu: FakeGpu, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make(photos, **changes)


def test_the_fingerprint_distinguishes_decoder_families(photos: Path, fake_gpu: FakeGpu) -> None:
    """A CPU state does not fit the GPU, and a GPU state does not fit the CPU."""
    cpu, gpu = make(photos, device=None, decoder="torchvision"), make(photos)
    for saved, present in ((cpu, gpu), (gpu, cpu)):
        state = saved.state_dict()
        refused = refusal(present, state, "decoder")
        assert {refused.saved, refused.present} == {"fake-cuda", "torchvision"}
        present.load_state_dict(state, accept={"decoder"})


def test_another_version_of_the_decoder_warns(
    photos: Path, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions of decoder and resampling, and the GPU's model."""
    loader = make(photos)
    state = loader.state_dict()
    next(iter(loader))
    assert loader.state_dict()["fingerprint"] == state["fingerprint"]
    assert re.search(r'"decoder_version": "1, triton \d', state["fingerprint"])
    monkeypatch.setattr(FakeDecoder, "version", lambda self: "2, another GPU")
    with pytest.warns(UserWarning, match=r"saved with fake-cuda 1, .*this is 2, another GPU"):
        make(photos).load_state_dict(state)


def test_nothing_is_touched_before_the_first_batch(photos: Path, fake_gpu: FakeGpu) -> None:
    make(photos)  # starts tqdm's monitor, once in a process
    before = set(threading.enumerate())
    loader = make(photos, num_workers=2)
    loader.state_dict()
    iterator = iter(loader)
    loader.state_dict()
    assert fake_gpu.places == []
    assert set(threading.enumerate()) <= before  # threads of earlier tests may end
    next(iterator)
    assert len(fake_gpu.places) == 1
    assert fake_gpu.places[0].asked_for == torch.device("cuda")


def test_one_place_and_two_threads_serve_all_passes_of_a_loader(
    photos: Path, fake_gpu: FakeGpu
) -> None:
    loader = make(photos, num_workers=2)
    for _ in range(3):
        list(loader)
        next(iter(loader))
    (place,) = fake_gpu.places
    assert len(place.stage_threads) == 2


def test_a_missing_gpu_is_reported_by_every_first_batch(photos: Path, fake_gpu: FakeGpu) -> None:
    fake_gpu.present = False
    loader = make(photos, num_workers=2)
    before = loader.state_dict()
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(LoaderError, match=r"no GPU\. Remedy"):
            next(iterator)
    assert loader.state_dict() == before


def test_an_early_break_leaves_no_stale_batch_and_no_thread(
    photos: Path, fake_gpu: FakeGpu
) -> None:
    before = set(threading.enumerate())
    loader = make(photos, num_workers=2, prefetch_factor=4)
    expected = list(make(photos))
    list(loader)
    for _ in range(5):
        iterator = iter(loader)
        next(iterator)
        del iterator
        loader.load_state_dict(make(photos).state_dict())
        assert same(list(loader), expected)
    del loader
    gc.collect()
    new_threads = set(threading.enumerate()) - before
    assert [thread.name for thread in new_threads if "gpu_loader" in thread.name] == []


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_that_runs_out_loses_nothing(photos: Path, fake_gpu: FakeGpu, workers: int) -> None:
    """Each batch is tried twice before the error is raised, and again whenever the user asks."""
    expected = list(make(photos))
    loader = make(photos, num_workers=workers)
    batches, found = iter(loader), []
    found.append(next(batches))
    state = loader.state_dict()
    fake_gpu.decoder.failures = [torch.OutOfMemoryError("CUDA out of memory.")] * 4
    messages: list[str] = []
    while True:
        try:
            found.append(next(batches))
        except torch.OutOfMemoryError as error:
            messages.append(str(error))
            if len(found) == 1:
                assert loader.state_dict() == state
        except StopIteration:
            break
    assert fake_gpu.decoder.failures == []
    assert len(messages) == 2 or workers
    described = re.compile(r"a batch of [26] images \(.*decoded\)")  # the last batch has two images
    assert all(map(described.search, messages))
    assert same(found, expected)


def test_a_decoder_exception_affects_only_its_batch(photos: Path, fake_gpu: FakeGpu) -> None:
    expected = list(make(photos))
    loader = make(photos, num_workers=1, prefetch_factor=1)
    batches = iter(loader)
    fake_gpu.decoder.failures = [OSError("driver")]
    with pytest.raises(OSError, match="driver"):
        next(batches)
    assert same(list(batches), expected[1:])


def test_delivered_batches_are_never_written_again(photos: Path, fake_gpu: FakeGpu) -> None:
    loader = make(photos, num_workers=2, prefetch_factor=4)
    kept = [batch for _ in range(3) for batch in loader]
    again = make(photos)
    assert same(kept, [copy_of(batch) for _ in range(3) for batch in again])


def test_a_copy_of_a_loader_has_its_own_stage(photos: Path, fake_gpu: FakeGpu) -> None:
    """Copies by copy.deepcopy and by pickle start before their first batch."""
    loader = make(photos, num_workers=2)
    expected = [copy_of(batch) for batch in loader]
    state = make(photos).state_dict()
    for twin in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        twin.load_state_dict(state)
        assert same([copy_of(batch) for batch in twin], expected)
    assert len(fake_gpu.places) == 3


def test_persistent_workers_hold_no_batch_on_the_device(photos: Path, fake_gpu: FakeGpu) -> None:
    """Persistent workers, after a break."""
    loader = make(photos, num_workers=2, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    del batches
    idle: Any = loader._engine.workers.idle
    assert idle is not None
    assert not idle._turns


def test_a_stage_that_hung_is_replaced(photos: Path, fake_gpu: FakeGpu) -> None:
    expected = [copy_of(batch) for batch in make(photos)]
    loader = make(photos, num_workers=1, timeout=seconds(0.05))
    decode, go_on, calls = fake_gpu.decoder.decode_batch, threading.Event(), []

    def hangs_once(*arguments: Any) -> Any:
        calls.append(True)
        if len(calls) == 2:
            assert go_on.wait(seconds(2))
        return decode(*arguments)

    fake_gpu.decoder.decode_batch = hangs_once  # type: ignore[method-assign]
    with pytest.warns(RuntimeWarning, match="device stage did not finish"):
        found = [copy_of(batch) for batch in loader]
    go_on.set()
    assert same(found, expected)
    assert len(fake_gpu.places) == 3


# Batches that ``device=`` only moves: any dataset's batches, and images that workers make.


@pytest.mark.processes
def test_batches_without_gpu_decoding_are_made_by_workers_and_moved(
    photos: Path, fake_gpu: FakeGpu
) -> None:
    """With a callable transform, a collate_fn or batch_size=None, the CPU decodes exactly."""

    def noisy(image: torch.Tensor) -> torch.Tensor:
        return image[:, :16, :16] * torch.rand(())

    def pairs(samples: list[Any]) -> dict[str, Any]:
        return {"images": torch.stack([image for image, _ in samples]), "names": ["a"]}

    kinds: list[dict[str, Any]] = [
        {"transform": noisy},
        {"transform": RECIPES, "collate_fn": pairs},
        {"transform": RECIPES, "batch_size": None},
    ]
    for kind in kinds:
        expected = list(make(photos, device=None, decoder="torchvision", **kind))
        for workers in (0, 2):
            loader = make(photos, decoder="torchvision", num_workers=workers, **kind)
            assert same(list(loader), expected)
    assert fake_gpu.decoder.num_calls == 0


class Numbers:
    """A map-style dataset that draws."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.rand(3), "y": (index, random.random()), "name": f"sample {index}"}


@pytest.mark.processes
def test_any_datasets_tensors_are_moved(fake_gpu: FakeGpu) -> None:
    """``device=`` with a dataset that is no Source: batches and states are the same."""

    def numbers(**changes: Any) -> Loader:
        return StatefulGPULoader(Numbers(), batch_size=4, shuffle=True, seed=3, **changes)

    expected, states = uninterrupted(numbers(), 2)
    for workers in (0, 2):
        moved = uninterrupted(numbers(device="cuda", num_workers=workers), 2)
        assert same(moved[0], expected)
        assert moved[1] == states


class Sparse:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.eye(3).to_sparse() * index


def test_sparse_tensors_move_at_their_delivery(fake_gpu: FakeGpu) -> None:
    loader = StatefulGPULoader(Sparse(), batch_size=None, device="cuda")
    assert [float(batch.to_dense().sum()) for batch in loader] == [0, 3, 6]


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_device_cpu_moves_nothing(photos: Path, fake_gpu: FakeGpu, device: Any) -> None:
    loader = make(photos, device=device, decoder="torchvision")
    next(iter(loader))
    assert fake_gpu.places == []
    assert loader.device is device


def test_other_devices_are_refused(photos: Path) -> None:
    with pytest.raises(ValueError, match=r"device='mps' is not supported.*device=None"):
        make(photos, device="mps")
    with pytest.raises(TypeError, match="device = 'gpu' is not a device"):
        make(photos, device="gpu")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_of_a_batch_is_allocated_once_in_each_pass(
    photos: Path, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    """Earlier passes tell the size of a batch."""
    asked: list[int] = []
    empty_host = FakePlace.empty_host

    def noted(place: FakePlace, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        asked.append(shape[0])
        return empty_host(place, shape, dtype)

    monkeypatch.setattr(FakePlace, "empty_host", noted)
    loader = make(photos, batch_size=20, num_workers=num_workers, worker_type="thread")
    assert len(list(loader)) == 1
    asked.clear()
    for _ in range(9):
        assert len(list(loader)) == 1
    assert len([num_bytes for num_bytes in asked if num_bytes]) == 9


class MasksOfTheirSize(FolderSource):
    """Its targets fit only images of one size."""

    has_spatial_targets = True

    def move_target(self, index: int, target: Any, motion: Any, size: tuple[int, int]) -> Any:
        if size != (40, 60):
            raise ValueError(f"a mask of 40x60 for an image of {size}")
        return target


@pytest.mark.parametrize("device", [None, "cuda"])
def test_a_target_that_refuses_a_damaged_size_makes_only_its_image_bad(
    tmp_path: Path, fake_gpu: FakeGpu, device: str | None
) -> None:
    (tmp_path / "coffee").mkdir()
    for number in range(6):
        photograph("coffee").resize((60, 40)).save(tmp_path / f"coffee/{number}.jpg")
    path = tmp_path / "coffee/2.jpg"
    data = bytearray(path.read_bytes())
    size = data.index(b"\xff\xc0") + 5
    data[size : size + 4] = (400).to_bytes(2, "big") + (401).to_bytes(2, "big")
    path.write_bytes(undecodable(bytes(data)))
    loader = StatefulGPULoader(
        MasksOfTheirSize(tmp_path),
        batch_size=3,
        device=device,
        transform=[T.RandomHorizontalFlip()],
        collate_fn=ragged_collate,
        on_bad_sample="drop",
    )
    assert [len(labels) for _, labels in loader] == [2, 3]
    assert [bad.index for bad in loader.bad_samples.samples] == [2]
