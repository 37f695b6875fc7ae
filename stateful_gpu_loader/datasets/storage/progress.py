"""A progress bar for what may take long while a dataset is opened, such as building an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY = 1.0
"""Seconds before a bar appears."""


@contextmanager
def progress_bar(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how much has been done of a work that may take long.

    A bar is drawn on stderr if that is a terminal, tqdm is installed, and the work takes more than
    :data:`DELAY`.

    Args:
        description: what is done, as ``"indexing train.tar"``.
        total: how much there is to do.
        unit: what it is counted in; ``"B"`` is bytes.

    >>> with progress_bar("indexing train.tar", 1 << 20, "B") as note:
    ...     note(1 << 19)
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield lambda done: None
        return
    with tqdm(
        desc=description,
        total=total,
        unit=unit,
        unit_scale=True,
        delay=DELAY,
        leave=False,
        disable=None,
    ) as bar:
        yield lambda done: None if bar.disable else bar.update(done - bar.n)
