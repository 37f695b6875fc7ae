"""One decoder for each thread of the stage: copies that live as long as the threads."""

from __future__ import annotations

import copy
import gc
import threading
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import nvimgcodec as module
from stateful_gpu_loader.decoders.cpu_share import SharedOut
from stateful_gpu_loader.decoders.nvimgcodec import NvimgcodecBatchDecoder
from stateful_gpu_loader.engine.device import images
from stateful_gpu_loader.engine.device.images import ThreadDecoders
from tests.fake_gpu import FakeDecoder
from tests.patience import seconds


class Asking:
    """A thread that requests its decoder on command."""

    def __init__(self, decoder: Any) -> None:
        self.found: list[Any] = []
        self._decoder = decoder
        self._asked, self._answered = threading.Semaphore(0), threading.Semaphore(0)
        self._ends = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def ask(self) -> Any:
        self._asked.release()
        assert self._answered.acquire(timeout=seconds(2))
        return self.found[-1]

    def end(self) -> None:
        self._ends = True
        self._asked.release()
        self._thread.join(seconds(2))

    def _work(self) -> None:
        while self._asked.acquire() and not self._ends:
            decoders = ThreadDecoders.of(self._decoder)  # as at the start of each pass
            self.found.append(decoders.for_this_thread(self._decoder))
            self._answered.release()


def test_each_thread_keeps_its_decoder_from_pass_to_pass() -> None:
    """Making an nvImageCodec decoder costs as much as many batches."""
    decoder = FakeDecoder()
    first, second = Asking(decoder), Asking(decoder)
    found = [first.ask(), second.ask(), second.ask(), first.ask()]
    assert found[0] is found[3] is decoder
    assert found[1] is found[2] is not decoder
    assert found[1].family == decoder.family
    first.end()
    third = Asking(decoder)
    assert third.ask() is decoder, "which no live thread uses"
    second.end()
    third.end()


def test_nothing_of_a_deleted_decoder_is_kept() -> None:

    gc.collect()
    before = len(images._all)
    decoder = FakeDecoder()
    ThreadDecoders.of(decoder).for_this_thread(decoder)
    assert len(images._all) == before + 1
    del decoder
    gc.collect()
    assert len(images._all) == before


def test_a_copy_of_nvimgcodecs_shares_no_object_of_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_library", lambda: None)
    decoder = NvimgcodecBatchDecoder(torch.device("cuda", 0))
    decoder._stages = object()  # type: ignore[assignment]
    assert copy.copy(decoder)._stages is None
    shared = copy.copy(SharedOut(decoder, 0.3))
    assert shared.family == "nvimgcodec, cpu_share=0.3"
    assert shared._decoder is not decoder
    assert shared._decoder._stages is None  # type: ignore[attr-defined]
