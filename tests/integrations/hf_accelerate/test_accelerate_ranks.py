"""Accelerate on several processes of one gloo group: metrics, refusals, and the rank that saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.integrations.accelerate import prepare_loader
from tests.integrations.hf_accelerate.loops import dataset_of, new_accelerator
from tests.rank_processes import on_ranks


def metrics(rank: int, length: int, batch_size: int) -> list[int]:
    accelerator = new_accelerator()
    loader = prepare_loader(accelerator, StatefulGPULoader(range(length), batch_size=batch_size))
    return torch.cat([accelerator.gather_for_metrics(batch) for batch in loader]).tolist()


def metrics_of_several(rank: int) -> tuple[list[int], str]:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = metrics(rank, 13, 2)
    return found, " ".join(str(one.message) for one in caught)


def test_metrics_have_each_sample_once_where_one_is_repeated(tmp_path: Path) -> None:
    """On four processes, a warning counts the repeated samples that remain."""
    assert [sorted(found) for found in on_ranks(metrics, 2, 13, 4)] == [list(range(13))] * 2
    for found, messages in on_ranks(metrics_of_several, 4):
        assert set(found) == set(range(13))
        assert len(found) == 16
        assert "5 samples and 3 repeated ones" in messages


def refused(rank: int, datasets: list[Any]) -> list[str]:
    """Return each rank's errors for lanes, samplers and configurations."""
    from accelerate.utils import DataLoaderConfiguration

    messages = []

    def expect(accelerator: Any, loader: Any) -> None:
        try:
            prepare_loader(accelerator, loader)
        except ValueError as error:
            messages.append(str(error))
        else:
            messages.append("nothing")

    for dataset in datasets:
        expect(new_accelerator(), StatefulGPULoader(dataset))
    sampler = torch.utils.data.RandomSampler(range(9))
    expect(new_accelerator(), StatefulGPULoader(range(9), sampler=sampler))
    for way in ({"split_batches": True}, {"dispatch_batches": True}, {"even_batches": False}):
        accelerator = new_accelerator(dataloader_config=DataLoaderConfiguration(**way))
        expect(accelerator, StatefulGPULoader(range(9)))
    return messages


def test_indivisible_loaders_are_refused(tmp_path: Path) -> None:
    """Otherwise every process would silently get every sample."""
    datasets = [dataset_of(kind, tmp_path / kind) for kind in ("lanes", "iterable")]
    parts = ["lanes", "num_replicas", "same samples", "split_batch", "dispatch_batch", "even_batch"]
    for messages in on_ranks(refused, 3, datasets):
        assert len(messages) == len(parts)
        for text, part in zip(messages, parts, strict=True):
            assert part in text, messages
            assert "Remedy" in text


def main_alone(rank: int, folder: Path) -> tuple[list[Any], list[Any]]:
    """Save in the main process alone, as many scripts do; then load before preparing."""

    def make() -> StatefulGPULoader[Any]:
        return StatefulGPULoader(range(24), batch_size=3, shuffle=True, seed=1)

    accelerator = new_accelerator()
    whole = []
    for number, batch in enumerate(loader := prepare_loader(accelerator, make())):
        whole.append(batch.tolist())
        if number == 1:
            state = loader.state_dict()
            if accelerator.is_main_process:
                accelerator.save_state(str(folder))
    accelerator.wait_for_everyone()
    accelerator = new_accelerator()
    resumed = prepare_loader(accelerator, make())
    accelerator.load_state(str(folder))
    rests = [[batch.tolist() for batch in resumed]]
    undivided = make()
    undivided.load_state_dict(state)
    rests.append([batch.tolist() for batch in prepare_loader(new_accelerator(), undivided)])
    return whole, rests


def test_the_main_process_saves_alone(tmp_path: Path) -> None:
    """No process waits for another, and a state loaded before ``prepare`` is not lost."""
    for whole, rests in on_ranks(main_alone, 2, tmp_path / "saved"):
        assert len(whole) == 4
        assert rests == [whole[2:], whole[2:]]
