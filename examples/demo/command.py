"""Runs the experiment, and shows and evaluates it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from examples.demo.canvas import require_matplotlib
from examples.demo.comparison import compare
from examples.demo.experiment import Plan, run_experiment
from examples.demo.pictures import write_pictures
from examples.demo.progress import Progress
from examples.demo.report import OURS, as_json, exit_status, table, verdict


def run_demo(output: Path, plan: Plan | None = None) -> int:
    """Train, kill, resume and compare; print a table, write pictures and ``report.json``.

    The data set and the checkpoints are in a temporary folder.

    Args:
        output: a folder, created if missing; files of the same names are replaced.
        plan: parameters of the experiment.

    Returns:
        Exit status: 0 if our killed run equals the undisturbed one, bit for bit, else 1.

    Raises:
        LoaderError: a training process failed by itself, or an optional package is missing.
    """
    plan = Plan() if plan is None else plan
    require_matplotlib()
    output.mkdir(parents=True, exist_ok=True)
    print(
        f"{plan.num_files} JPEG files, {plan.num_epochs} epochs of {plan.steps_per_epoch} batches; "
        f"SIGKILL (✕) at batches {' and '.join(map(str, plan.kill_at))}, "
        f"a checkpoint every {plan.checkpoint_every} batches\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="stateful_gpu_loader-") as folder:
        with Progress(plan.num_steps) as progress:
            runs = run_experiment(plan, Path(folder), progress.show)
        comparisons = {name: compare(pair) for name, pair in runs.items()}
        print(f"\n{table(comparisons)}\n\n{verdict(comparisons[OURS])}\n", flush=True)
        report = output / "report.json"
        report.write_text(json.dumps(as_json(plan, runs, comparisons), indent=1) + "\n")
        written = [*write_pictures(output, plan, runs, comparisons), report]
    print("written: " + ", ".join(str(path) for path in written))
    return exit_status(comparisons)
