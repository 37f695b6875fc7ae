"""Description of what must not change in a pipeline, for comparison with a state.

It covers the graph, and the data at readers' paths. The graph is read from
``Pipeline.serialize()``, a protocol buffer, from these fields:

- of the pipeline: 2 (batch size), 5 (operators), 7 (outputs) and 9 (seed);
- of an operator: 1 (kind), 2 (inputs), 4 (arguments) and 5 (name);
- of an argument: 1 (name), 3 (float), 4 (int), 5 (string), 6 (bool) and 7 (elements).
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from struct import pack, unpack
from typing import Any

from stateful_gpu_loader.datasets.protobuf import fields, signed
from stateful_gpu_loader.integrations.dali_identity import (
    DATA,
    NOT_GIVEN,
    Differences,
    brief,
    differences,
    digest,
)

LONGEST_TEXT = 8192
"""Maximum length of a description, in characters.

In a longer description, digests replace operators other than readers.
"""

NO_OPERATOR = "no such operator"

_NUMBERED = re.compile(r"__(?P<kind>.+)_(?P<number>\d+)")
"""Matches the name that DALI gives to an unnamed operator."""

_OPERATOR, _LENGTH, _READER_NAME = "operator ", ".epoch_size", "reader_name"

Description = dict[str, Any]
"""JSON values by field.

Fields are ``batch_size`` and similar; the kind of an operator, as ``operator reader``; its
arguments, as ``reader.initial_fill``.
"""


def describe(graph: Graph, *, last_batch_policy: str) -> Description:
    """Describe everything that determines the batches and is known before the pipeline is built.

    The number of threads, the device number and the depth of queues may change.
    """
    described: Description = {
        "batch_size": graph.batch_size,
        "last_batch_policy": last_batch_policy,
        "seed": graph.seed,
    }
    described |= {f"{_OPERATOR}{operator.name}": operator.kind for operator in graph.operators}
    described["outputs"] = brief(list(graph.outputs))
    arguments = {operator.name: _arguments(operator) for operator in graph.operators}
    is_long = len(json.dumps([described, arguments])) > LONGEST_TEXT
    for operator in graph.operators:
        if is_long and not operator.kind.startswith("readers."):
            described[f"{_OPERATOR}{operator.name}"] += f" {digest(arguments[operator.name])}"
            continue
        for name, value in arguments[operator.name].items():
            described[f"{operator.name}.{name}"] = value
    return described


def of_readers(metas: Mapping[str, Mapping[str, int]], reader_name: str | None) -> Description:
    """Describe the properties of readers known once the pipeline is built.

    Args:
        metas: result of ``Pipeline.reader_meta()``.
        reader_name: name of the reader that ends epochs.
    """
    lengths = {f"{name}{_LENGTH}": meta["epoch_size"] for name, meta in metas.items()}
    return {_READER_NAME: reader_name, **lengths}


def before_build(description: Description) -> Description:
    """Return a description without the fields known only after the build."""
    return {
        field: value
        for field, value in description.items()
        if not field.endswith(_LENGTH) and field != _READER_NAME
    }


def from_text(text: str) -> Description:
    """Read a description that was written as JSON.

    Raises:
        ValueError: the text is not a description.
    """
    description = json.loads(text)
    if not isinstance(description, dict):
        raise ValueError(f"a description is a JSON object, not {type(description).__name__}")
    return description


def changes(saved: Description, present: Description) -> Differences:
    """Return the differences between two descriptions, operators first.

    A seed that was not given is not compared: DALI's checkpoint has every generator's state.
    """
    found = differences(saved, present)
    if None in found.get("seed", ()):
        del found["seed"]
    for field in found:
        if field.startswith(_OPERATOR):
            before, now = (NO_OPERATOR if kind == NOT_GIVEN else kind for kind in found[field])
            found[field] = before, now
    # An additional or missing operator renames others.
    names = [
        [field[len(_OPERATOR) :] for field in description if field.startswith(_OPERATOR)]
        for description in (saved, present)
    ]
    missing, new = unmatched(*names)
    at_fault = {f"{_OPERATOR}{name}" for name in missing + new}

    def order(field: str) -> tuple[bool, bool]:
        if field.startswith(_OPERATOR):
            return False, field not in at_fault
        return "." in field or field == "outputs", False

    return dict(sorted(found.items(), key=lambda item: order(item[0])))


def unmatched(saved: Sequence[str], present: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the missing operators of the saved pipeline, and the new ones.

    Renumbered operators are returned only if there are no others.

    >>> unmatched(["__Image_0", "__Rotate_1", "__Resize_2"], ["__Image_0", "__Resize_1"])
    (['__Rotate_1'], [])
    """
    missing = sorted(set(saved) - set(present), key=_number)
    new = sorted(set(present) - set(saved), key=_number)
    surplus = Counter(map(_kind, saved))
    surplus.subtract(map(_kind, present))
    lost = [name for name in missing if surplus[_kind(name)] > 0]
    added = [name for name in new if surplus[_kind(name)] < 0]
    return (lost, added) if lost or added else (missing, new)


