"""Descriptions of datasets and callables: texts that are the same in every process.

A description goes into a loader's fingerprint. It never uses an object's ``repr``, pickle or
bytecode, which may change while the thing stays the same, or the reverse. Facts that a text cannot
express are noted in words.

A text shows the first and last entries of a long list or large array, others evenly spread between
them, and nothing of a table, a deque or an array of objects. Such a text comes with a digest of all
the data, from :mod:`~stateful_gpu_loader.state.contents`. The texts must not change, because older
states have no digest.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import os
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.state.contents import (
    Contents,
    Held,
    fields_of,
    is_content,
    without_root,
)
from stateful_gpu_loader.state.object_names import comes_from, is_named, name_of, package_of
from stateful_gpu_loader.state.tensors import is_whole, sampled_bytes, spread

TRANSFORM_ATTRIBUTES = ("transform", "target_transform", "transforms")
"""Attributes with transforms, of datasets and composed transforms."""

NOTHING_KNOWN = "?"
"""Text of an unknown object."""

_MAX_FINGERPRINT_LENGTH = 400
_MAX_LENGTH = 1000
_MAX_STRING_LENGTH = 200
_MAX_INLINE_LENGTH = 16
_MAX_PAIR_LENGTH = 4
_MAX_DEPTH = 16

_SCALARS = (type(None), bool, int, float, complex)
_NAMED_BY_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    np.ufunc,
)
_PUBLIC_NAMES: dict[Any, str] = {
    torch.utils.data.default_collate: "torch.utils.data.default_collate",
    torch.utils.data.default_convert: "torch.utils.data.default_convert",
}
_HELD_BY_OURS = ("datasets", "function", "steps")
"""Attributes with the user's objects, of this package's self-describing objects."""

CONTENT_ATTRIBUTES = (
    "dataset",
    "datasets",
    "indices",
    "tensors",
    "samples",
    "imgs",
    "targets",
    "classes",
    "data",
)
"""Attributes with data, of any package's datasets."""

MAX_ENTRIES = 1024
"""Maximum number of entries examined in a list of numbers, strings, or pairs of these."""
MAX_ROWS = 256
"""Maximum number of rows examined in an array, or of entries in a list of other things."""
MAX_TOTAL = 4096
"""Maximum number of entries and rows examined in all lists and arrays of one dataset."""
MIN_ENTRIES = 8
"""Minimum number of entries examined in each list or array."""
_MAX_PARTS = 1 << 16
"""Maximum number of datasets in one list whose transforms are examined."""


@dataclass(frozen=True)
class Description:
    """A thing's text, and the facts that the text does not express."""

    text: str
    """Text that is the same for equal things, in every process."""
    unknown: tuple[str, ...] = ()
    """Facts missing from the text, in words; empty if the text determines the stream."""
    content: str | None = None
    """Digest of all the data; None if the text covers everything."""
    is_sampled: bool = False
    """Whether the digest also covers only a sample."""


def describe(thing: Any) -> str:
    """Return a name for a callable or another thing that is the same in every process.

    This is ``thing.fingerprint()`` if it has one. Otherwise it is the qualified name of the
    function or class, with the settings of torchvision's and albumentations' transforms, the
    arguments of a ``functools.partial``, and the parts of a user's composed transform.

    >>> import json
    >>> describe(functools.partial(json.dumps, indent=2))
    'functools.partial(json.dumps, indent=2)'
    """
    return shortened(Describer().text(thing))


def describe_dataset(dataset: Any) -> Description:
    """Describe a dataset's data, as far as possible without reading a sample.

    The first available source is used:

    - ``dataset.fingerprint()``;
    - the digest that a Hugging Face dataset keeps;
    - all attributes of a torchvision dataset or torch wrapper, with paths relative to its root;
    - for any other class, the :data:`CONTENT_ATTRIBUTES`.

    Otherwise the text is :data:`NOTHING_KNOWN`, because a user's class may be renamed or corrected.

    >>> import torch
    >>> describe_dataset(torch.utils.data.Subset(range(10), [3, 1])).text
    'torch.utils.data.dataset.Subset(dataset=range(0, 10), indices=[3, 1])'
    """
    left_out = (*TRANSFORM_ATTRIBUTES, "root")
    return Describer(CONTENT_ATTRIBUTES, left_out, names_classes=False).description(dataset)


