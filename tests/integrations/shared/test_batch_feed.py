"""Batches as samples: skips, other indices, and epochs."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from stateful_gpu_loader import LoaderError, StatefulGPULoader
from stateful_gpu_loader.integrations.shared.batch_feed import BatchFeed


class Labelled(list[int]):
    classes = ("cat", "dog")


def loader_of(**arguments: Any) -> StatefulGPULoader[Any]:
    given = {"batch_size": 2, "shuffle": True, "seed": 1, **arguments}
    return StatefulGPULoader(Labelled(range(10)), **given)


def resumed(delivered: int, **arguments: Any) -> BatchFeed:
    loader = loader_of(**arguments)
    for _ in zip(range(delivered), loader, strict=False):
        pass
    feed = BatchFeed(loader_of(**arguments))
    feed.load_state_dict(loader.state_dict())
    return feed


def run(feed: BatchFeed, skipped: int) -> list[list[int]]:
    """Iterate like a trainer that skips numbers of the batch sampler."""
    numbers = (number for i, number in enumerate(feed.numbers) if i >= skipped)
    arguments = {**feed.arguments(), "batch_sampler": numbers}
    return [batch.tolist() for batch in DataLoader(feed, **arguments)]


@pytest.mark.parametrize("skipped", [3, 4, 5])
def test_skip_of_more_than_was_delivered_is_refused(skipped: int) -> None:
    """No batch is lost silently. In a pass from the beginning, a skip is what was asked for."""
    with pytest.raises(LoaderError, match=r"batch 2 .* 2 "):
        run(resumed(2), skipped)
    whole = [batch.tolist() for batch in loader_of()]
    assert run(resumed(2), 2) == whole[2:]
    assert run(BatchFeed(loader_of()), skipped) == whole[skipped:]


def test_second_pass_after_a_resume_skips_batches() -> None:
    """Only the resumed pass has batches from before the checkpoint."""
    feed = resumed(2)
    run(feed, 2)
    second = loader_of()
    second.set_epoch(1)
    assert run(feed, 3) == [batch.tolist() for batch in second][3:]


def test_skip_of_less_than_was_delivered_is_refused() -> None:
    """The text mentions a checkpoint only if there is one."""
    with pytest.raises(LoaderError, match="batch 1 "):
        run(resumed(2), 1)
    with pytest.raises(LoaderError, match=r"\[0\] .*BatchFeed") as caught:
        BatchFeed(loader_of())[0]
    assert "checkpoint" not in str(caught.value)


def test_a_prefetching_consumer_has_the_state_before_its_prefetched_batches() -> None:
    """Also with the last batch, after which there is none to fetch."""
    feed, loader = BatchFeed(loader_of()), loader_of()
    states = [loader.state_dict() for _ in loader]
    batches = iter(DataLoader(feed, **feed.arguments()))
    next(batches)
    for state in states:
        next(batches, None)
        assert feed.state_before_the_last() == state


def test_attributes_are_the_datasets() -> None:
    """Users read loader.dataset.classes."""
    feed = BatchFeed(loader_of())
    assert feed.classes == ("cat", "dog")
    assert not hasattr(feed, "absent")
    assert not hasattr(feed, "__getitems__")
    assert not hasattr(BatchFeed.__new__(BatchFeed), "classes")


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [2, 3])
@pytest.mark.parametrize("boundary", ["empty", "next_epoch"])
def test_resume_at_an_epochs_last_batch_asks_for_the_epoch_that_comes(
    boundary: str, batch_size: int, drop_last: bool
) -> None:
    """Without a warning of an epoch that was never set."""
    given = {"on_epoch_boundary": boundary, "batch_size": batch_size, "drop_last": drop_last}
    feed = resumed(len(loader_of(**given)), **given)
    second = loader_of(**given)
    second.set_epoch(1)
    expected = [batch.tolist() for batch in second]
    skipped = 0
    if boundary == "empty":
        assert (feed.next_epoch, feed.next_position > 0) == (0, True)
        assert run(feed, len(second)) == []
    assert (feed.next_epoch, feed.next_position) == (1, 0)
    assert run(feed, skipped) == expected


def test_next_epoch_asked_for_at_an_epochs_last_batch_has_nothing_to_skip() -> None:
    """Scripts that count from the number of steps do so."""
    feed = resumed(5)
    feed.set_epoch(1)
    second = loader_of()
    second.set_epoch(1)
    assert run(feed, 0) == [batch.tolist() for batch in second]
