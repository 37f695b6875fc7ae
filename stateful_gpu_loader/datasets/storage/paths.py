"""Paths and URLs from users: one or several, with braces or wildcards."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from stateful_gpu_loader.datasets.storage.remote import glob_remote

AnyPath = str | os.PathLike[str]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|[A-Za-z][A-Za-z0-9+.-]*::")
_RELATIVE_FILE = re.compile(r"(^|::)(file|local)://(?![/~])")
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")


def is_url(path: str) -> bool:
    """Return whether fsspec reads the path, rather than the operating system.

    >>> is_url("s3://bucket/a.tar"), is_url("simplecache::https://host/a.tar"), is_url("a/b.tar")
    (True, True, False)
    """
    return _URL.match(path) is not None


def absolute(path: AnyPath) -> str:
    """Return the absolute local path, with ``~`` expanded."""
    return os.path.abspath(os.path.expanduser(path))


def without_query(path: str) -> str:
    """Return a URL without its query, or a local path unchanged.

    >>> without_query("https://host/a.tar.gz?signature=1")
    'https://host/a.tar.gz'
    """
    return path.partition("?")[0] if is_url(path) else path


def as_paths(paths: AnyPath | Iterable[AnyPath]) -> list[str]:
    """Return absolute paths and URLs, in the order given.

    Args:
        paths: one or several. ``{000..011}`` expands to a range of numbers and ``{a,b}`` to
            alternatives, as in webdataset. In a local path that does not exist itself, ``*``, ``?``
            and ``[...]`` expand to the sorted matching files. In a URL only ``*`` does.

    Raises:
        ValueError: no path is given, or one is given twice.
        FileNotFoundError: a wildcard matches nothing.

    >>> as_paths("s3://bucket/{train,val}-{08..10}.tar")[:3]
    ['s3://bucket/train-08.tar', 's3://bucket/train-09.tar', 's3://bucket/train-10.tar']
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = [path for each in given for text in _expand(os.fspath(each)) for path in _resolve(text)]
    if not found:
        raise ValueError(f"{paths = } names no file. Remedy: give a path, or several")
    if len(set(found)) < len(found):
        twice = next(path for i, path in enumerate(found) if path in found[:i])
        raise ValueError(f"{twice!r} is given twice. Remedy: give each file once")
    return found


def is_apple_double(name: str) -> bool:
    """Return whether the file is an AppleDouble file: macOS metadata beside another file.

    Its name is ``._`` and the other file's name.

    >>> is_apple_double("._cat.jpg"), is_apple_double("cat._.jpg")
    (True, False)
    """
    return name.startswith("._")


def names_of(paths: list[str]) -> list[str]:
    """Return the paths relative to their deepest common folder.

    URLs lose their query, such as a signature.

    Raises:
        ValueError: two paths have the same name.

    >>> names_of(["/data/train/a.tar", "/data/val/b.tar"]), names_of(["s3://bucket/c.tar"])
    (['train/a.tar', 'val/b.tar'], ['c.tar'])
    """
    parts = [PurePosixPath(without_query(path)).parts for path in paths]
    common = 0
    shortest = min(map(len, parts))
    while common < shortest - 1 and len({each[common] for each in parts}) == 1:
        common += 1
    names = ["/".join(each[common:]) for each in parts]
    if len(set(names)) < len(names):
        name = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"several paths have the name {name!r}. Remedy: give each file once")
    return names


def _expand(text: str) -> Iterator[str]:
    match = _BRACES.search(text)
    if match is None or os.path.exists(text):
        yield text
        return
    first, last, choice = match.groups()
    if choice is not None:
        choices = choice.split(",")
    else:
        numbers = range(int(first), int(last) + 1)
        choices = [str(number).zfill(len(first)) for number in numbers]
    for choice in choices:
        yield from _expand(text[: match.start()] + choice + text[match.end() :])


def _resolve(text: str) -> list[str]:
    if is_url(text):
        # fsspec would resolve it against the working directory at each read.
        text = _RELATIVE_FILE.sub(lambda found: f"{found[0]}{os.getcwd()}/", text)
        if "*" not in text:
            return [text]
        found = [
            url
            for url in glob_remote(text)
            if not is_apple_double(without_query(url).rpartition("/")[2])
        ]
        if not found:
            raise FileNotFoundError(f"no file matches {text!r}. Remedy: correct the URL")
        return found
    path = absolute(text)
    if not glob.has_magic(path) or os.path.exists(path):
        return [path]
    found = sorted(glob.glob(path))
    if not found:
        raise FileNotFoundError(f"no file matches {path!r}. Remedy: correct the path")
    return found
