"""Samples of an archive: grouping of members, their values, and the choice of members.

The rules are those of the package ``webdataset``: grouping as in ``tariterators.py``, values as
from the basic decoders of ``autodecode.py``. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.storage.failures import damaged
from stateful_gpu_loader.datasets.storage.numpy_headers import read_beside_threads
from stateful_gpu_loader.datasets.storage.paths import is_apple_double
from stateful_gpu_loader.datasets.target_choice import Target, TargetChoice

KEY = "__key__"
"""Name of a sample's key among its members."""

PICKLES = frozenset(("pkl", "pickle", "pyd", "pth", "pt"))
"""Extensions of files that run code when they are loaded."""

_INTEGERS = frozenset(("cls", "cls2", "index", "inx", "id"))
_TEXTS = frozenset(("txt", "text", "transcript"))
_JSON = frozenset(("json", "jsn"))

_NPY_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

# The same expression as in webdataset.
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")


def split_name(name: str) -> tuple[str, str] | None:
    """Split a name at the first dot of its last part into key and lower-cased extension.

    Return None for names outside samples: without an extension, macOS's ``._name.jpg``, and
    metadata, which is ``__name__`` or lies in such a folder.

    >>> split_name("train/a.b/0001.left.JPG"), split_name("README"), split_name("__meta__/1.txt")
    (('train/a.b/0001', 'left.jpg'), None, None)
    """
    if name.startswith("__") and _META.match(name):
        return None
    if is_apple_double(name.rpartition("/")[2]):
        return None
    match = _NAME.match(name)
    return None if match is None else (match[1], match[2].lower())


def link_note(links: Iterable[tuple[str, str]], key: str, wanted: frozenset[str]) -> str:
    """Return a sentence about a link in place of a member, or an empty text.

    Args:
        links: (name, kind and target) of the links in the archive.

    >>> link_note([("1.jpg", "a hard link to '0.jpg'")], "1", frozenset(["jpg"]))
    " Its member '1.jpg' is a hard link to '0.jpg' and has no content: pack the tar with tar \
--hard-dereference --dereference, or tarfile.open(dereference=True)."
    """
    for name, what in links:
        parts = split_name(name)
        if parts is not None and parts[0] == key and parts[1] in wanted:
            return (
                f" Its member {name!r} is {what} and has no content: pack the tar with tar "
                "--hard-dereference --dereference, or tarfile.open(dereference=True)."
            )
    return ""


class SampleGrouping:
    """Groups consecutive members with the same key, ignoring names that belong to no sample.

    A key that returns after another key begins a second sample, as in webdataset and DALI.

    >>> grouping = SampleGrouping()
    >>> [grouping.place(name) for name in ("a.jpg", "README", "a.cls", "b.jpg")]
    [(True, 'jpg'), None, (False, 'cls'), (True, 'jpg')]
    >>> grouping.key
    'b'
    """

    def __init__(self) -> None:
        self.key: str | None = None
        self._extensions: set[str] = set()

    def place(self, name: str) -> tuple[bool, str] | None:
        """Return whether the member begins a sample, and its extension; None for no sample.

        Raises:
            ValueError: the sample already has a member with this extension.
        """
        parts = split_name(name)
        if parts is None:
            return None
        key, extension = parts
        begins = key != self.key
        if begins:
            self.key = key
            self._extensions = {extension}
        elif extension in self._extensions:
            raise ValueError(f"the sample {key!r} has two members with the extension {extension!r}")
        else:
            self._extensions.add(extension)
        return begins, extension


def value_of(extension: str, data: bytes) -> Any:
    """Convert a member's bytes, by the last part of its extension.

    ``cls``, ``cls2``, ``index``, ``inx``, ``id``: int; ``json``, ``jsn``: parsed JSON; ``txt``,
    ``text``, ``transcript``: str, from UTF-8; ``npy``: NumPy array; all others: bytes.

    Raises:
        ValueError: the bytes are malformed.

    >>> value_of("cls", b"7"), value_of("meta.json", b"[1]"), value_of("txt", b"a cat")
    (7, [1], 'a cat')
    """
    kind = extension.rpartition(".")[2]
    if kind in _INTEGERS:
        return _integer(data)
    if kind in _TEXTS:
        return data.decode("utf-8")
    if kind in _JSON:
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("its JSON is nested too deeply") from None
    return _array(data) if kind == "npy" else data


def member_value(
    extension: str,
    content: npt.NDArray[np.uint8] | memoryview,
    path: str,
    *,
    key: str,
    offset: int,
    sample: str = "",
) -> Any:
    """Convert a member with :func:`value_of`; the other arguments are for errors.

    Args:
        offset: offset of the content in the tar, in bytes.

    Raises:
        ValueError: the content is malformed; the message has the tar, the key and the byte.
    """
    try:
        return value_of(extension, content.tobytes())
    except ValueError as error:
        what = f"its member {extension!r} cannot be read{sample}: {error}"
        raise damaged(path, what, record=key, offset=offset) from error


