"""What a kind of input defines: valid examples, how they are changed, and how they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.fuzz.inputs import changed_bytes

MIB = 1 << 20


class Broken(Exception):
    """A reader has broken its contract without raising anything itself."""


class Kind(ABC):
    """A kind of input; an object of it lives in the process that reads.

    Args:
        folder: its own, in which it may write.
    """

    name: ClassVar[str]
    refusals: ClassVar[tuple[type[Exception], ...]] = (ValueError,)
    """Exactly these types may be raised; a subclass counts as another type."""
    names_remedy: ClassVar[bool] = True
    """Whether the text of each refusal says what to do."""
    warns: ClassVar[tuple[type[Warning], ...]] = ()
    """Warnings that the reader's documentation announces."""
    writes: ClassVar[bool] = False
    """Whether a library that reads it writes its own warnings to the standard error."""
    memory: ClassVar[int] = 128 * MIB
    """By how many bytes the peak of the process may grow through one input."""
    share: ClassVar[float] = 1.0
    """How many of all inputs are of this kind, relative to the others."""

    examples: Sequence[Any]
    """Valid contents, in an order that is the same in every process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def change(self, random: Random, content: Any) -> Any:
        """The content with one change; what it was given stays as it is."""
        return changed_bytes.changed(random, content)

    @abstractmethod
    def read(self, content: Any, example: int) -> None:
        """Read the content as a user's program would, and check what comes.

        Args:
            content: made of the example of this number.

        Raises:
            Exception: of the types of ``refusals`` where the content is refused.
            Broken: what was read is wrong, or something was changed by a refusal.
        """
