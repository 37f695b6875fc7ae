"""The public surface changes only on purpose."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import stateful_gpu_loader
from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.config import ARGUMENTS

PUBLIC = {
    "ArraySource",
    "BadSample",
    "BatchInfo",
    "Caffe2LMDBSource",
    "CaffeLMDBSource",
    "CallableSource",
    "Checkpoint",
    "CheckpointError",
    "CheckpointNotFound",
    "CocoSource",
    "DistributedShuffledSampler",
    "FolderSource",
    "HuggingFaceSource",
    "LoaderError",
    "MissingDependency",
    "MixedDataset",
    "NoSuchPlace",
    "ParquetShards",
    "ParquetSource",
    "PreparedSource",
    "RNG",
    "RecordIOShards",
    "RecordIOSource",
    "SampleInfo",
    "ShardedDataset",
    "ShuffledSampler",
    "StateMismatch",
    "StatefulGPULoader",
    "TFRecordShards",
    "TFRecordSource",
    "TarShards",
    "TarSource",
    "UnsupportedLoader",
    "UnsupportedTransform",
    "WeightedSampler",
    "WorkerLost",
    "gather_state_dict",
    "merge_state_dicts",
    "ragged_collate",
    "start_workers",
    "transforms",
    "verify_resume",
}


def test_public_names_are_locked() -> None:
    assert set(stateful_gpu_loader.__all__) == PUBLIC
    assert all(hasattr(stateful_gpu_loader, name) for name in PUBLIC)


@pytest.mark.parametrize(("name", "module"), stateful_gpu_loader._MOVED.items())
def test_a_name_that_has_moved_is_deprecated_here(name: str, module: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"stateful_gpu_loader.{module} import {name}"):
        found = getattr(stateful_gpu_loader, name)
    assert found is getattr(importlib.import_module(f"stateful_gpu_loader.{module}"), name)


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="ShufledSampler"):
        stateful_gpu_loader.ShufledSampler  # noqa: B018


def test_the_table_of_modules_is_what_type_checkers_see() -> None:
    """Type checkers read the imports; at run time the table replaces them."""
    tree = ast.parse(Path(stateful_gpu_loader.__file__).read_text())
    imported = {
        (alias.name, (node.module or "").removeprefix("stateful_gpu_loader."))
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    table = stateful_gpu_loader._MODULE_OF
    assert imported == {*table.items(), ("transforms", "stateful_gpu_loader")}


def test_the_table_of_arguments_lists_the_signature() -> None:
    """Each argument is an attribute of the same name, whose row says when it may change."""
    assert set(ARGUMENTS) == set(inspect.signature(StatefulGPULoader).parameters)
    loader = StatefulGPULoader([1, 2, 3], batch_size=2, shuffle=True, seed=5)
    for name in ARGUMENTS:
        assert hasattr(loader, name), name


def test_signature_extends_that_of_the_parents() -> None:
    """All arguments of the parents are explicit, in their order, with their defaults."""
    own = inspect.signature(StatefulGPULoader).parameters
    for parent in (StatefulDataLoader, DataLoader):
        theirs = inspect.signature(parent).parameters
        assert [name for name in own if name in theirs] == list(theirs)
        for name, parameter in theirs.items():
            assert own[name].default == parameter.default, name
            assert own[name].kind == parameter.kind, name
    kinds = {parameter.kind for parameter in own.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


_NEEDED = """
import pickle, sys
import stateful_gpu_loader as package

assert package.samplers.ShardSampler is not None
assert package.errors.LoaderError is package.LoaderError
assert set(package.__all__) <= set(dir(package))
assert pickle.loads(pickle.dumps(package.FolderSource)) is package.FolderSource

from stateful_gpu_loader import *
optional = {
    "torchvision", "torchcodec", "nvidia.dali", "lightning", "matplotlib", "skimage", "lmdb",
    "pyarrow", "fsspec", "zstandard", "google_crc32c", "webdataset", "pycocotools", "datasets",
}
assert not optional & set(sys.modules), optional & set(sys.modules)

import torch
samples = torch.utils.data.TensorDataset(torch.arange(8))
loader = StatefulGPULoader(samples, batch_size=4, shuffle=True, seed=1)
next(iter(loader))
loader.load_state_dict(loader.state_dict())
assert len(list(loader)) == 1
transforms.Compose([])
assert "torchvision" not in sys.modules
transforms.Compose([transforms.RandomHorizontalFlip()])
assert "torchvision.transforms.v2" in sys.modules
"""


@pytest.mark.processes
def test_packages_are_imported_when_they_are_needed() -> None:
    """After ``import stateful_gpu_loader``, its modules are attributes. All public names need no
    optional package, and a loader of other samples than images needs no torchvision. Recipes import
    it before workers are forked.
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", _NEEDED], check=True)


_AT_ONCE = """
import threading
import stateful_gpu_loader

barrier = threading.Barrier(12)

def use(first):
    names = stateful_gpu_loader.__all__[first:] + stateful_gpu_loader.__all__[:first]
    barrier.wait()
    for name in names:
        getattr(stateful_gpu_loader, name)

threads = [threading.Thread(target=use, args=(3 * i,)) for i in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_may_use_their_first_names_at_the_same_time() -> None:
    """Imports of torch's modules that run at the same time abort the process, or fail."""
    done = subprocess.run(
        [sys.executable, "-c", _AT_ONCE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
