"""Private streams are reused, by one owner at a time. Streams are stand-ins."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stateful_gpu_loader.engine.device import place
from stateful_gpu_loader.engine.device.place import private_streams

GPU = torch.device("cuda", 0)


class Owner:
    """An object that uses two streams."""


class StandIn:
    """A stream that may have queued work."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_idle = True

    def query(self) -> bool:
        return self.is_idle


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(place, "_new", StandIn)
    monkeypatch.setattr(place, "_spare", {})
    yield
    gc.collect()


def test_streams_of_a_deleted_owner_are_reused() -> None:
    first, second = Owner(), Owner()
    pair, other = private_streams(first, GPU), private_streams(second, GPU)
    assert not {*pair} & {*other}
    del first
    assert private_streams(third := Owner(), GPU) is pair
    assert not {*private_streams(third, GPU)} & {*pair, *other}


@pytest.mark.parametrize("number", [0, 1])
def test_a_pair_with_queued_work_is_not_handed_out(number: int) -> None:
    owner = Owner()
    pair: Any = private_streams(owner, GPU)
    pair[number].is_idle = False
    del owner
    following = Owner()
    assert private_streams(following, GPU) is not pair
    pair[number].is_idle = True
    assert private_streams(following, GPU) is pair


def test_each_gpu_has_its_own_pairs() -> None:
    owner = Owner()
    pair = private_streams(owner, GPU)
    del owner
    other = private_streams(Owner(), torch.device("cuda", 1))
    assert other is not pair
    assert other[0].device == torch.device("cuda", 1)


def test_a_forked_child_takes_no_pair_of_its_parent() -> None:
    """Neither a pair that is spare at the fork, nor one whose owner is freed in the child."""
    owner, gone = Owner(), Owner()
    theirs = {*private_streams(owner, GPU), *private_streams(gone, GPU)}
    del gone
    child = os.fork()
    if not child:
        del owner
        own = {*private_streams(kept := Owner(), GPU), *private_streams(kept, GPU)}
        os._exit(len(own & theirs))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
