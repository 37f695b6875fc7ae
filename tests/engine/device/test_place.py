"""CudaPlace where there is no GPU, and with a CUDA that is played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from stateful_gpu_loader import FolderSource, LoaderError, StatefulGPULoader
from stateful_gpu_loader.engine.device.place import CudaPlace, open_place
from tests.images import write_photo_folder

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
def test_a_gpu_that_is_not_there_is_named_at_the_first_batch(tmp_path: Any) -> None:
    write_photo_folder(tmp_path, num_classes=1, per_class=2)
    loader = StatefulGPULoader(FolderSource(tmp_path), device="cuda:1", num_workers=2)
    state = loader.state_dict()
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(LoaderError, match=r"device='cuda:1' cannot be used: .*device=None"):
            next(iterator)
    assert loader.state_dict() == state
    assert not torch.cuda.is_initialized()


class PlayedCuda:
    """Notes what is asked of torch.cuda, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, backend: str = "native") -> None:
        self.log: list[Any] = []
        played = self

        class Stream:
            def __init__(self, device: torch.device) -> None:
                self.name = f"stream {len(played.log)} of {device}"
                played.log.append(self.name)

            def synchronize(self) -> None:
                played.log.append(f"wait for {self.name}")

            def wait_event(self, event: Any) -> None:
                played.log.append(f"{self.name} waits for {event.name}")

        class Event:
            def record(self, stream: Stream) -> None:
                self.name = f"event of {stream.name}"
                played.log.append(self.name)

        def use(name: str) -> Any:
            def note(thing: Any) -> Any:
                played.log.append(f"{name} {getattr(thing, 'name', thing)}")
                return nullcontext()

            return note

        @contextmanager
        def within(stream: Stream) -> Iterator[None]:
            played.log.append(f"on {stream.name}")
            before, self.current = self.current, stream
            yield
            self.current = before

        self.current = Stream(torch.device("cuda", 3))
        for name, replacement in {
            "init": lambda: self.log.append("init"),
            "current_device": lambda: 3,
            "get_device_properties": lambda index: index,
            "Stream": Stream,
            "Event": Event,
            "device": use("device"),
            "stream": within,
            "current_stream": lambda device: self.current,
        }.items():
            monkeypatch.setattr(torch.cuda, name, replacement)
        monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: backend)
        self.log.clear()


class Recorded:
    """A tensor, as far as a place looks at it when it is delivered."""

    def __init__(self, *, is_cuda: bool = True, layout: torch.layout = torch.strided) -> None:
        self.is_cuda = is_cuda
        self.layout = layout
        self.streams: list[str] = []

    def record_stream(self, stream: Any) -> None:
        self.streams.append(stream.name)


def test_the_current_device_is_that_of_the_thread_that_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = PlayedCuda(monkeypatch)
    place = open_place(torch.device("cuda"))
    assert cuda.log == [], "nothing before it is opened"
    place.open()
    place.open()
    assert place.device == torch.device("cuda", 3)
    streams = ["stream 1 of cuda:3", "stream 2 of cuda:3"]
    assert cuda.log == ["init", *streams], "two private streams for its life"


@pytest.mark.parametrize("stream", [0, 1])
def test_work_is_queued_on_a_private_stream_and_waited_for_there(
    stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = PlayedCuda(monkeypatch)
    place = CudaPlace(torch.device("cuda", 1))
    place.open()
    cuda.log.clear()
    with place.working(stream):
        place.settle()
        place.mark()
    name = f"stream {1 + stream} of cuda:1"
    assert cuda.log == ["device cuda:1", f"on {name}", f"wait for {name}", f"event of {name}"]


def test_a_consumer_waits_for_the_mark_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator keeps the memory until the consumer's stream is past its use."""
    cuda = PlayedCuda(monkeypatch)
    place = CudaPlace(torch.device("cuda", 1))
    place.open()
    with place.working(1):
        mark = place.mark()
    left_alone = [Recorded(is_cuda=False), Recorded(layout=torch.sparse_coo)]
    batch: Any = [Recorded(), *left_alone, Recorded()]
    place.receive(mark, batch)
    assert cuda.log[-1] == "stream 0 of cuda:3 waits for event of stream 2 of cuda:1"
    consumer = ["stream 0 of cuda:3"]
    assert [tensor.streams for tensor in batch] == [consumer, [], [], consumer]


def test_where_no_memory_can_be_locked_plain_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy from it is slower, and the batch is the same."""
    PlayedCuda(monkeypatch)
    place = CudaPlace(torch.device("cuda"))
    place.open()
    real = torch.empty

    def refuse(*arguments: Any, pin_memory: bool = False, **others: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return real(*arguments, **others)

    monkeypatch.setattr(torch, "empty", refuse)
    assert place.empty_host((3,), torch.uint8).shape == (3,)


def test_an_allocator_that_reuses_memory_in_stream_order_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nvJPEG's hardware engine keeps no such order."""
    PlayedCuda(monkeypatch, backend="cudaMallocAsync")
    with pytest.raises(LoaderError, match=r"cudaMallocAsync.*PYTORCH_CUDA_ALLOC_CONF"):
        CudaPlace(torch.device("cuda")).open()