def describe_transforms_of(dataset: Any) -> Description:
    """Describe the transforms that a dataset, or a dataset inside it, applies; or ``"none"``.

    >>> describe_transforms_of([1, 2, 3]).text
    'none'
    """
    describer = Describer()
    texts = [f"{path}={describer.text(transform)}" for path, transform in _inside(dataset)]
    everything = list(_inside(dataset, most=_MAX_PARTS))
    is_partial = len(texts) < len(everything)
    return describer.described(", ".join(texts) or "none", everything, is_partial=is_partial)


def shortened(text: str, longest: int = _MAX_LENGTH) -> str:
    """Return a long text's beginning, and a digest of the whole text."""
    if len(text) <= longest:
        return text
    return f"{text[: longest - 45]}... {digest(text.encode(errors='surrogateescape'))[8:]}"


def own_fingerprint(thing: Any) -> Any:
    """Return the method or function ``fingerprint`` of an object, or None.

    A wrapper's forwarded ``fingerprint`` is ignored.
    """
    has_own = hasattr(type(thing), "fingerprint") or "fingerprint" in getattr(thing, "__dict__", ())
    own = getattr(thing, "fingerprint", None) if has_own and not isinstance(thing, type) else None
    return own if callable(own) else None


class Describer:
    """Writes things as text, and notes in :attr:`unknown` the facts missing from the text.

    Args:
        followed: attributes described of an object of an unknown class.
        left_out: attributes never described.
        names_classes: whether the name of an unknown class is part of the text.

    >>> from torchvision.transforms import v2
    >>> Describer().text(v2.RandomHorizontalFlip(0.3))
    'torchvision.transforms.v2.RandomHorizontalFlip(p=0.3)'
    """

    def __init__(
        self,
        followed: Sequence[str] = TRANSFORM_ATTRIBUTES,
        left_out: Sequence[str] = (),
        *,
        names_classes: bool = True,
    ) -> None:
        self._followed = followed
        self._left_out = frozenset(left_out)
        self._names_classes = names_classes
        self._roots: tuple[str, ...] = ()
        self._depth = 0
        self._budget = MAX_TOTAL
        self._is_partial = False
        self._unknown: dict[str, None] = {}

    @property
    def unknown(self) -> tuple[str, ...]:
        """Facts missing from the text, in words, in order of discovery."""
        return tuple(self._unknown)

    def text(self, thing: Any) -> str:
        """Return the thing as text of bounded length."""
        kind = type(thing)
        if kind is str:
            return self._string(thing)
        if kind in _SCALARS:
            return repr(thing)
        if kind is tuple and len(thing) <= _MAX_PAIR_LENGTH:
            return f"({', '.join(map(self.text, thing))})"  # a million files are such pairs
        if isinstance(thing, enum.Enum):
            # torchvision accepts both "bilinear" and InterpolationMode.BILINEAR.
            is_text = isinstance(thing.value, str)
            return repr(thing.value) if is_text else f"{kind.__qualname__}.{thing.name}"
        if isinstance(thing, (str, os.PathLike)):
            return self._string(os.fspath(thing))
        if isinstance(thing, np.generic):
            return repr(thing.item())
        if isinstance(thing, (*_NAMED_BY_TORCH, range)):
            return str(thing)
        if isinstance(thing, bytes):
            return f"{len(thing)} bytes {digest(thing)}"
        if self._depth >= _MAX_DEPTH:
            self._note(f"what lies {_MAX_DEPTH} objects deep")
            return "..."
        self._depth += 1
        try:
            return self._compound(thing)
        finally:
            self._depth -= 1

    def description(self, thing: Any) -> Description:
        """Describe a thing: its text, its digest, and the facts missing from both."""
        return self.described(self.text(thing), thing)

    def described(self, text: str, thing: Any, *, is_partial: bool = False) -> Description:
        """Return the description of a thing whose text was just written."""
        if not (is_partial or self._is_partial):
            return Description(text, self.unknown)
        self._budget = MAX_TOTAL
        contents = Contents(self.text, self._held)
        contents.add(thing)
        return Description(text, self.unknown, contents.text(), contents.is_sampled)

    def _compound(self, thing: Any) -> str:
        if type(thing) in (list, tuple):
            return self._sequence(thing)
        own = own_fingerprint(thing)
        if own is not None:
            if package_of(type(thing)) == "stateful_gpu_loader":
                for name in _HELD_BY_OURS:
                    self.text(getattr(thing, name, None))  # only to note missing facts
            return shortened(str(own()), _MAX_FINGERPRINT_LENGTH)
        if isinstance(thing, (np.ndarray, torch.Tensor)):
            return self._array(thing)
        if isinstance(thing, (list, tuple)):
            return self._sequence(thing)
        if isinstance(thing, (set, frozenset)):
            return self._set(thing)
        if isinstance(thing, Mapping):
            return self._mapping(thing)
        if isinstance(thing, (type, *_FUNCTIONS)):
            return self._named(thing)
        if isinstance(thing, functools.partial):
            return self._partial(thing)
        known = self._hugging_face(thing) or self._albumentations(thing)
        if known is not None:
            return known
        if is_content(thing):
            self._is_partial = True
        elif not _is_described_by_attributes(thing):
            self._note_class(thing)
        return self._object(thing)

    def _string(self, text: str) -> str:
        text = without_root(text, self._roots)
        if len(text) > _MAX_STRING_LENGTH:
            return f"{len(text)} characters {digest(_encoded(text))}"
        return repr(text)

    def _array(self, array: Any) -> str:
        if isinstance(array, torch.Tensor) and array.is_nested:
            return f"nested {self._sequence(array.unbind())}"
        max_rows = self._room(MAX_ROWS, MAX_ROWS)
        try:
            sampled = sampled_bytes(array, max_rows)
        except (TypeError, ValueError, RuntimeError):
            if isinstance(array, np.ndarray):
                self._is_partial = True
            else:
                self._note(f"the values of an array of {array.dtype}")
            return f"{array.dtype} {list(array.shape)}"
        self._is_partial |= not is_whole(array, max_rows)
        dtype = str(array.dtype).removeprefix("torch.")
        return f"{dtype} {list(array.shape)} {digest(sampled)}"

    def _sequence(self, things: Sequence[Any]) -> str:
        n = len(things)
        entries = [things[i] for i in spread(n, self._room(n, MAX_ENTRIES))]
        if n > MAX_ROWS and not all(map(_is_plain, entries[::32])):
            entries = [things[i] for i in spread(n, MAX_ROWS)]
        self._is_partial |= len(entries) < n
        roots, self._roots = self._roots, self._roots or _common_folder(entries)
        texts = [self.text(entry) for entry in entries]
        self._roots = roots
        return self._listed(texts, n, "()" if isinstance(things, tuple) else "[]")

    def _set(self, things: Set[Any]) -> str:
        if len(things) > MAX_ROWS:
            self._is_partial = True
            return f"{len(things)} entries"
        return self._listed(sorted(map(self.text, things)), len(things), "{}")

    def _mapping(self, things: Mapping[Any, Any]) -> str:
        keys = list(things)
        if len(keys) <= MAX_ENTRIES:
            keys.sort(key=self._sorting)  # equal dicts may have been filled in different orders
        sampled = [keys[i] for i in spread(len(keys), self._room(len(keys), MAX_ROWS))]
        self._is_partial |= len(sampled) < len(keys) or isinstance(things, OrderedDict)
        roots, self._roots = self._roots, self._roots or _common_folder(list(things.values()))
        texts = [f"{self.text(key)}: {self.text(things[key])}" for key in sampled]
        self._roots = roots
        return self._listed(texts, len(keys), "{}")

    def _sorting(self, key: Any) -> str:
        return self.text(key) if isinstance(key, frozenset) else repr(key)

    def _listed(self, texts: list[str], n: int, brackets: str) -> str:
        joined = ", ".join(texts)
        if n <= _MAX_INLINE_LENGTH:
            return f"{brackets[0]}{joined}{brackets[1]}"
        return f"{n} entries {digest(joined.encode(errors='surrogateescape'))}"

    def _named(self, thing: Any) -> str:
        """Return a function's or class's name, with the version of a package."""
        public = _PUBLIC_NAMES.get(thing) if isinstance(thing, types.FunctionType) else None
        if public is not None:
            return public
        owner = getattr(thing, "__self__", None)
        bound = owner is not None and not isinstance(owner, (type, types.ModuleType))
        name = name_of(type(owner), thing.__name__) if bound else name_of(thing)
        if bound and _is_described_by_attributes(owner):
            return f"{self.text(owner)}.{thing.__name__}"
        if bound or not is_named(thing) or "<" in name:  # a lambda, or defined in a function
            self._note(f"the code of {name}")
        return name

    def _partial(self, thing: functools.partial[Any]) -> str:
        given = [self.text(argument) for argument in thing.args]
        given += [f"{name}={self.text(value)}" for name, value in thing.keywords.items()]
        return f"functools.partial({', '.join([self.text(thing.func), *given])})"

    def _hugging_face(self, thing: Any) -> str | None:
        """Describe a dataset of the package ``datasets``, which has a digest."""
        found = vars(thing).get("_fingerprint") if hasattr(thing, "__dict__") else None
        if not isinstance(found, str) or not comes_from(thing, "datasets"):
            return None
        if package_of(type(thing)) != "datasets":
            self._note_class(thing)
        if getattr(thing, "_format_type", None) == "custom":
            # The digest includes the function, with its generators' states.
            self._note("the function of with_transform(), and the data behind it")
            picked = getattr(thing, "_indices", None)
            rows = [] if picked is None else picked.column(0)
            sampled = [rows[i].as_py() for i in spread(len(rows), MAX_ROWS)]
            found = f"{len(thing)} rows, {self.text(thing.column_names)}, {self.text(sampled)}"
        return f"{name_of(type(thing))}({found})"

    def _albumentations(self, thing: Any) -> str | None:
        if not comes_from(thing, "albumentations") or not callable(getattr(thing, "to_dict", None)):
            return None
        try:
            settings = thing.to_dict()
        except (ValueError, TypeError, NotImplementedError, AttributeError, KeyError):
            return None  # for example a Lambda without a name
        if package_of(type(thing)) != "albumentations":
            self._note_class(thing)
        settings = {key: value for key, value in settings.items() if key != "__version__"}
        text = f"albumentations({_inline(settings)})"
        if "'__name__'" in text:
            self._note("the code of an albumentations.Lambda")
        return text

    def _object(self, thing: Any) -> str:
        """Describe all settings of a torch or torchvision object, or the data of another one."""
        name = self._class_of(thing)
        settings = self._settings(thing)
        roots, self._roots = self._roots, _roots_of(thing) or self._roots
        texts: list[str] = []
        for attribute, value in settings.items():
            if _is_described_by_attributes(thing) or _is_described(value):
                texts.append(f"{attribute}={self.text(value)}")
            else:
                self._is_partial = True
        self._roots = roots
        self._is_partial |= fields_of(type(thing)) is not None
        return f"{name}({', '.join(texts)})" if texts else name or NOTHING_KNOWN

    def _class_of(self, thing: Any) -> str:
        if self._names_classes or _is_described_by_attributes(thing):
            return name_of(type(thing))
        return ""

    def _settings(self, thing: Any) -> dict[str, Any]:
        """Return the known attributes that determine what an object does."""
        attributes = getattr(thing, "__dict__", {})
        if not _is_described_by_attributes(thing):
            held = {name: attributes.get(name) for name in self._followed}
            settings = {
                name: value
                for name, value in held.items()
                if _is_described(value) or _is_digested(value)
            }
        elif isinstance(thing, torch.nn.Module):
            settings = {name: value for name, value in attributes.items() if name[0] != "_"}
            settings |= thing._modules
            settings.pop("training", None)
            if thing._parameters or thing._buffers:
                self._note(f"the parameters of {name_of(type(thing))}")
        else:
            settings = dict(attributes)
        found: dict[str, Any] = {}
        for attribute in sorted(settings.keys() - self._left_out):
            value = settings[attribute]
            # torchvision keeps the same list under several names.
            if not (isinstance(value, list) and any(value is each for each in found.values())):
                found[attribute] = value
        return found

    def _held(self, thing: Any) -> Held | None:
        """Return the parts of an object to digest; None if its text covers everything."""
        if own_fingerprint(thing) is not None:
            if package_of(type(thing)) != "stateful_gpu_loader":
                return None
            held = {name: getattr(thing, name, None) for name in _HELD_BY_OURS}
            return (), {"": self.text(thing), **held}
        if isinstance(thing, functools.partial):
            return (), {"func": thing.func, "args": thing.args, "keywords": thing.keywords}
        if isinstance(thing, (type, range, *_FUNCTIONS, *_NAMED_BY_TORCH)):
            return None
        if (self._hugging_face(thing) or self._albumentations(thing)) is not None:
            return None
        if not _is_described_by_attributes(thing):
            self._note_class(thing)
        return _roots_of(thing), {"": self._class_of(thing), **self._settings(thing)}

    def _room(self, wanted: int, most: int) -> int:
        """Take a number of entries from the total budget; return how many are granted."""
        granted = min(wanted, most, max(self._budget, MIN_ENTRIES))
        self._budget -= granted
        return granted

    def _note_class(self, thing: Any) -> None:
        self._note(f"what a {name_of(type(thing))} does")

    def _note(self, unknown: str) -> None:
        self._unknown[unknown] = None


