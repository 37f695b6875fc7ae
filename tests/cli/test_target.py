"""MODULE:FACTORY: how it is found, what it is passed, and the error for each mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from stateful_gpu_loader.cli.target import FactoryError, factory_of

MODULE = """
from torch.utils.data import DataLoader

DATA = list(range(10))
LOADER = DataLoader(DATA)

def make(batch_size=2, name="x", drop_last=False):
    assert isinstance(name, str)
    return DataLoader(DATA, batch_size=batch_size, drop_last=drop_last)

def needs(batch_size):
    return make(batch_size)

def fails():
    raise RuntimeError("no data here")

def nothing():
    return None
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"a_training_script_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_a_new_loader_with_each_call(module: str) -> None:
    make = factory_of(f"{module}:make")
    assert isinstance(make(), DataLoader)
    assert make() is not make()


def test_arguments_are_read_as_python_does(module: str) -> None:
    loader = factory_of(f"{module}:make", ["batch_size=5", "drop_last=True", "name=a b"])()
    assert (loader.batch_size, loader.drop_last) == (5, True)


def test_a_file_by_its_path(module: str, tmp_path: Path) -> None:
    assert isinstance(factory_of(f"{tmp_path / module}.py:make")(), DataLoader)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("{}", [], "MODULE:FACTORY"),
        ("nowhere_at_all:make", [], "'nowhere_at_all'"),
        ("nowhere.py:make", [], "^there is no file 'nowhere.py'. Remedy: "),
        ("{}:missing", [], "make, needs, fails, nothing"),
        ("{}:LOADER", [], "not a function"),
        ("{}:needs", [], "missing a required argument: 'batch_size'"),
        ("{}:make", ["batch_sise=2"], "unexpected keyword argument 'batch_sise'"),
        ("{}:make", ["=2"], "KEY=VALUE"),
        ("{}:fails", [], "RuntimeError: no data here"),
        ("{}:nothing", [], "NoneType"),
    ],
)
def test_mistakes(module: str, name: str, arguments: list[str], says: str) -> None:
    with pytest.raises(FactoryError, match=says):
        factory_of(name.format(module), arguments)()


def test_a_module_with_a_missing_import(tmp_path: Path, module: str) -> None:
    (tmp_path / "wants_more.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(FactoryError, match=r"wants_more .*ModuleNotFoundError"):
        factory_of("wants_more:make")
