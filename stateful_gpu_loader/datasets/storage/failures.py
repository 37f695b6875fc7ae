"""The error of a failed read: what failed, in which file, and what was being read."""

from __future__ import annotations


def failed(error: OSError, path: str, what: str) -> OSError:
    """An OSError of the same kind that also names the file and what was read from it.

    Args:
        error: as the operating system or a client of remote files raised it.
        path: of the file.
        what: what was being read.

    >>> failed(FileNotFoundError(2, "No such file or directory"), "a.tar", "sample 3")
    FileNotFoundError(2, 'No such file or directory, sample 3')
    """
    if error.errno is not None and error.strerror is not None:
        # OSError picks the kind by the number.
        return OSError(error.errno, f"{error.strerror}, {what}", path)
    text = str(error) if path in str(error) else f"{path!r}: {error}"
    kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
    return kind(f"{text}, {what}")