def _inside(
    dataset: Any, path: str = "", depth: int = 0, most: int = MAX_ROWS
) -> Iterator[tuple[str, Any]]:
    """Yield each transform with the attribute path to it."""
    attributes = getattr(dataset, "__dict__", {})
    transform: Any = attributes.get("transform")
    for name in TRANSFORM_ATTRIBUTES:
        given: Any = attributes.get(name)
        # torchvision's ``transforms`` usually contains the other two.
        is_both = type(given).__name__ == "StandardTransform" and given.transform is transform
        if given is not None and not is_both:
            yield f"{path}{name}", given
    if depth < _MAX_DEPTH:
        for name in ("dataset", "datasets"):
            yield from _inside_all(attributes.get(name), f"{path}{name}", depth + 1, most)


def _inside_all(held: Any, path: str, depth: int, most: int) -> Iterator[tuple[str, Any]]:
    if isinstance(held, dict):
        for key, each in held.items():
            yield from _inside(each, f"{path}[{key!r}].", depth, most)
    elif isinstance(held, (list, tuple)):
        for number in spread(len(held), most):
            if hasattr(held[number], "__dict__"):
                yield from _inside(held[number], f"{path}[{number}].", depth, most)
    elif held is not None:
        yield from _inside(held, f"{path}.", depth, most)


