"""The benchmark of peers runs to its end, and detects a loader that forgets."""

from __future__ import annotations

import dataclasses
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bench_peers, peers_picture, peers_table, table
from benchmarks.bench_peers import QUICK, measurement_name
from benchmarks.peers import process, roster, run
from benchmarks.peers.adapter import Delivery, Peer, Replaying, Work, replayed
from benchmarks.peers.process import NUMBERS, Order
from benchmarks.peers.roster import ENTRIES, Entry, entry_of
from benchmarks.results import read_results

SMALL = dataclasses.replace(QUICK, compared=48, lengths=(6_000,), checked_length=6_000)


class Forgetful(Peer):
    """Saves the place alone: the same samples come with other pixels."""

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        generator = torch.Generator().manual_seed(1)
        batches = (
            (torch.randn(len(numbers), 3, 224, 224, generator=generator), numbers)
            for numbers in _numbers(work, int(state or 0))
        )
        return _counted(batches, int(state or 0))

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        return _counted(_numbers(work, int(state or 0)), int(state or 0))

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        return str(int(state) + batches).encode()


class Misplaced(Replaying):
    """Moves its state to a wrong place."""

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        batches = ((torch.ones(1), numbers) for numbers in _numbers(work, 0))
        return replayed(batches, state)

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        return replayed(_numbers(work, 0), state)

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        return str(int(state) + batches - 1).encode()


def _numbers(work: Work, first: int) -> Iterator[torch.Tensor]:
    order = torch.randperm(work.num_samples, generator=torch.Generator().manual_seed(0))
    yield from order.split(work.batch_size)[first:]


def _counted(batches: Iterator[Any], first: int) -> Delivery:
    delivery = replayed(batches, None)
    return Delivery(delivery.batches, lambda: str(int(delivery.state()) + first).encode())


def _entry(name: str, module: str, adapter: str) -> Entry:
    return Entry(name=name, label=name.title(), module=module, adapter=adapter, method="", guide="")


TAKE_PART = (
    entry_of("ours"),
    entry_of("torch_torchvision"),
    _entry("forgetful", "torch", f"{__name__}:Forgetful"),
    _entry("absent", "no_such_package", "no_such_package:Absent"),
    _entry("broken", "torch", f"{__name__}:NoSuchClass"),
)


