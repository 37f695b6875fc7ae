"""A resumed epoch has exactly its remainder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
import pytest
import torch

from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.integrations.dali_dynamic import StatefulReader
from tests.images import write_photo_folder
from tests.integrations.in_dynamic_mode.readers import (
    BATCH,
    EPOCHS,
    Content,
    after,
    build,
    content,
    epochs,
    raw,
    resumed,
)

HALVES, THIRDS = {"num_shards": 2, "shard_id": 1}, {"num_shards": 3, "shard_id": 2}


@pytest.mark.parametrize(
    "how",
    [
        {"random_shuffle": False},
        {"pad_last_batch": True},
        HALVES,
        {**HALVES, "random_shuffle": False, "pad_last_batch": True},
        {**HALVES, "stick_to_shard": True},
        {**THIRDS, "pad_last_batch": True},
        {**THIRDS, "random_shuffle": False, "stick_to_shard": True},
        {**THIRDS, "pad_last_batch": True, "stick_to_shard": True},
    ],
    ids=lambda how: ",".join(how),
)
def test_resumes_exactly_after_every_batch(how: dict[str, Any], root: str) -> None:
    """Compared with an uninterrupted reader of DALI's: only the remainder comes."""
    expected = epochs(raw(root, **how))
    reader, states = build(root, **how), []
    states.append((0, 0, reader.state_dict()))
    for epoch in range(EPOCHS):
        number = 0
        for number, batch in enumerate(reader.next_epoch(BATCH), 1):
            assert content(batch) == expected[epoch][number - 1]
            states.append((epoch, number, reader.state_dict()))
        assert number == len(expected[epoch])
        states.append((epoch + 1, 0, reader.state_dict()))
    for epoch, number, state in states:
        other = resumed(root, state, **how)
        assert other.state_dict() == state
        rest = epochs(other, EPOCHS - epoch)
        if epoch < EPOCHS:
            assert rest == [expected[epoch][number:], *expected[epoch + 1 :]]


def test_shards_of_unequal_length_take_turns(root: str) -> None:
    """DALI forgets which shard's turn it is, and with it the epoch's length."""
    names = sorted(map(str, Path(root).glob("*/*.jpg")))[:13]
    how = {"file_root": None, "files": names, "labels": list(range(13)), "num_shards": 3}
    expected = epochs(raw(root, **how), 6)
    assert len({len(epoch) for epoch in expected}) == 2
    reader = build(root, **how)
    for number in range(6):
        state = reader.state_dict()
        assert (state["epoch"], state["position"]) == (number, 0)
        assert epochs(resumed(root, state, **how), 6 - number) == expected[number:]
        assert epochs(reader, 1) == [expected[number]]


def test_dali_alone_repeats_the_full_length(root: str) -> None:
    """The reason for the wrapper. If this fails, DALI has fixed it."""
    reader = raw(root)
    epoch = reader.next_epoch(batch_size=BATCH)
    next(epoch), next(epoch)
    state, rest = str(reader.get_state()), len(list(epoch))
    other = raw(root)
    other.set_state(state)
    assert len(list(other.next_epoch(batch_size=BATCH))) == rest + 2


def test_the_state_is_small_flat_and_plain(root: str) -> None:
    reader = build(root)
    keys = set(reader.state_dict())
    after(reader, 2)
    state = reader.state_dict()
    assert set(state) == keys
    assert all(type(value) in (str, int, type(None)) for value in state.values())
    assert len(json.dumps(state)) < 1024
    assert state is not reader.state_dict()
    torch.save(state, file := Path(root).parent / "state.pt")
    assert torch.load(file, weights_only=True) == state


def test_a_second_resume_in_one_epoch_is_exact(root: str) -> None:
    expected = epochs(raw(root), 1)[0]
    first = build(root)
    after(first, 1)
    second = resumed(root, first.state_dict())
    after(second, 2)
    third = resumed(root, second.state_dict())
    assert epochs(third, 1)[0] == expected[3:]