def acceptable(*descriptions: Description) -> set[str]:
    """Return the fields that may change without affecting reader positions and generators.

    These are arguments of operators that read nothing, and arguments that select a reader's data.
    The number of samples is a separate field.
    """
    found = set()
    for description in descriptions:
        for field in description:
            name, _, argument = field.rpartition(".")
            kind = description.get(f"{_OPERATOR}{name}")
            if not isinstance(kind, str) or argument in ("inputs", "device"):
                continue
            if argument in DATA or not kind.startswith(("readers.", "ExternalSource")):
                found.add(field)
    return found


def _kind(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return name if numbered is None else numbered["kind"]


def _number(name: str) -> tuple[int, str]:
    """Return a key that sorts operators in order of creation, named ones first."""
    numbered = _NUMBERED.fullmatch(name)
    return (-1, name) if numbered is None else (int(numbered["number"]), "")


def _arguments(operator: Operator) -> dict[str, Any]:
    values = {**operator.arguments, **contents_of(operator)}
    if operator.inputs:
        values["inputs"] = list(operator.inputs)
    return {name: brief(value) for name, value in values.items()}


SMALL = 1 << 20
"""Maximum size, in bytes, of files compared by content: lists, indices, annotations."""

_PATHS = sorted(DATA - {"files", "labels"})

_KNOWN_FILES = tuple(
    f"*.{extension}"
    for extension in (
        *("jpg", "jpeg", "png", "bmp", "tif", "tiff", "pnm", "ppm", "pgm", "pbm", "jp2", "webp"),
        *("flac", "ogg", "wav"),
    )
)
"""DALI's default ``file_filters`` of the file reader."""

Matches = Callable[[str], object]


def contents_of(operator: Operator) -> dict[str, str]:
    """Return a description of the data at each path of a reader, by argument name.

    A file is described by its name, its size and, up to 1 MiB, its content. A folder is described
    by the names of the files that the reader takes from it and its subfolders, and an LMDB folder
    by the size of its data. Missing paths are left out.

    >>> reader = Operator("reader", "readers.File", (), {"file_root": "/nowhere", "num_shards": 2})
    >>> contents_of(reader)
    {}
    """
    listed = any(name in operator.arguments for name in ("files", "file_list", "annotations_file"))
    found = {}
    for name in _PATHS:
        paths = operator.arguments.get(name, [])
        paths = [paths] if isinstance(paths, str) else paths
        if not operator.kind.startswith("readers.") or not all(map(_exists, paths)) or not paths:
            continue
        if name == "file_root" and listed:
            # Only the folder of files that another argument selects.
            found[name] = "a folder"
        else:
            contents = [_content(path, operator) for path in paths]
            several = f"{len(paths)} paths, {_digest(contents)}"
            found[name] = contents[0] if len(contents) == 1 else several
    return found


def _exists(path: Any) -> bool:
    """Whether a path is a file or folder, not a named pipe."""
    return isinstance(path, str) and (os.path.isfile(path) or os.path.isdir(path))


def _content(path: str, operator: Operator) -> str:
    if os.path.isdir(path):
        data = Path(path) / "data.mdb"
        if data.is_file():
            return f"{data.stat().st_size} bytes of LMDB"
        names = list(_read_names(path, operator))
        num_files = sum(not name.endswith(os.sep) for name in names)
        return f"{num_files} files, {_digest(names)}"
    size = os.path.getsize(path)
    described = f"{os.path.basename(path)}, {size} bytes"
    if size > SMALL:
        return described
    return f"{described}, {blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()}"


def _read_names(root: str, operator: Operator) -> Iterator[str]:
    """Yield the names that a reader takes from a folder; other names must not count as changes.

    Hidden files are included.
    """
    arguments = operator.arguments
    if operator.kind == "readers.File":
        # Empty folders are labels, too.
        exact = bool(arguments.get("case_sensitive_filter"))
        is_file = _matches(arguments.get("file_filters", _KNOWN_FILES), exact=exact)
        is_folder = _matches(arguments.get("dir_filters", "*"), exact=exact)
        for folder in _sorted_entries(root):
            if folder.is_dir() and is_folder(folder.name):
                yield folder.name + os.sep
                yield from _file_names(folder.path, folder.name, is_file)
        return
    pattern = arguments.get("file_filter", "*.npy") if operator.kind == "readers.Numpy" else "*"
    is_file = _matches(pattern, exact=True)
    yield from _file_names(root, "", is_file)
    for folder in _sorted_entries(root):
        if folder.is_dir():
            yield from _file_names(folder.path, folder.name, is_file)


def _file_names(folder: str, below: str, is_file: Matches) -> Iterator[str]:
    """Yield the names of matching files in a folder, without subfolders."""
    for entry in _sorted_entries(folder):
        if is_file(entry.name) and not entry.is_dir():
            yield os.path.join(below, entry.name)


def _sorted_entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _matches(patterns: str | list[str] | tuple[str, ...], *, exact: bool) -> Matches:
    """Return a function that returns whether one of DALI's patterns matches a name.

    Args:
        exact: whether matching is case-sensitive.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if any(sign in pattern for pattern in patterns for sign in "\\^"):
        # DALI's meaning differs from Python's; match too many names rather than too few.
        return bool
    expressions = "|".join(map(fnmatch.translate, patterns))
    return re.compile(expressions, 0 if exact else re.IGNORECASE).match


def _digest(parts: Iterable[str]) -> str:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(os.fsencode(part) + b"\0")
    return digest.hexdigest()


IGNORED = frozenset(
    {
        "preserve_name",
        # These arguments change the speed alone.
        "bytes_per_sample_hint",
        "dont_use_mmap",
        "lazy_init",
        "prefetch_queue_depth",
        "read_ahead",
        "tensor_init_bytes",
        "use_o_direct",
    }
)
"""Arguments that change no batch.

Arguments that begin with an underscore, which contain source lines, are ignored, too.
"""


@dataclass(frozen=True)
class Operator:
    name: str
    """The user's name, or a name like ``__Rotate_3``, which DALI's checkpoints use."""
    kind: str
    """Kind of operator, such as ``readers.File``."""
    inputs: tuple[str, ...]
    """Input edges; ``angle=__Uniform_2`` for an argument."""
    arguments: dict[str, Any]
    """Given arguments that change the batches."""


@dataclass(frozen=True)
class Graph:
    """A whole pipeline."""

    batch_size: int
    seed: int | None
    """Seed of the pipeline; None if DALI draws one."""
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]

    @classmethod
    def from_serialized(cls, serialized: bytes) -> Graph:
        """Read the result of ``Pipeline.serialize()``."""
        batch_size, seed = 0, None
        operators, outputs = [], []
        for number, _, value in fields(serialized):
            if isinstance(value, memoryview):
                if number == 5:
                    operators.append(_operator(value))
                elif number == 7:
                    outputs.append(_text(value, 1))
            elif number == 2:
                batch_size = value
            elif number == 9:
                seed = signed(value)
        return cls(batch_size, seed, tuple(operators), tuple(outputs))


def _operator(message: memoryview) -> Operator:
    inputs, arguments = [], {}
    for number, _, value in fields(message):
        if not isinstance(value, memoryview):
            continue
        if number == 2:
            argument = _text(value, 4)
            inputs.append(f"{argument}={_text(value, 1)}" if argument else _text(value, 1))
        elif number == 4:
            name = _text(value, 1)
            if name not in IGNORED and not name.startswith("_"):
                arguments[name] = _value(value)
    kind = _text(message, 1).replace("__", ".")
    return Operator(_text(message, 5), kind, tuple(inputs), arguments)


def _value(message: memoryview) -> Any:
    values = list(_values(message))
    return values[0] if len(values) == 1 else values


def _values(message: memoryview) -> Iterator[Any]:
    """Yield the value of an argument, or its list of elements, or nothing if the list is empty."""
    elements = []
    for number, _, value in fields(message):
        if isinstance(value, memoryview):
            if number == 5:
                yield bytes(value).decode(errors="backslashreplace")
            elif number == 7:
                elements.append(_value(value))
        elif number == 3:
            yield unpack("<f", pack("<I", value))[0]
        elif number == 4:
            yield signed(value)
        elif number == 6:
            yield bool(value)
    if elements:
        yield elements


def _text(message: memoryview, wanted: int) -> str:
    for number, _, value in fields(message):
        if number == wanted and isinstance(value, memoryview):
            return bytes(value).decode(errors="backslashreplace")
    return ""
