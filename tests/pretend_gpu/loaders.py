"""Loaders for the pretend GPU, their expected batches, and a user who reads them late.

No kernel runs there, so the decoder and the augmentation are simulated, with the real ones' calls
of torch's allocator and streams, and with bytes that can be computed without a device.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders import ImageHeader, JpegHeader, make_decoder, probe
from stateful_gpu_loader.decoders.cpu_share import fraction_of
from stateful_gpu_loader.decoders.decoder import Image as Pixels
from stateful_gpu_loader.decoders.decoder import as_tensor
from stateful_gpu_loader.engine import plan
from stateful_gpu_loader.randomness.permutation import Permutation
from stateful_gpu_loader.records import EncodedSample
from tests.images import encode

SEED = 7
BATCH_SIZE = 4
Count = Callable[[str, int, int], None]
"""Type of the fixture ``count``."""
EPOCHS = 6
"""Number of epochs that most tests read."""
ENOUGH_RUNS = 30
"""Most runs of a control until it fails."""
PIXELS = 9000
"""Bytes kept of each image of a batch; no image has fewer."""
LATE = 64
"""Bytes of each decoded image that are copied late from its file."""

Epoch = list[list[torch.Tensor]]
"""The batches of an epoch, on the CPU."""


def write_photos(root: Path, count: int = 48) -> Path:
    """Write JPEG files of noise, 56 to 72 pixels a side, and some PNGs, which no GPU decodes."""
    generator = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"class_{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = generator.integers(56, 73, size=2)
        pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        kind, ending = ("PNG", "png") if number % 8 == 3 else ("JPEG", "jpg")
        data = encode(Image.fromarray(pixels), kind)
        (folder / f"{number:03d}.{ending}").write_bytes(data.numpy().tobytes())
    return root


def damage(root: Path) -> list[Path]:
    """Damage every seventh JPEG: some lose their header, others their last bytes; return them."""
    damaged = sorted(root.rglob("*.jpg"))[::7]
    for number, path in enumerate(damaged):
        whole = path.read_bytes()
        path.write_bytes([b"", b"this is no photograph", whole[:-1500]][number % 3])
    return damaged


class EagerDecoder:
    """Writes pixels when it is called, as JPEG engines do, and reads its input late.

    It ignores queued work of the stream. It refuses one JPEG in four, by its bytes.
    """

    family = "eager-cuda"
    acts_on_exif = False

    def __init__(self) -> None:
        self.cpu = make_decoder("torchvision")
        self.num_images = 0
        self.working_memory = 0
        """Bytes on the device that each call takes and frees."""
        self._runtime = ctypes.CDLL(None)

    def version(self) -> str:
        return "1"

    @staticmethod
    def takes(header: ImageHeader, data: torch.Tensor) -> bool:
        return isinstance(header, JpegHeader)

    @staticmethod
    def refuses(data: torch.Tensor) -> bool:
        return zlib.crc32(data.numpy().tobytes()) % 4 == 0

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
        torch.empty(self.working_memory, dtype=torch.uint8, device="cuda")
        return [
            ValueError("these bytes") if self.refuses(each) else self._decode(each, header)
            for each, header in zip(data, headers, strict=True)
        ]

    def _decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor | ValueError:
        try:
            pixels = self.cpu.decode(data, header).permute(1, 2, 0).contiguous()
        except Exception as error:
            return ValueError(str(error))
        self.num_images += 1
        image = torch.empty(pixels.shape, dtype=torch.uint8, device="cuda")
        ctypes.memmove(image.data_ptr(), pixels.data_ptr(), pixels.nbytes)
        # torch does not know of this copy, nor of nvJPEG's reads of its input.
        status = self._runtime.cudaMemcpyAsync(
            *map(ctypes.c_void_p, (image.data_ptr(), data[-LATE:].data_ptr())),
            ctypes.c_size_t(LATE),
            1,
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        assert status == 0
        return image.permute(2, 0, 1)


def _copied(recipes: T.Compose, images: Sequence[Pixels], drawn: Any) -> torch.Tensor:
    """Stand in for ``Compose.apply_batch``: queue copies of the images' first bytes."""
    batch = torch.empty((len(images), PIXELS), dtype=torch.uint8, device=images[0].device)
    for row, image in zip(batch, images, strict=True):
        row.copy_(as_tensor(image).permute(1, 2, 0).view(-1)[:PIXELS], non_blocking=True)
    return batch


