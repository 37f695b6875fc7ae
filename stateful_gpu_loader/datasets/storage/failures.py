"""The words for a failure of the storage: what failed, where, while what was read."""

from __future__ import annotations


def failed(error: OSError, path: str, what: str) -> OSError:
    """The failure with the file and what was read from it; of the same kind.

    Args:
        error: as the operating system or a client of remote files raised it.
        path: of the file.
        what: was read.

    >>> failed(FileNotFoundError(2, "No such file or directory"), "a.tar", "sample 3")
    FileNotFoundError(2, 'No such file or directory, sample 3')
    """
    if error.errno is not None and error.strerror is not None:
        # OSError picks the kind by the number.
        return OSError(error.errno, f"{error.strerror}, {what}", path)
    text = str(error) if path in str(error) else f"{path!r}: {error}"
    kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
    return kind(f"{text}, {what}")
