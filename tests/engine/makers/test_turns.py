"""Turns: threads read one at a time while reading is quick, and side by side when it is slow."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stateful_gpu_loader.engine.makers.turns import Turns

SECONDS_BESIDE = 20.0
"""Length of the reading side by side after slow reading."""
SECONDS = 60
"""Time after which a test counts as hung."""


class FakeClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def most_at_a_time(turns: Turns, num_requests: int) -> int:
    """Read in four threads; return the largest number of requests that were read at a time."""
    reading: set[int] = set()
    found = []

    def read(number: int) -> None:
        with turns.take(num_images=1):
            reading.add(number)
            time.sleep(0.001)
            found.append(len(reading))
            reading.discard(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(num_requests)))
    return max(found)


def meet(turns: Turns) -> None:
    """Read two requests, each of which waits for the other."""
    both = threading.Barrier(2)

    def read(number: int) -> None:
        with turns.take(num_images=1):
            both.wait(SECONDS)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, range(2)))


def read_slowly(turns: Turns, clock: FakeClock) -> None:
    with turns.take(num_images=256):
        clock.now += 1.0


def read_images(turns: Turns, clock: FakeClock) -> None:
    """Read single images that take 5 ms each, until the reading is judged."""
    for _ in range(51):
        with turns.take(num_images=1):
            clock.now += 0.005


def test_quick_reading_is_never_side_by_side() -> None:
    assert most_at_a_time(Turns(FakeClock()), num_requests=100) == 1


def test_slow_reading_continues_side_by_side() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    read_slowly(turns, clock)
    for _ in range(150):
        meet(turns)
        clock.now += 0.99 * SECONDS_BESIDE / 150


def test_slow_reading_of_single_images_goes_on_side_by_side() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    read_images(turns, clock)
    for _ in range(150):
        meet(turns)
        clock.now += 0.99 * SECONDS_BESIDE / 150


def test_turns_are_tried_again_after_slow_reading() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    read_slowly(turns, clock)
    clock.now += SECONDS_BESIDE
    assert most_at_a_time(turns, num_requests=100) == 1


def test_a_short_delay_is_not_slow_reading() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    with turns.take(num_images=8):
        clock.now += 0.1
    for _ in range(20):
        with turns.take(num_images=256):
            clock.now += 0.01
    assert most_at_a_time(turns, num_requests=100) == 1


def held(turns: Turns, during: Callable[[], None]) -> None:
    """Call a function while another thread reads."""
    began, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.take(num_images=1):
            began.set()
            may_end.wait(SECONDS)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert began.wait(SECONDS)
        try:
            during()
        finally:
            may_end.set()


def test_no_thread_waits_for_a_read_that_hangs() -> None:
    clock = FakeClock()
    turns = Turns(clock)

    def read() -> None:
        for _ in range(100):
            clock.now += 1.0
            with turns.take(num_images=1):
                pass

    with ThreadPoolExecutor(1) as pool:
        held(turns, lambda: pool.submit(read).result(SECONDS))


def test_reads_beside_a_turn_do_not_make_it_slow() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    read_slowly(turns, clock)

    clock.now += SECONDS_BESIDE / 2

    def read_a_turn() -> None:
        clock.now += SECONDS_BESIDE / 2
        read_slowly(turns, clock)

    held(turns, read_a_turn)
    assert most_at_a_time(turns, num_requests=100) == 1


def test_a_read_that_hangs_beside_turns_does_not_keep_slow_reading_in_turns() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    read_slowly(turns, clock)

    def read_turns() -> None:
        clock.now += 2 * SECONDS_BESIDE
        read_images(turns, clock)
        meet(turns)

    held(turns, read_turns)


def test_an_error_ends_the_turn() -> None:
    turns = Turns(FakeClock())

    def fail() -> None:
        with turns.take(num_images=1):
            raise OSError

    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(fail).exception(SECONDS), OSError)
    assert most_at_a_time(turns, num_requests=10) == 1


def test_turns_that_were_sent_to_another_process_are_new() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    read_slowly(turns, clock)
    assert most_at_a_time(pickle.loads(pickle.dumps(turns)), num_requests=20) == 1
