"""Arguments that commands share: MODULE:FACTORY for a loader, PATH and --where for states."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateful_gpu_loader.errors import LoaderError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

FactoryArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY",
        help="A function that returns your loader. Example: train:make_loader or train.py:make_it",
    ),
]
ArgOption = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        metavar="KEY=VALUE",
        help="An argument of the function; repeat the option for more. Numbers, True, False, None "
        "and quoted strings are read as in Python, anything else is a string.",
    ),
]


class FactoryError(LoaderError):
    """MODULE:FACTORY cannot be found or called, or does not return a loader."""


def factory_of(target: str, arguments: Sequence[str] | None = ()) -> Callable[[], DataLoader[Any]]:
    """Return a function without arguments that returns a new loader.

    Args:
        target: ``MODULE:FACTORY``, where the module is a dotted name, importable from the current
            folder, or the path of a Python file.
        arguments: arguments of the function, each as ``KEY=VALUE``.

    Raises:
        FactoryError: the module or function does not exist, it raises an error or does not take the
            arguments, or its result is not a DataLoader.
    """
    from torch.utils.data import DataLoader

    module_name, separator, name = target.rpartition(":")
    if not (separator and module_name and name):
        raise FactoryError(
            f"{target!r} is not MODULE:FACTORY. Remedy: name a function that returns your loader, "
            "for example train:make_loader"
        )
    module = _module_of(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise FactoryError(f"{module_name} has no {name!r}. {_callables_of(module)}")
        found = getattr(found, part)
    if isinstance(found, DataLoader) or not callable(found):
        raise FactoryError(
            f"{target} is {type(found).__name__}, not a function. Remedy: name a function that "
            "returns a new loader each time it is called"
        )
    keywords = dict(map(_keyword, arguments or ()))
    return partial(_called, found, keywords, target)


def _called(function: Any, keywords: dict[str, Any], target: str) -> DataLoader[Any]:
    from torch.utils.data import DataLoader

    try:
        inspect.signature(function).bind(**keywords)
    except TypeError as error:
        raise FactoryError(
            f"{target}{inspect.signature(function)}: {error}. Remedy: pass the arguments with "
            "--arg KEY=VALUE"
        ) from None
    try:
        loader = function(**keywords)
    except LoaderError:
        raise
    except Exception as error:
        raise FactoryError(f"{target} raised {_where(error)}") from error
    if not isinstance(loader, DataLoader):
        raise FactoryError(
            f"{target} returned {type(loader).__name__}, not a DataLoader. Remedy: return a "
            "StatefulGPULoader, a StatefulDataLoader or a DataLoader"
        )
    return loader


def _module_of(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return _imported_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(".")[0] == error.name.split(".")[0]:
            raise FactoryError(
                f"there is no module {name!r} here. Remedy: run the command in the folder from "
                "which your program imports the module, or give the path of the module's file"
            ) from None
        raise FactoryError(f"importing {name} raised {_where(error)}") from error
    except LoaderError:
        raise
    except Exception as error:
        raise FactoryError(f"importing {name} raised {_where(error)}") from error


def _imported_file(path: Path) -> ModuleType:
    """Import a file under the name by which worker processes find it."""
    if not path.is_file():
        raise FactoryError(
            f"there is no file {str(path)!r}. Remedy: give its path from the current folder, "
            f"{os.getcwd()!r}, or an absolute path"
        )
    sys.path.insert(0, str(path.resolve().parent))
    return importlib.import_module(path.stem)


def _callables_of(module: ModuleType) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    return f"Its functions: {', '.join(own)}" if own else "It has no functions"


def _keyword(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not (separator and key.isidentifier()):
        raise FactoryError(f"--arg {text!r} is not KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{at}"


def _present(path: Path) -> Path:
    """Return the path; a wrong path fails before torch is imported.

    Raises:
        LoaderError: the path does not exist.
    """
    if not path.exists():
        raise LoaderError(f"there is no file or folder {str(path)!r}")
    return path


StatesArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        callback=_present,
        help="A checkpoint, file or folder, of torch.save, Lightning, Accelerate, transformers, "
        "torchtitan, torch.distributed.checkpoint or this package, or a JSON file.",
    ),
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="KEYS",
        help="Use only the state at this place, if there are several: the keys that lead to it, "
        "joined by dots, as inspect shows them after the file's name. Example: loaders.train",
    ),
]
