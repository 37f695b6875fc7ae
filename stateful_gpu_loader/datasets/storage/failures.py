"""Errors of reading: unreadable files and damaged records."""

from __future__ import annotations

from typing import Any


def failed(error: OSError, path: str, what: str) -> OSError:
    """Return an OSError of the same kind that also names the file and what was read from it.

    Args:
        error: error raised by the operating system or by a client of remote files.

    >>> failed(FileNotFoundError(2, "No such file or directory"), "a.tar", "sample 3")
    FileNotFoundError(2, 'No such file or directory, sample 3')
    """
    if error.errno is not None and error.strerror is not None:
        # OSError chooses its subclass by the number.
        return OSError(error.errno, f"{error.strerror}, {what}", path)
    text = str(error) if path in str(error) else f"{path!r}: {error}"
    kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
    return kind(f"{text}, {what}")


REMEDY = "fetch the file again, or leave the record out with on_bad_sample="

INDEX_REMEDY = "fetch or write the file again, or leave it out of paths="
"""Remedy for a file whose records are indexed before a loader reads any."""


def damaged(
    path: str, what: str, *, record: Any = None, offset: int | None = None, remedy: str = REMEDY
) -> ValueError:
    """Return the ValueError for a malformed record.

    Args:
        record: number or key of the record in the file.
        offset: offset of the damage in bytes.
        remedy: what the user can do.

    >>> damaged("a.tar", "its checksum differs", record=3, offset=1536)
    ValueError("'a.tar', record 3, byte 1536: its checksum differs. Remedy: fetch the file again, \
or leave the record out with on_bad_sample=")
    """
    where = repr(path)
    if record is not None:
        where += f", record {record!r}"
    if offset is not None:
        where += f", byte {offset}"
    return ValueError(f"{where}: {what}. Remedy: {remedy}")