@contextmanager
def played_kernels() -> Iterator[EagerDecoder]:
    """Replace what would launch kernels: the decoder, and the augmentation of a batch."""
    decoder = EagerDecoder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "make_batch_decoder", lambda *given, **named: decoder)
        patch.setattr(T.Compose, "apply_batch", _copied)
        yield decoder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path)


@pytest.fixture
def decoder() -> Iterator[EagerDecoder]:
    with played_kernels() as decoder:
        yield decoder


def make(root: Path, **changes: Any) -> StatefulGPULoader[Any]:
    arguments: dict[str, Any] = {
        "batch_size": BATCH_SIZE,
        "shuffle": True,
        "seed": SEED,
        "device": "cuda",
        "num_workers": 2,
        "transform": [T.Resize((32, 32))],
        **changes,
    }
    return StatefulGPULoader(FolderSource(root), **arguments)


def expected_batches(
    root: Path, *, epoch: int = 0, cpu_share: float = 0.0, seed: int = SEED
) -> Epoch:
    """Compute the expected batches of one epoch of :func:`make`, on the CPU."""
    source = FolderSource(root)
    n = len(source)
    order = Permutation(n, seed=seed, epoch=epoch)(np.arange(n)).tolist()
    return _expected_of(source, order, cpu_share)


class _Numbered(FolderSource):
    """The target of a photograph is its index."""

    def read(self, index: int) -> EncodedSample:
        return dataclasses.replace(super().read(index), target=index)


def expected_with_replacements(root: Path, epochs: int) -> list[Epoch]:
    """Compute some epochs of :func:`make` with ``on_bad_sample="replace"``, on the CPU.

    A loader without a device determines the photographs.
    """
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        _Numbered(root),
        BATCH_SIZE,
        True,
        seed=SEED,
        transform=[T.Resize((32, 32))],
        on_bad_sample="replace",
    )
    orders = [[index for _, targets in loader for index in targets.tolist()] for _ in range(epochs)]
    source = FolderSource(root)
    return [_expected_of(source, order, cpu_share=0.0) for order in orders]


def _expected_of(source: FolderSource, order: list[int], cpu_share: float) -> Epoch:
    samples = [source.read(index) for index in order]
    batches = []
    for start in range(0, len(order), BATCH_SIZE):
        part = samples[start : start + BATCH_SIZE]
        images = torch.stack([_expected_image(sample.data, cpu_share) for sample in part])
        batches.append([images, torch.tensor([sample.target for sample in part])])
    return batches


def _expected_image(data: torch.Tensor, cpu_share: float) -> torch.Tensor:
    header = probe(data)
    pixels = make_decoder("torchvision").decode(data, header).permute(1, 2, 0).reshape(-1)
    image = pixels[:PIXELS].clone()
    is_of_gpu = EagerDecoder.takes(header, data) and fraction_of(data) >= cpu_share
    if is_of_gpu and not EagerDecoder.refuses(data):
        image[:LATE] = data[-LATE:]
    return image