def _encoded(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")  # half of a surrogate pair, possible in JSON


def digest(content: bytes) -> str:
    return f"blake2b {hashlib.blake2b(content, digest_size=16).hexdigest()}"


def _inline(value: Any) -> str:
    """Return plain values of another package in full."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_inline(value[key])}' for key in value)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_inline, value))}]"
    return Describer().text(value)


def _is_described_by_attributes(thing: Any) -> bool:
    """Whether attributes describe an object completely; those in C++ have none."""
    if isinstance(thing, torch.jit.ScriptModule) or not hasattr(thing, "__dict__"):
        return False
    if package_of(type(thing)) == "torch":
        return isinstance(thing, torch.nn.Module) or type(thing).__module__.startswith(
            "torch.utils.data."
        )
    return package_of(type(thing)) == "torchvision"


def _is_digested(thing: Any) -> bool:
    """Whether an attribute of an object of unknown class counts only in its digest."""
    kinds = (str, os.PathLike, bytes, set, frozenset)
    return isinstance(thing, kinds) or is_content(thing)


def _is_described(thing: Any) -> bool:
    """Whether an attribute of an object of unknown class is described.

    Objects opened while it is read, such as an h5py file, are not.
    """
    kinds = (list, tuple, range, dict, np.ndarray, torch.Tensor, torch.utils.data.Dataset)
    return isinstance(thing, kinds) or callable(thing) or comes_from(thing, "datasets")


def _is_plain(entry: Any) -> bool:
    entries = entry if isinstance(entry, (list, tuple)) else (entry,)
    return len(entries) <= _MAX_INLINE_LENGTH and all(
        isinstance(each, (*_SCALARS, str, os.PathLike)) for each in entries
    )


def _roots_of(thing: Any) -> tuple[str, ...]:
    """Return a dataset's root for relative paths, as given and normalised."""
    root = getattr(thing, "__dict__", {}).get("root")
    if not isinstance(root, (str, os.PathLike)):
        return ()
    written = os.fspath(root)
    if not isinstance(written, str):
        return ()
    return tuple(each.rstrip(os.sep) + os.sep for each in (written, os.path.normpath(written)))


def _common_folder(entries: Sequence[Any]) -> tuple[str, ...]:
    """Return the common folder of all absolute paths in entries, pairs and small dicts."""
    pairs = [
        tuple(entry.values())
        if isinstance(entry, dict)
        else entry
        if isinstance(entry, (list, tuple))
        else (entry,)
        for entry in entries
    ]
    flat = (each for pair in pairs if len(pair) <= _MAX_INLINE_LENGTH for each in pair)
    paths = [os.fspath(each) for each in flat if isinstance(each, (str, os.PathLike))]
    absolute = [path for path in paths if isinstance(path, str) and path.startswith(os.sep)]
    if not absolute:
        return ()
    first, last = min(absolute), max(absolute)
    folder = os.path.dirname(first) if first == last else os.path.commonpath([first, last])
    return (folder.rstrip(os.sep) + os.sep,)
