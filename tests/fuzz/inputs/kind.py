"""Interface of a kind of input: valid examples, changes to them, and reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.fuzz.inputs import changed_bytes

MIB = 1 << 20


class Broken(Exception):
    """A reader broke its contract without raising an error."""


class Kind(ABC):
    """A kind of input; an instance lives in the process that reads.

    Args:
        folder: private folder that it may write to.
    """

    name: ClassVar[str]
    refusals: ClassVar[tuple[type[Exception], ...]] = (ValueError,)
    """Types that may be raised. A subclass counts as another type."""
    names_remedy: ClassVar[bool] = True
    """Whether the text of each refusal names a remedy."""
    warns: ClassVar[tuple[type[Warning], ...]] = ()
    """Warnings that the reader's documentation announces."""
    writes: ClassVar[bool] = False
    """Whether a library writes its own warnings to the standard error while reading."""
    memory: ClassVar[int] = 128 * MIB
    """Bytes by which one input may raise the peak memory of the process."""
    share: ClassVar[float] = 1.0
    """Share of inputs of this kind, relative to the others."""

    examples: Sequence[Any]
    """Valid contents, in an order that is the same in every process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def change(self, random: Random, content: Any) -> Any:
        """Return the content with one change; the argument stays unchanged."""
        return changed_bytes.changed(random, content)

    @abstractmethod
    def read(self, content: Any, example: int) -> None:
        """Read the content as a user's program would, and check the result.

        Args:
            content: made of the example of this number.

        Raises:
            Exception: of the types of ``refusals``, if the content is refused.
            Broken: the result is wrong, or a refusal changed something.
        """