class LateReader:
    """A user's loop: it queues the read of each batch after other work, and drops the batch.

    Args:
        stream: stream on which the batches are read; None for the current one.
        ahead: number of batches that the host may be ahead of the stream.
    """

    def __init__(self, stream: torch.cuda.Stream | None = None, ahead: int = 6) -> None:
        self._stream = stream or torch.cuda.current_stream()
        self._ahead = ahead
        self._copies: list[list[torch.Tensor]] = []
        self._pending: deque[torch.cuda.Event] = deque()
        self._step = torch.zeros(1).pin_memory()
        self._model = torch.empty(1, device=self._stream.device)

    def read(self, batches: Iterator[Any], count: int | None = None) -> int:
        """Read ``count`` batches, or all; return how many there were."""
        before = len(self._copies)
        with torch.cuda.stream(self._stream):
            while count is None or len(self._copies) < before + count:
                batch = next(batches, None)
                if batch is None:
                    break
                for _ in range(8):
                    self._model.copy_(self._step, non_blocking=True)
                copies = [torch.empty_like(part, device="cpu").pin_memory() for part in batch]
                for copy, part in zip(copies, batch, strict=True):
                    copy.copy_(part, non_blocking=True)
                del part
                batch.clear()
                self._copies.append(copies)
                self._pending.append(self._stream.record_event())
                if len(self._pending) > self._ahead:
                    self._pending.popleft().synchronize()
        return len(self._copies) - before

    def wrong(self, expected_batches: Epoch) -> int:
        """Wait for the reads, and return the number of wrong batches."""
        self._stream.synchronize()
        pairs = zip(self._copies, expected_batches, strict=True)
        return sum(not is_same(batch, other) for batch, other in pairs)


@contextmanager
def held(stream: torch.cuda.Stream) -> Iterator[None]:
    """Hold up a stream: work queued from here on runs when the context ends."""
    go_on = threading.Event()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go_on.wait() and None)
    status = ctypes.CDLL(None).cudaLaunchHostFunc(
        ctypes.c_void_p(stream.cuda_stream), function, None
    )
    assert status == 0
    try:
        yield
    finally:
        go_on.set()
        stream.synchronize()


class PoolUser:
    """A user's thread that copies numbers through the GPU, on several private streams in turn.

    It frees the memory of each copy at once, as is allowed: the work that reads it is queued on the
    stream it was allocated on.
    """

    def __init__(self, streams: Sequence[torch.cuda.Stream]) -> None:
        self._streams = streams
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> PoolUser:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        for number, stream in enumerate(itertools.cycle(self._streams)):
            if self._is_over.is_set():
                break
            with torch.cuda.stream(stream):
                self._copy_some(number)
            if number % 8 == 7:
                stream.synchronize()

    def _copy_some(self, number: int) -> None:
        held = []
        for i in range(3):
            source = torch.full((3 * 64 * 64,), (3 * number + i) % 251, dtype=torch.uint8)
            source, target = source.pin_memory(), torch.empty_like(source).pin_memory()
            held.append(torch.empty_like(source, device="cuda"))
            held[-1].copy_(source, non_blocking=True)
            target.copy_(held[-1], non_blocking=True)
            self._pairs.append((source, target))

    def wrong(self) -> tuple[int, int]:
        """Return the number of copies, and of wrong copies."""
        torch.cuda.synchronize()
        return len(self._pairs), sum(not torch.equal(*pair) for pair in self._pairs)


def is_same(batch: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, two) for one, two in zip(batch, other, strict=True))


def wrong_batches(
    make_loader: Callable[[], StatefulGPULoader[Any]],
    expected_epochs: Sequence[Epoch],
    stream: torch.cuda.Stream | None = None,
) -> tuple[int, int]:
    """Read some epochs of a new loader late; return the number of batches, and of wrong ones."""
    reader, loader = LateReader(stream), make_loader()
    compared = sum(reader.read(iter(loader)) for _ in expected_epochs)
    return compared, reader.wrong([batch for epoch in expected_epochs for batch in epoch])


def until_wrong(read: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Call ``read`` until something is wrong; one run of a control may find nothing."""
    compared = wrong = 0
    for _ in range(ENOUGH_RUNS):
        found = read()
        compared, wrong = compared + found[0], wrong + found[1]
        if wrong:
            break
    return compared, wrong
