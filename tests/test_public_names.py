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


@pytest.mark.processes
def test_modules_are_attributes_after_an_import_of_the_package_alone() -> None:
    _run(
        "import stateful_gpu_loader as package\n"
        "assert package.samplers.ShardSampler is not None\n"
        "assert package.errors.LoaderError is package.LoaderError\n"
        "assert set(package.__all__) <= set(dir(package))\n"
        "import pickle\n"
        "assert pickle.loads(pickle.dumps(package.FolderSource)) is package.FolderSource\n"
    )


def test_the_table_of_arguments_lists_the_signature() -> None:
    """Each argument is an attribute of the same name, whose row says when it may change."""
    assert set(ARGUMENTS) == set(inspect.signature(StatefulGPULoader).parameters)
    loader = StatefulGPULoader([0])
    assert all(hasattr(loader, name) for name in ARGUMENTS)


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


def test_every_argument_is_a_public_attribute_of_the_same_name() -> None:
    """Trainers rebuild loaders by reflection."""
    loader = StatefulGPULoader([1, 2, 3], batch_size=2, shuffle=True, seed=5)
    for name in inspect.signature(StatefulGPULoader).parameters:
        assert hasattr(loader, name), name


@pytest.mark.processes
def test_importing_the_package_imports_no_optional_one() -> None:
    optional = (
        "('torchvision', 'torchcodec', 'nvidia.dali', 'lightning', 'matplotlib', 'skimage', "
        "'lmdb', 'pyarrow', 'fsspec', 'zstandard', 'google_crc32c', 'webdataset', 'pycocotools', "
        "'datasets')"
    )
    _run(
        "import sys\n"
        "from stateful_gpu_loader import *\n"
        f"found = [name for name in {optional} if name in sys.modules]\n"
        "sys.exit(f'imported {found}' if found else 0)"
    )


@pytest.mark.processes
def test_a_loader_of_other_samples_than_images_needs_no_torchvision() -> None:
    _run(
        "import sys, torch\n"
        "from stateful_gpu_loader import StatefulGPULoader\n"
        "samples = torch.utils.data.TensorDataset(torch.arange(8))\n"
        "loader = StatefulGPULoader(samples, batch_size=4, shuffle=True, seed=1)\n"
        "batches = iter(loader)\n"
        "next(batches)\n"
        "loader.load_state_dict(loader.state_dict())\n"
        "assert len(list(loader)) == 1\n"
        "sys.exit('torchvision was imported' if 'torchvision' in sys.modules else 0)"
    )


@pytest.mark.processes
def test_recipes_import_torchvision_before_workers_are_forked() -> None:
    _run(
        "import sys\n"
        "from stateful_gpu_loader import transforms as T\n"
        "T.Compose([])\n"
        "assert 'torchvision' not in sys.modules\n"
        "T.Compose([T.RandomHorizontalFlip()])\n"
        "assert 'torchvision.transforms.v2' in sys.modules"
    )


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


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