def _carry_out_here(order: Order, **_: Any) -> dict[str, Any]:
    """Run in this process: a new interpreter per pass would take minutes."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = process.carry_out(dataclasses.replace(order, report=f"{folder}/report.json"))
    except Exception as error:
        raise run.PassFailed(repr(error)) from error
    return {"process_started_at": 0.0, "peak_bytes": 1, **found}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of a small run in this process."""
    folder = tmp_path_factory.mktemp("peers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roster, "ENTRIES", TAKE_PART)
        patch.setattr(bench_peers, "ENTRIES", TAKE_PART)
        patch.setattr(bench_peers, "QUICK", SMALL)
        patch.setattr(run, "carry_out", _carry_out_here)
        bench_peers.main(["--quick", f"--output={folder}", f"--data={folder / 'data'}"])
    found = read_results(folder, "peers")
    assert found is not None
    for place in (str(folder), str(Path.home()), socket.gethostname()):
        assert place not in json.dumps(found)
    return found


def _loader(content: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        loader for loader in content["settings"]["loaders"] if loader["name"] == name
    )
    return found


def test_everything_is_measured_of_who_is_installed(content: dict[str, Any]) -> None:
    names = {measurement["name"] for measurement in content["measurements"]}
    for what in ("images", "cpu", "cold first batch", "peak memory"):
        for loader in ("ours", "torch_torchvision"):
            assert measurement_name(loader, what, 2) in names
    assert measurement_name("ours", "restore", 2, 6_000) in names
    assert measurement_name("ours", "state", 2, 6_000) in names
    assert measurement_name("torch_torchvision", "state", 2, 6_000) not in names
    assert content["machine"]["load_average_before"] is not None


def test_who_cannot_run_is_listed_with_the_reason(content: dict[str, Any]) -> None:
    assert _loader(content, "absent")["reason"] == "not installed"
    assert "NoSuchClass" in _loader(content, "broken")["reason"]
    text = peers_table.peers_section(content)
    assert "Absent is not in the table: not installed." in text
    assert _loader(content, "ours")["reason"] is None


def test_verdicts_are_of_what_was_delivered(content: dict[str, Any]) -> None:
    exact = [_loader(content, name)["facts"] for name in ("ours", "torch_torchvision")]
    for facts in exact:
        assert facts["resumed workers=2"]["pixels_exact"] is True
        assert facts["batch at 90% as uninterrupted"] is True
    forgetful = _loader(content, "forgetful")["facts"]["resumed workers=2"]
    assert forgetful["samples_exact"] is True
    assert forgetful["pixels_exact"] is False
    assert forgetful["same_pixels"] == 0


def test_table_and_picture_are_drawn(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(json.dumps(content), encoding="utf-8")
    text = table.markdown(tmp_path, Path("docs"))
    assert "(docs/peers.png)" in text
    rows = [line for line in text.splitlines() if line.startswith("| Forgetful | ")]
    assert rows[0].endswith("| yes | no, 0 of 4 |")
    peers_picture.draw_peers(content, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_a_state_that_is_moved_to_a_wrong_place_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = _entry("misplaced", "torch", f"{__name__}:Misplaced")
    monkeypatch.setattr(roster, "ENTRIES", (entry,))
    monkeypatch.setattr(run, "carry_out", _carry_out_here)
    arguments = bench_peers.parse(
        None, 1, ["--quick", f"--output={tmp_path}", f"--data={tmp_path}"]
    )
    found = bench_peers.Found(entry)
    bench_peers.PeersBenchmark(SMALL, arguments).restore(found)
    assert found.facts["batch at 90% as uninterrupted"] is False


def test_a_loader_that_replays_is_not_tried_where_it_would_take_minutes(tmp_path: Path) -> None:
    arguments = bench_peers.parse(
        None, 1, ["--quick", f"--output={tmp_path}", f"--data={tmp_path}"]
    )
    sizes = dataclasses.replace(SMALL, lengths=(1_000, 100_000), limit=60.0)
    benchmark = bench_peers.PeersBenchmark(sizes, arguments)
    shorter = measurement_name("torch_torchvision", "restore", 2, 1_000)
    for seconds, is_too_long in ((1.1, False), (1.3, True)):
        found = bench_peers.Found(entry_of("torch_torchvision"), values={shorter: [seconds]})
        assert benchmark._is_too_long(found, 100_000, 2) is is_too_long
        assert not benchmark._is_too_long(found, 1_000, 2)
    limited = bench_peers.Found(entry_of("torch_torchvision"), facts={shorter: "> 60 s"})
    assert benchmark._is_too_long(limited, 100_000, 2)


def test_photographs_that_fit_into_a_buffer_are_no_proof(content: dict[str, Any]) -> None:
    facts = dict(_loader(content, "ours")["facts"])
    assert peers_table.verdicts_of({"facts": facts}, 2) == ("yes", "yes")
    facts["batch at 90% as uninterrupted"] = False
    assert peers_table.verdicts_of({"facts": facts}, 2)[0] == "no, another at 90%"


def test_a_pass_in_a_fresh_process_is_watched(tmp_path: Path) -> None:
    work = {"num_samples": 600, "batch_size": 10, "num_workers": 2, "photographs": []}
    order = Order(
        peer="torch_torchvision", kind=NUMBERS, work={**work, "folder": str(tmp_path)}, report=""
    )
    found = run.carry_out(dataclasses.replace(order, digests=True), watch_memory=True)
    numbers = [number for batch in found["batches"] for number in batch["numbers"]]
    assert sorted(numbers) == list(range(600))
    assert found["peak_bytes"] > 2**20
    assert found["first_batch_at"] > found["process_started_at"]
    with pytest.raises(run.PassFailed, match="StopIteration"):
        run.carry_out(dataclasses.replace(order, peer="nobody"))
    with pytest.raises(run.PassTooLong):
        run.carry_out(order, limit=0.0)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_adapter_that_is_installed_is_one(entry: Entry) -> None:
    if not entry.is_installed:
        pytest.skip(f"{entry.module} is not installed")
    if entry.module in ("litdata", "streaming"):
        pytest.skip(f"{entry.module} is tried where the benchmark runs")
    peer = entry.load()
    assert isinstance(peer, Peer)
    assert entry.has_state != isinstance(peer, Replaying)
