"""Support for frameworks that rebuild loaders by inspecting their signature."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from torch.utils.data import DataLoader

from stateful_gpu_loader.errors import LoaderError

_CONTEXT: Any = vars(DataLoader)["multiprocessing_context"]


class Rebuildable:
    """Lists all arguments of subclasses in their signature, and refuses a rebuild as another class.

    Lightning builds a loader from the attributes in its signature, so arguments that a subclass
    takes as ``**kwargs`` are listed there, too. Accelerate, which would build torch's DataLoader,
    and Ignite's DeterministicEngine, which would resume by torch's generators, are refused.

    >>> class Base(Rebuildable):
    ...     def __init__(self, size=1, *, seed=None): ...
    >>> class Derived(Base):
    ...     def __init__(self, label, **kwargs): ...
    >>> inspect.signature(Derived)
    <Signature (label, *, size=1, seed=None, **kwargs)>
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        init: Any = cls.__dict__.get("__init__")
        if not inspect.isfunction(init):
            return
        own = dict(inspect.signature(init).parameters)
        rest = [name for name, each in own.items() if each.kind is each.VAR_KEYWORD]
        if not rest:
            return
        base = next(one for one in cls.__mro__[1:] if issubclass(one, Rebuildable))
        last = own.pop(rest[0])
        passed_on = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in inspect.signature(base).parameters.items()
            if name not in own and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        signature = inspect.Signature([*own.values(), *passed_on, last])
        init.__dict__["__signature__"] = signature

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Raise an error in ``accelerator.prepare()``."""
        _refuse_accelerate()
        return False

    @property
    def next_iter_state(self) -> Any:
        """Attribute of torchdata's class, which Ignite reads to rebuild the loader."""
        _refuse_ignite()
        return self.__dict__["next_iter_state"]

    @next_iter_state.setter
    def next_iter_state(self, state: Any) -> None:
        self.__dict__["next_iter_state"] = state

    @property
    def multiprocessing_context(self) -> Any:
        """DataLoader's attribute, which Accelerate reads to build a DataLoader."""
        _refuse_accelerate()
        return _CONTEXT.__get__(self)

    @multiprocessing_context.setter
    def multiprocessing_context(self, multiprocessing_context: Any) -> None:
        _CONTEXT.__set__(self, multiprocessing_context)


def _is_asked_by(package: str) -> bool:
    """Whether the third caller up belongs to a package."""
    asks = sys._getframe(3).f_globals.get("__name__", "")
    return isinstance(asks, str) and asks.partition(".")[0] == package


def _refuse_ignite() -> None:
    if _is_asked_by("ignite"):
        raise LoaderError(
            "ignite's DeterministicEngine would build this loader again around its batches, and "
            "resume by seeding torch's generators, which do not decide the batches of a "
            "StatefulGPULoader. Remedy: use ignite.engine.Engine, with the loader among the "
            "objects of ignite.handlers.Checkpoint: to_save={'loader': loader, ...}"
        )


def _refuse_accelerate() -> None:
    if _is_asked_by("accelerate"):
        raise LoaderError(
            "accelerator.prepare() or skip_first_batches() would build a DataLoader of this "
            "loader's dataset, without its decoded images, its transforms and its state. Remedy: "
            "loader = stateful_gpu_loader.integrations.accelerate.prepare_loader(accelerator, "
            "loader)"
        )
