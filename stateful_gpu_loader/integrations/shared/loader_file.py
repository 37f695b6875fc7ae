"""loader_state.json: the loaders' states, in a trainer's checkpoint folder beside its own files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.errors import CheckpointNotFound, StateMismatch

FILE_NAME = "loader_state.json"

_LOADERS, _FACTS = "loaders", "trainer"


def write_states(
    folder: str | os.PathLike[str], states: Sequence[Any], facts: Mapping[str, Any] | None = None
) -> str:
    """Write the file atomically; one process does it for all ranks.

    Args:
        folder: of the checkpoint.
        states: of all loaders, in the order in which they were given to the trainer.
        facts: further values that the trainer's adapter needs at a resume.

    Raises:
        CheckpointError: a state has no form in JSON, or the file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_states(folder, [{"position": 8}], {"steps": 2})
    ...     states, facts = read_states(folder, 1, saved_by="prepare_loader()")
    >>> states, facts
    ([{'position': 8}], {'steps': 2})
    """
    checkpoint = Checkpoint()
    checkpoint.set_state(_LOADERS, {f"loader_{i}": state for i, state in enumerate(states)})
    checkpoint.set_state(_FACTS, dict(facts or {}))
    return checkpoint.save(os.path.join(_plain(folder), FILE_NAME))


def read_states(
    folder: str | os.PathLike[str], number: int, *, saved_by: str
) -> tuple[list[Any], dict[str, Any]]:
    """The states and the facts of :func:`write_states`.

    Args:
        folder: of the checkpoint.
        number: how many loaders there are now.
        saved_by: the function or class that writes the file, for the error message.

    Raises:
        CheckpointNotFound: the checkpoint has no such file.
        CheckpointError: the file is truncated, altered or foreign.
        StateMismatch: it holds the states of another number of loaders.
    """
    checkpoint = Checkpoint()
    try:
        checkpoint.load(os.path.join(_plain(folder), FILE_NAME))
    except CheckpointNotFound:
        raise CheckpointNotFound(
            f"{os.fspath(folder)!r} has no {FILE_NAME}, so nobody knows where {number} loaders "
            f"stood. Remedy: resume from a checkpoint that was saved with {saved_by}"
        ) from None
    states = list(checkpoint.get_state(_LOADERS).values())
    if len(states) != number:
        raise StateMismatch(
            "number of loaders",
            saved=len(states),
            present=number,
            remedy="prepare the loaders that the checkpoint was saved with, in the same order",
        )
    return states, checkpoint.get_state(_FACTS)


def _plain(folder: str | os.PathLike[str]) -> str:
    """The path with its braces escaped, which Checkpoint would read as a pattern."""
    return os.fspath(folder).replace("{", "{{").replace("}", "}}")