def _integer(data: bytes) -> int:
    value = int(data)
    if not -(2**63) <= value < 2**63:
        raise ValueError("its number has more than 64 bits")
    return value


def _array(data: bytes) -> npt.NDArray[Any]:
    """Return the array of a .npy file, newly allocated; pickled objects are refused."""
    stream = io.BytesIO(data)

    def read_header() -> Any:
        stream.seek(0)
        version = np.lib.format.read_magic(stream)
        if version not in _NPY_HEADERS:
            raise ValueError(f"unknown version {version}")
        return _NPY_HEADERS[version](stream)

    try:
        shape, fortran, dtype = read_beside_threads(read_header)
    except Exception as error:
        # NumPy evaluates the header as a Python literal, which can raise many types.
        text = f"its NumPy header is malformed: {type(error).__name__}: {error}"
        raise ValueError(text) from error
    if dtype.hasobject:
        raise ValueError("its array holds pickled objects, which are never loaded")
    content = bytearray(stream.read())
    if len(content) != int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise ValueError(f"its array of shape {shape} and {dtype} has {len(content)} bytes")
    values: npt.NDArray[Any] = np.frombuffer(content, dtype=dtype)
    shaped: npt.NDArray[Any] = values.reshape(shape, order="F" if fortran else "C")
    return shaped


Names: TypeAlias = str | Sequence[str]
Missing: TypeAlias = Literal["error", "skip"]

IMAGES = ("jpg", "jpeg", "png", "webp")
"""Extensions of the images that the decoders read."""


class MemberChoice:
    """The extensions wanted from each sample.

    Args:
        image: an extension, or several; each may be a choice such as ``"jpg;png"``.
        target: as in :class:`TargetChoice`, with extensions, choices or ``"__key__"`` as names.
        missing: whether a sample that lacks a wanted member is an error or is skipped.

    Attributes:
        missing: as given.
        slots: extensions for the image, then for each member of the target; in each slot the
            first extension that a sample has is taken.

    Raises:
        ValueError: an extension is empty or belongs to pickles, or ``missing`` is unknown.
        TypeError: an argument has a wrong type.

    >>> choice = MemberChoice(image="jpg;png", target={"label": "cls", "text": "txt"})
    >>> choice.slots
    (('jpg', 'png'), ('cls',), ('txt',))
    >>> choice.target([7, "a cat"], key="0001", number=0)
    {'label': 7, 'text': 'a cat'}
    """

    slots: tuple[tuple[str, ...], ...]

    def __init__(self, image: Names, target: Target, missing: Missing = "error") -> None:
        if missing not in ("error", "skip"):
            raise ValueError(f"{missing = } is unknown. Remedy: pass 'error' or 'skip'")
        self.missing = missing
        images = [image] if isinstance(image, str) else list(image)
        if not images:
            raise ValueError(f"{image = } names no extension. Remedy: pass image='jpg'")
        self._target = TargetChoice(target)
        self._names = [name for name in dict.fromkeys(self._target.names) if name != KEY]
        self.slots = (
            tuple(part for name in images for part in _alternatives(name, "image")),
            *(_alternatives(name, "target") for name in self._names),
        )
        self._text = f"{self.slots} {self._target!r}"

    @property
    def wanted(self) -> frozenset[str]:
        return frozenset(extension for slot in self.slots for extension in slot)

    def target(self, values: list[Any], key: str, number: int) -> Any:
        """Return the target of a sample.

        Args:
            number: the target if no member is wanted.
        """
        by_name = dict(zip(self._names, values, strict=True))
        by_name[KEY] = key
        return self._target.make(by_name.__getitem__, number)

    def names(self, slot: int) -> str:
        """Describe a slot for errors."""
        return f"{'target' if slot else 'image'} ({', '.join(self.slots[slot])})"

    def __str__(self) -> str:
        """Return a text that is equal for equal choices, for fingerprints."""
        return self._text


def _alternatives(name: object, argument: str) -> tuple[str, ...]:
    if not isinstance(name, str):
        raise TypeError(
            f"{argument}= has {name!r}, not an extension. Remedy: pass names such as 'jpg'"
        )
    parts = tuple(part.strip().lower().removeprefix(".") for part in name.split(";"))
    if not all(parts) or KEY in parts:
        raise ValueError(
            f"{argument}={name!r} is not a choice of extensions. Remedy: pass names such as "
            "'jpg;png'"
        )
    pickled = [part for part in parts if part.rpartition(".")[2] in PICKLES]
    if pickled:
        raise ValueError(
            f"{argument}= names {pickled[0]!r}: such files are pickles, which run code when they "
            "are loaded, and are never loaded here. Remedy: store the values as json or npy"
        )
    return parts
