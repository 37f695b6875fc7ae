"""States of loaders, of samplers' generators and of torchdata's loader."""

from __future__ import annotations

import itertools
import json
import random
import traceback
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader import RNG, StatefulGPULoader
from stateful_gpu_loader.errors import LoaderError, StateMismatch
from stateful_gpu_loader.tools.differences import same
from tests.damaged import ERRORS, Damaged, N
from tests.fuzz.inputs import changed_values
from tests.fuzz.inputs.drawn import is_the_packages
from tests.fuzz.inputs.kind import Broken, Kind
from tests.fuzz.inputs.kinds.json_texts import changed_json
from tests.stream_kinds import KINDS as STREAMS
from tests.tools.checkpoints import after_in_torchdata

_BATCHES = 3
_TESTS = Path(__file__).parents[3]


def loaders() -> list[tuple[Any, Any]]:
    """Return a loader of each kind of stream, and its state after some batches."""
    found = []
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    for make in STREAMS.values():
        loader = make()
        taken = list(itertools.islice(iter(loader), _BATCHES))
        del taken
        found.append((make(), loader.state_dict()))
    bad = StatefulGPULoader(Damaged(N, ERRORS), batch_size=4, seed=1, on_bad_sample="drop")
    list(itertools.islice(iter(bad), _BATCHES))
    found.append((bad, bad.state_dict()))
    theirs: Any = StatefulGPULoader(list(range(10)), batch_size=2, shuffle=True, seed=1)
    found.append((theirs, after_in_torchdata(2)))
    return found


class LoaderStates(Kind):
    """Nested values through ``load_state_dict``."""

    name = "loader state"
    share = 4
    refusals = (StateMismatch,)
    # Warns that another decoder's version, or another batch size, is used from now on.
    warns = (UserWarning,)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pairs = loaders()
        self._loaders = [loader for loader, _ in pairs]
        self.examples = [state for _, state in pairs]

    def change(self, random: Random, content: Any) -> Any:
        return changed_values.changed(random, content)

    def read(self, content: Any, example: int) -> None:
        load_and_check(self._loaders[example], content)


class JsonStates(LoaderStates):
    """The same as JSON text."""

    name = "loader state, JSON"
    share = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        kept = [i for i, state in enumerate(self.examples) if _is_json(state)]
        self._loaders = [self._loaders[i] for i in kept]
        self.examples = [json.dumps(self.examples[i]).encode() for i in kept]

    def change(self, random: Random, content: bytes) -> bytes:
        return changed_json(random, content)

    def read(self, content: bytes, example: int) -> None:
        try:
            state = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise StateMismatch("", saved="", present="", remedy="no JSON") from error
        load_and_check(self._loaders[example], state)


class GeneratorStates(Kind):
    """States through ``RNG.load_state_dict`` and ``RNG.set_state``."""

    name = "RNG state"
    share = 1
    refusals = (StateMismatch,)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._rng = RNG(3)
        before = self._rng.get_state()
        self._rng.uniform()
        self.examples = [self._rng.state_dict(), before, self._rng.get_state()]

    def change(self, random: Random, content: Any) -> Any:
        return changed_values.changed(random, content)

    def read(self, content: Any, example: int) -> None:
        before = self._rng.state_dict()
        try:
            if isinstance(content, str):
                self._rng.set_state(content)
            else:
                self._rng.load_state_dict(content)
        except Exception:
            if self._rng.state_dict() != before:
                raise Broken("a refusal changed the generator") from None
            raise
        self._rng.uniform()


def load_and_check(loader: Any, state: Any) -> None:
    """Load a state. A refusal must change nothing; an accepted state must load again."""
    before = loader.state_dict()
    try:
        loader.load_state_dict(state)
    except Exception as error:
        if _is_of_the_tests(error):
            return
        if not _is_same(loader.state_dict(), before):
            raise Broken("a refusal changed the loader's state") from error
        raise
    taken = loader.state_dict()
    loader.load_state_dict(taken)
    if not _is_same(loader.state_dict(), taken):
        loader.load_state_dict(before)
        raise Broken("the loader's own state is not what it was after it was loaded")
    try:
        next(iter(loader), None)
    except LoaderError:
        pass
    except Exception as error:
        # A dataset or sampler with a changed state may fail in its own way, or give torch values
        # that it cannot collate.
        if is_the_packages(error):
            raise
    loader.load_state_dict(before)


def _is_same(one: Any, other: Any) -> bool:
    try:
        return same(one, other)
    except (RecursionError, NotImplementedError):
        return True  # a user's object may hold any nesting, and tensors without values


def _is_of_the_tests(error: BaseException) -> bool:
    """Return whether a dataset or sampler of the tests raised the error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return _TESTS in Path(last.filename).parents


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except TypeError:
        return False


KINDS = (LoaderStates, JsonStates, GeneratorStates)
