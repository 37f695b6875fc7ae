"""Shared memory is filled again once nothing refers to it, and never before."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader.engine.pipeline import Answer, RemoteFailure
from stateful_gpu_loader.engine.workers import segments as segments_module
from stateful_gpu_loader.engine.workers.packing import Packed, pack, unpack
from stateful_gpu_loader.engine.workers.segments import (
    MAX_COPY,
    MappedSegments,
    SentSegment,
    WorkerSegments,
)
from stateful_gpu_loader.engine.workers.worker_main import replacement_for
from stateful_gpu_loader.records import Request
from tests.conformance import same
from tests.engine.workers import fakes
from tests.engine.workers.fakes import Gate, request
from tests.patience import seconds

SIZE = MAX_COPY
"""Number of float32 values in a batch that is large enough to be shared."""


class Pair:
    """A worker and its main process, both in this process."""

    def __init__(self, keep: int = 4) -> None:
        self.worker = WorkerSegments(keep)
        self.main = MappedSegments()

    def batch(self, value: float, size: int = SIZE) -> torch.Tensor:
        """Return a batch, made and received."""
        self.worker.take_back(self.main.to_return(0))
        return self.received(pack(self.made(value, size), self.worker))

    def made(self, value: float, size: int = SIZE) -> torch.Tensor:
        return self.worker.empty((size,), torch.float32).fill_(value)

    def received(self, packed: Packed) -> Any:
        self.main.unmap(packed.given_up)
        return unpack(packed, self.main.lend)


@pytest.mark.parametrize("name", fakes.HOLDERS)
def test_memory_is_not_filled_while_anything_refers_to_it(name: str) -> None:
    pair = Pair()
    batch = pair.batch(7)
    place = batch.data_ptr()
    held = fakes.HOLDERS[name](batch)
    del batch
    for value in range(6):
        assert pair.batch(value).data_ptr() != place
    del held
    assert place in {pair.batch(value).data_ptr() for value in range(2)}
    assert len(pair.worker._segments) == 2


def test_memory_of_the_worker_is_not_filled_while_the_worker_refers_to_it() -> None:
    """User code in the worker may keep a reference."""
    pair = Pair()
    made = pair.made(1)
    batch = pair.received(pack(made, pair.worker))
    del batch
    other = pair.batch(2)
    assert (made == 1).all()
    assert (other == 2).all()


def test_a_forked_process_keeps_its_batches() -> None:
    """The child has the parent's tensor for an unknown time."""
    pair = Pair()
    batch = pair.batch(7)
    begin, end = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(begin[0], 1)
        os.write(end[1], b"same" if (batch.numpy() == 7).all() else b"else")
        os._exit(0)
    try:
        del batch
        for value in range(3):
            pair.batch(value)
        os.write(begin[1], b".")
        assert os.read(end[0], 4) == b"same"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for file in (*begin, *end):
            os.close(file)
    assert len(pair.worker._segments) == len(pair.main._mapped) == 1, "the other one is unmapped"


def test_large_content_is_in_memory_that_is_filled_again() -> None:
    pair = Pair()
    for value in range(9):
        pair.worker.take_back(pair.main.to_return(0))
        states = [bytes([value]) * MAX_COPY, np.full(MAX_COPY, value, np.uint8)]
        packed = pack(states, pair.worker)
        assert packed.is_apart
        text, array = pair.received(packed._replace(content=memoryview(b"")))
        assert text == states[0]
        assert (array == value).all()
        array[0] = 1  # it is the receiver's own
    assert len(pair.worker._segments) == 1


def test_large_tensors_from_elsewhere_are_copied_into_it() -> None:
    pair = Pair()
    for value in range(9):
        pair.worker.take_back(pair.main.to_return(0))
        made = torch.full((SIZE,), float(value))
        packed = pack([made, made[2:]], pair.worker)
        assert packed.large == []
        whole, part = pair.received(packed)
        assert (whole == value).all()
        whole[3] = -1
        assert part[1] == -1
        assert made[3] == value
        del whole, part
    assert len(pair.worker._segments) == 1


def test_torch_sends_what_is_shared_and_small_parts_of_something_large() -> None:
    pair = Pair()
    shared, part = torch.zeros(SIZE).share_memory_(), torch.zeros(SIZE)[:5]
    packed = pack([shared, part], pair.worker)
    assert [id(each) for each in packed.large] == [id(shared), id(part)]
    assert packed.segments == ()


