"""The examples of trainers run as scripts, are short, and report a resumed run that differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prepared_processes import run_script

FOLDER = Path(__file__).parent.parent / "examples" / "trainers"

EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "ray_train")
"""All examples except the one that tests/integrations/test_ray_train.py runs."""
ELASTIC = "torchrun_elastic"
"""Example that starts nine interpreters through torchrun."""
NOT_FAST = {
    ELASTIC: pytest.mark.ranks,
    "lightning_imagenet": (),
    "timm_train": (),
    "torchvision_classification": (),
    "transformers_no_trainer": (),
}
"""Their marks besides ``trainers``."""

# Without saved state a resumed run starts again, so every example must report a difference.
FORGETFUL = """
from stateful_gpu_loader import StatefulGPULoader
StatefulGPULoader.load_state_dict = lambda self, state_dict, accept=(): None
"""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=NOT_FAST.get(name, pytest.mark.fast)) for name in EXAMPLES],
)
@pytest.mark.trainers
def test_an_example_finds_the_resumed_run_the_same(name: str, tmp_path: Path) -> None:
    done = run_script(FOLDER / f"{name}.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.endswith("the same") for line in lines), lines
    assert not any("ANOTHER" in line for line in lines), lines


@pytest.mark.trainers
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != ELASTIC])
def test_an_example_says_that_a_run_without_its_state_is_another(name: str, tmp_path: Path) -> None:
    """The example's verdict can be negative, or the adapter raises first.

    (Processes that torchrun starts cannot be made to forget.)
    """
    done = run_script(FOLDER / f"{name}.py", folder=tmp_path, before=FORGETFUL)
    is_refused = "stateful_gpu_loader.errors." in done.stderr
    assert is_refused or "ANOTHER" in done.stdout, done.stderr
    assert is_refused == (done.returncode != 0)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) < 60


def test_the_pages_name_every_example() -> None:
    docs = FOLDER.parent.parent / "docs"
    pages = [*docs.glob("trainers/*.md"), *docs.glob("coming-from/*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for path in FOLDER.glob("*.py"):
        assert f"](../../examples/trainers/{path.name})" in text, path.name
