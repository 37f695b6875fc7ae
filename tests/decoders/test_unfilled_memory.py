"""Memory is left unfilled for every thread that decodes; the user's setting returns afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import probe
from stateful_gpu_loader.decoders.batch_rule import decode_batch_by_rule, unfilled_memory
from tests.decoders.cuda_stub import decode_as_stored
from tests.decoders.variants import photo
from tests.images import encode
from tests.patience import seconds

SETTING: Any = torch.utils.deterministic


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    SETTING.fill_uninitialized_memory = True


class Decoding:
    """A thread that decodes a batch of one image, and ends when the test says so."""

    def __init__(self) -> None:
        self.is_filled: list[bool] = []
        """The setting at the end of each call."""
        self._is_inside, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._decode, daemon=True)
        self._thread.start()
        assert self._is_inside.wait(seconds(2))

    def end(self) -> None:
        self._may_end.set()
        self._thread.join(seconds(2))
        assert not self._thread.is_alive()

    def _decode(self) -> None:
        file = encode(photo(20, 30))

        def decode(data: list[torch.Tensor]) -> list[torch.Tensor]:
            self._is_inside.set()
            assert self._may_end.wait(seconds(2))
            self.is_filled.append(SETTING.fill_uninitialized_memory)
            return [decode_as_stored(each) for each in data]

        decode_batch_by_rule(decode, [file], [probe(file)])


@pytest.mark.parametrize("filled", [True, False])
def test_two_loaders_that_decode_at_once_leave_the_users_setting(filled: bool) -> None:
    SETTING.fill_uninitialized_memory = filled
    first, second = Decoding(), Decoding()
    first.end()
    assert not SETTING.fill_uninitialized_memory, "the second one still decodes"
    second.end()
    assert SETTING.fill_uninitialized_memory is filled
    assert first.is_filled == second.is_filled == [False]


def test_a_decoder_that_fails_leaves_the_users_setting() -> None:
    """A setting that the user makes meanwhile stays."""
    with pytest.raises(KeyError), unfilled_memory(), unfilled_memory():
        raise KeyError
    assert SETTING.fill_uninitialized_memory
    SETTING.fill_uninitialized_memory = False
    with unfilled_memory():
        SETTING.fill_uninitialized_memory = True
    assert SETTING.fill_uninitialized_memory


def _in_a_child() -> int:
    """Fork, and return the child's settings as bits: outside, inside, after."""
    child = os.fork()
    if child == 0:
        outside = SETTING.fill_uninitialized_memory
        with unfilled_memory():
            inside = SETTING.fill_uninitialized_memory
        os._exit(outside + 2 * inside + 4 * SETTING.fill_uninitialized_memory)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.processes
@pytest.mark.parametrize("filled", [True, False])
def test_a_child_forked_meanwhile_finds_the_users_setting(filled: bool) -> None:
    """The thread that would restore it does not exist in the child."""
    SETTING.fill_uninitialized_memory = filled
    decoding = Decoding()
    assert _in_a_child() == (1 + 4 if filled else 0)
    decoding.end()
    assert SETTING.fill_uninitialized_memory is filled
    assert _in_a_child() == (1 + 4 if filled else 0)