def test_a_state_is_loaded_into_a_reader_that_has_read(root: str) -> None:
    expected = epochs(raw(root), 2)
    reader = build(root)
    epoch = after(reader, 2)
    state = reader.state_dict()
    list(epoch)
    reader.load_state_dict(state)
    assert epochs(reader, 2) == [expected[0][2:], expected[1]]
    reader.load_state_dict(state)
    assert epochs(reader, 1) == [expected[0][2:]]


def test_after_the_last_batch_the_remainder_is_empty(root: str) -> None:
    """The next epoch comes after the end of the epoch, as with torchdata."""
    expected = epochs(raw(root), 2)
    reader = build(root)
    epoch = after(reader, len(expected[0]))
    at_last_batch = reader.state_dict()
    assert list(epoch) == []
    at_end = reader.state_dict()
    assert (at_last_batch["epoch"], at_end["epoch"], at_end["position"]) == (0, 1, 0)
    assert epochs(resumed(root, at_last_batch), 2) == [[], expected[1]]
    assert epochs(resumed(root, at_end), 1) == [expected[1]]


def test_an_epoch_after_a_break_is_that_of_dali(root: str) -> None:
    """It begins with the next sample and has full length, also after a resume."""
    plain = raw(root)
    for _ in zip(range(2), plain.next_epoch(batch_size=BATCH), strict=False):
        pass
    expected = epochs(plain, 2)
    reader = build(root)
    for _ in zip(range(2), reader.next_epoch(BATCH), strict=False):
        pass
    in_the_break = reader.state_dict()
    epoch = reader.next_epoch(BATCH)
    assert reader.state_dict() == in_the_break, "an epoch counts from its first batch"
    assert content(next(epoch)) == expected[0][0]
    state = reader.state_dict()
    assert [content(batch) for batch in epoch] == expected[0][1:]
    assert epochs(reader, 1) == expected[1:]
    assert epochs(resumed(root, state), 2) == [expected[0][1:], expected[1]]


def test_an_abandoned_epoch_refuses_to_continue(root: str) -> None:
    reader = build(root)
    old = after(reader, 1)
    new = after(reader, 1)
    state = reader.state_dict()
    with pytest.raises(LoaderError):
        next(old)
    assert reader.state_dict() == state
    expected = epochs(resumed(root, state), 1)[0]
    assert [content(batch) for batch in new] == expected


def test_samples_one_by_one_resume_too(root: str) -> None:
    def label(sample: Any) -> int:
        return int(np.asarray(sample[1]).item())

    reader = build(root)
    samples = [label(sample) for sample in reader.next_epoch()]
    assert len(samples) == 15
    reader = build(root)
    epoch = reader.next_epoch()
    for _ in range(7):
        next(epoch)
    state = reader.state_dict()
    assert state["position"] == 7
    rest = resumed(root, state)
    assert [label(sample) for sample in rest.next_epoch()] == samples[7:]


def test_an_error_costs_nothing_that_was_delivered(root: str, tmp_path: Path) -> None:
    """Recovery is a resume: the next epoch is the remainder."""
    write_photo_folder(tmp_path, num_classes=3, per_class=5)
    paths = sorted(tmp_path.glob("*/*.jpg"))
    files = {"files": list(map(str, paths)), "labels": list(range(15)), "prefetch_queue_depth": 1}
    expected = epochs(ndd.readers.File(**files), 1)[0]
    hidden = paths[13].rename(tmp_path / "hidden")
    reader, seen = StatefulReader(ndd.readers.File, **files), list[Content]()
    with pytest.raises(RuntimeError, match=paths[13].name):
        seen.extend(map(content, reader.next_epoch(BATCH)))
    assert reader.state_dict()["position"] == BATCH * len(seen)
    hidden.rename(paths[13])
    assert seen + epochs(reader, 1)[0] == expected
