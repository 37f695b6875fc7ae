"""Reading a text file of paths and labels, as DALI's and Caffe's file_list."""

from __future__ import annotations

import re
from pathlib import Path

LABEL = re.compile(r"[+-]?[0-9]{1,18}")
"""Of at most 18 digits, which fit into 64 bits."""


def read_file_list(path: Path) -> tuple[list[str], list[int]]:
    """Paths and labels, in the order of the file.

    A line is a path and, after white space, a label; a path may contain spaces. Blank lines and
    lines that start with ``#`` are skipped. The file is UTF-8, whatever the locale.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line has no label, or one that is no integer; or there is no line at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "list.txt"
    ...     _ = path.write_text("cats/tom the cat.jpg 0\\ndogs/rex.jpg 1\\n")
    ...     read_file_list(path)
    (['cats/tom the cat.jpg', 'dogs/rex.jpg'], [0, 1])
    """
    names, labels = [], []
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            words = line.rsplit(maxsplit=1)
            if not words or line.lstrip().startswith("#"):
                continue
            if len(words) == 1 or not LABEL.fullmatch(words[1]):
                raise ValueError(
                    f"{str(path)!r}, line {number}: {line.rstrip()!r} does not end with an integer "
                    "label. Remedy: write 'relative/path label' on each line"
                )
            names.append(words[0].lstrip())
            labels.append(int(words[1]))
    if not names:
        raise ValueError(
            f"{str(path)!r} names no file. Remedy: write 'relative/path label' on each line"
        )
    return names, labels