@pytest.mark.parametrize("content", [bytes(4 * SIZE), torch.zeros(SIZE)])
def test_another_thread_does_not_fill_a_copy_before_it_is_sent(content: Any) -> None:
    class Busy(WorkerSegments):
        def send(self, numbers: Sequence[int]) -> tuple[SentSegment, ...]:
            of_another_thread = self.empty((SIZE,), torch.float32)
            assert self.number_of(of_another_thread.untyped_storage()) not in numbers
            return super().send(numbers)

    assert len(pack(content, Busy(keep=4)).segments) == 1


def test_a_segment_is_lent_once_however_often_it_is_delivered() -> None:
    """The user may keep one delivery and drop the other."""
    pair = Pair()
    made = pair.made(1)
    part = torch.from_numpy(made.numpy()[:9])
    kept = pair.received(pack({"all": made, "part": part}, pair.worker))["part"]
    again = pair.received(pack(made, pair.worker))
    del made, part
    others = [pair.batch(2) for _ in range(4)]
    assert (kept == 1).all()
    assert (again == 1).all()
    assert all((other == 2).all() for other in others)


def test_a_process_that_a_worker_forks_fills_none_of_its_segments() -> None:
    pair = Pair()
    pair.batch(0)
    child = os.fork()
    if not child:
        forked = pair.worker.empty((SIZE,), torch.float32)
        os._exit(0 if pair.worker.number_of(forked.untyped_storage()) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (pair.made(3) == 3).all()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_part_shares_the_memory_of_the_whole(is_first: bool) -> None:
    whole = torch.zeros(SIZE)
    parts = [whole[:5], whole] if is_first else [whole, whole[:5]]
    found = unpack(pack(parts, Pair().worker))
    small, large = sorted(found, key=len)
    large[2] = 7
    assert small[2] == 7


def test_an_answer_that_cannot_be_sent_is_known_from_its_content() -> None:
    pair = Pair()
    answer = Answer([bytes(MAX_COPY), pair.made(7)], worker=3)
    packed = pack(answer, pair.worker)
    replaced = pair.received(replacement_for(packed, OSError("no file is free")))
    assert replaced.worker == 3
    assert isinstance(replaced.payload, RemoteFailure)


def test_only_so_many_free_segments_are_kept() -> None:
    pair = Pair(keep=2)
    many = [pair.batch(value) for value in range(9)]
    assert [batch.unique().tolist() for batch in many] == [[value] for value in range(9)]
    assert len(pair.main._mapped) == 9
    del many
    pair.batch(0)
    assert len(pair.worker._segments) == len(pair.main._mapped) == 3


def test_the_free_segment_that_was_lent_longest_ago_is_given_up() -> None:
    """Even if it is the largest, in which small tensors would otherwise lie forever."""
    pair = Pair(keep=1)
    batches = [pair.batch(0, size) for size in (2 * SIZE, SIZE, SIZE)]
    last = batches[-1].data_ptr()
    del batches
    pair.batch(0, 4 * SIZE)
    assert [segment.size // SIZE for segment in pair.worker._segments.values()] == [4, 16]
    assert pair.batch(0).data_ptr() == last


def test_as_many_are_kept_as_several_answers_have() -> None:
    pair = Pair(keep=2)
    for value in range(9):
        pair.worker.take_back(pair.main.to_return(0))
        parts = [torch.full((SIZE,), float(value)) for _ in range(5)]
        assert same(pair.received(pack(parts, pair.worker)), parts)
    assert pair.worker._num_made == 5


def test_a_smaller_batch_takes_a_larger_segment_and_a_larger_one_does_not_fit() -> None:
    pair = Pair()
    place = pair.batch(1, 2 * SIZE).data_ptr()
    smaller = pair.batch(2, SIZE)
    assert smaller.data_ptr() == place
    assert smaller.untyped_storage().nbytes() == 4 * SIZE
    del smaller
    larger = pair.batch(3, 3 * SIZE)
    assert larger.data_ptr() != place
    assert (larger == 3).all()
    assert larger.shape == (3 * SIZE,)


def test_encoded_batches_of_about_the_same_size_share_a_segment() -> None:
    pair = Pair()
    assert len({pair.batch(0, SIZE * 100 // (100 + i)).data_ptr() for i in range(8)}) == 1


def test_a_batch_that_is_not_sent_frees_its_segment() -> None:
    pair = Pair()
    with pytest.raises((AttributeError, TypeError)):
        pack([pair.made(1), lambda: None], pair.worker)
    pair.batch(2)
    assert len(pair.worker._segments) == 1


def test_a_batch_that_fails_on_its_way_frees_its_segment() -> None:
    pair = Pair()
    packed = pack(pair.made(1), pair.worker)
    failure = pair.received(replacement_for(packed, OSError("broken")))
    assert "when a batch of type Tensor was sent" in str(failure.rebuild())
    pair.batch(2)
    assert len(pair.worker._segments) == 1


def test_tensors_that_share_memory_share_it_again() -> None:
    pair = Pair()
    made = pair.made(0)
    whole, part, same_object = pair.received(pack([made, made[2:].view(2, -1), made], pair.worker))
    whole[3] = 7
    assert part[0, 1] == 7
    assert part.shape == (2, SIZE // 2 - 1)
    assert same_object is whole


def open_segments() -> int:
    """Return the number of this process's open segment files; mapped segments are not open."""
    found = 0
    for file in fakes.fds():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += os.readlink(f"/proc/self/fd/{file}").startswith(fakes.NAME_OF_SEGMENTS)
    return found


def test_no_descriptor_stays_open() -> None:
    """A user may keep more batches than a process may open files."""
    pair = Pair()
    kept = [pair.batch(value) for value in range(5)]
    resource_sharer.stop(seconds(10))  # the thread that closes sent files
    assert open_segments() == 0
    kept.append(pair.made(0))
    assert open_segments() == 1
    del kept, pair
    assert open_segments() == 0


def test_small_batches_need_no_segment() -> None:
    pair = Pair()
    for shape in [(3, 2), (), (0,), (MAX_COPY,)]:
        tensor = pair.worker.empty(shape, torch.uint8)
        assert (tensor.shape, tensor.dtype) == (torch.Size(shape), torch.uint8)
    assert not pair.worker._segments


def test_a_system_without_segments_leaves_it_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "_has_segments", lambda: False)
    pair = Pair()
    packed = pack(pair.made(3), pair.worker)
    assert (len(packed.large), packed.segments) == (1, ())
    assert (pair.received(packed) == 3).all()


class Filling:
    """Makes batches in segments. Each holds its request's ordinal, or the value of its action."""

    uses_global_generators = False

    def __init__(self, segments: WorkerSegments) -> None:
        self._segments = segments

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        (action,) = request.indices
        action()
        return self._segments.empty((SIZE,), torch.float32).fill_(request.ordinal)


def filling(make: Callable[..., Any], **changes: Any) -> Any:
    segments = WorkerSegments(keep=4)
    return make(Filling(segments), segments=segments, **changes)


def numbered(count: int, action: Callable[[], Any] = fakes.nothing) -> Any:
    return iter([request(ordinal, action) for ordinal in range(count)])


def test_worker_processes_fill_their_segments_again(make: Any) -> None:
    pipeline = filling(make, persistent_workers=True)
    places = set()
    for _ in range(3):
        pipeline.start(numbered(30))
        for ordinal in range(30):
            batch = next(pipeline)[1]
            assert (batch == ordinal).all()
            places.add(batch.data_ptr())
            batch.fill_(-1)  # the user may change a batch
    # Two requests and an answer for each worker, and the user's batches.
    assert len(places) <= 10


def test_worker_processes_touch_nothing_that_the_user_keeps_and_give_up_segments(make: Any) -> None:
    pipeline = filling(make, num_workers=1)
    pipeline.start(numbered(60))
    mapped = pipeline._dispatch._cluster._segments._mapped
    kept = [next(pipeline)[1] for _ in range(20)]
    assert len(mapped) >= 20
    assert [batch.unique().tolist() for batch in kept] == [[ordinal] for ordinal in range(20)]
    del kept
    for _ in range(40):
        next(pipeline)
    # The worker's own segments, two requests, and the user's batches.
    assert len(mapped) <= 10


@pytest.mark.filterwarnings("ignore:worker . was lost:RuntimeWarning")
def test_a_killed_worker_leaves_its_batches_and_nothing_else(make: Any, gate: Gate) -> None:
    pipeline = filling(make, max_losses=0)
    pipeline.start(iter([request(0, fakes.nothing), *numbered(8, gate.action)]))
    batch = next(pipeline)[1]
    gate.reached()
    fakes.kill(pipeline, 0, 1)
    gate.open()
    fakes.until_death(pipeline)
    pipeline.close()
    assert (batch == 0).all()
    batch.fill_(5)
    pids = {str(worker.pid) for worker in pipeline.workers}
    assert not [name for name in os.listdir("/dev/shm") if pids & set(name.split("_"))]
    del batch
    assert fakes.NAME_OF_SEGMENTS not in Path("/proc/self/maps").read_text()
