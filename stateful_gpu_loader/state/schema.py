"""The mapping that ``state_dict()`` returns: its schema, its checks, and its fingerprint.

A load compares the identity of the stream (seed, dataset, order, ...) with the loader, and adopts
the position.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

from stateful_gpu_loader.errors import StateMismatch

FORMAT = "stateful_gpu_loader"
VERSION = 1
MAX_EPOCH = 2**32 - 1
MAX_POSITION = 2**63 - 1

SAMPLED = ", sampled"
"""Suffix of a digest that covers only a sample."""

ADDED_BY_FRAMEWORKS = frozenset({"_iterator_finished"})
"""Keys that Accelerate adds to a loader's state."""

_LANE_KEY = re.compile(r"lane_(?:\d{5}|[1-9]\d{5,8})")

REMEDY_FOREIGN = "load what StatefulGPULoader.state_dict() returned, unchanged"
_REMEDY_SAME = (
    "build the loader as it was when the state was saved, or, if the change is meant, "
    "load_state_dict(state, accept={{{field!r}}})"
)


@runtime_checkable
class Stateful(Protocol):
    """An object with torch's two state methods."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """A loader's state, checked field by field."""

    seed: int
    """Any Python int of 64 bits."""
    epoch: int
    """Pass over the dataset, 0 to 2**32 - 1."""
    position: int
    """Position of the next sample to deliver in the epoch's global order."""
    fingerprint: str
    """JSON text of everything that must not change; see :class:`Fingerprint`."""
    global_batch_size: int | None
    """Samples that all ranks deliver in one step; for information."""
    index_digest: str | None = None
    """Digest of the delivered indices, which a sampler without state has to skip."""
    ahead: str | None = None
    """JSON text: requests delivered before an older one."""
    bad_samples: str | None = None
    """JSON text: record of samples that could not be used."""
    user: Any = None
    """States of the user's own objects."""
    lanes: Mapping[str, str] | None = None
    """Cursors of the lanes that this rank serves, keyed ``lane_00000`` and so on."""

    def to_dict(self) -> dict[str, Any]:
        """Return a fresh dictionary of plain values.

        >>> state = LoaderState(seed=1, epoch=0, position=8, fingerprint="{}", global_batch_size=8)
        >>> LoaderState.from_dict(state.to_dict()) == state
        True
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "fingerprint": self.fingerprint,
            "global_batch_size": self.global_batch_size,
            "index_digest": self.index_digest,
            "ahead": self.ahead,
            "bad_samples": self.bad_samples,
            "user": self.user,
            **(self.lanes or {}),
        }

    @classmethod
    def from_dict(cls, state: Any) -> LoaderState:
        """Check every field of ``state``.

        Raises:
            StateMismatch: this is not a state of this package, it comes from a later version, or a
                key is missing, unknown, of another type or out of range.
        """
        if not isinstance(state, Mapping):
            raise StateMismatch(
                "format", saved=type(state).__name__, present="dict", remedy=REMEDY_FOREIGN
            )
        saved = state.get("format", f"no format, but the keys {sorted(map(str, state))}")
        if not isinstance(saved, str) or saved != FORMAT:
            raise StateMismatch("format", saved=saved, present=FORMAT, remedy=REMEDY_FOREIGN)
        version: Any = state.get("version")
        if not _is_int(version) or not 1 <= version <= VERSION:
            raise StateMismatch(
                "version",
                saved=version,
                present=VERSION,
                remedy="install the version of stateful_gpu_loader that wrote the state, or later",
            )
        lanes = {str(key): state[key] for key in state if _LANE_KEY.fullmatch(str(key))}
        expected, present = set(_CHECKS) | {"format", "version"}, set(state) - set(lanes)
        unknown, missing = present - expected - ADDED_BY_FRAMEWORKS, expected - present
        if unknown or missing:
            raise StateMismatch(
                "keys",
                saved=f"unknown keys {sorted(map(str, unknown))}, not {sorted(missing)}",
                present=sorted(expected),
                remedy=REMEDY_FOREIGN,
            )
        for name, (check, wanted) in _CHECKS.items():
            if not check(state[name]):
                raise StateMismatch(
                    name, saved=state[name], present=f"{wanted}", remedy=REMEDY_FOREIGN
                )
        for key, cursor in lanes.items():
            if not isinstance(cursor, str):
                raise StateMismatch(key, saved=cursor, present="a str", remedy=REMEDY_FOREIGN)
        return cls(
            **{name: state[name] for name in _CHECKS},
            lanes=lanes or None,
        )


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Properties that must not change between save and load; ``None`` is not compared."""

    dataset: str | None
    """Identity of the dataset, as far as known."""
    length: int | None
    """Number of samples of a map-style dataset; with a user's sampler ``len(dataset)``."""
    order: str
    """Algorithm and version that map positions to indices, or "sampler" and the class of the
    user's sampler, or "iterable"."""
    shuffle: bool
    drop_last: bool
    transform: str
    """Recipes, or torchvision or albumentations transforms, with their arguments; the qualified
    name of another callable; or "none"."""
    decoder: str
    """Family of the decoder of encoded images, or "none"."""
    decoder_version: str | None
    """Informational: loading with another version warns."""
    batch_transform: str = "none"
    """Transform of the whole batch; format as for ``transform``."""
    dataset_transform: str | None = None
    """Transforms in the dataset's own attributes; format as for ``transform``."""
    collate_fn: str | None = None
    """Collate function; format as for ``transform``."""
    batched: bool | None = None
    """Whether samples are collated into batches; False with ``batch_size=None``."""
    on_bad_sample: str | None = None
    """"replace" or "drop"; None for "raise", which may be exchanged for either: without an error it
    delivers the same samples."""
    seed_drawn_by: str | None = None
    """Rank that drew the seed from its own generator, as "rank 1 of 2"; compared separately by
    :meth:`check_rank`. None if all ranks have the same seed."""
    content: Mapping[str, str] | None = None
    """Digest of the full content of each field whose text describes only a part; None in older
    states."""

    def to_text(self) -> str:
        """Return one line of JSON with the keys in order of declaration."""
        fields = dict(vars(self))
        if self.seed_drawn_by is None:
            del fields["seed_drawn_by"]
        return json.dumps(fields)

    @classmethod
    def from_text(cls, text: str) -> Fingerprint:
        """Read back :meth:`to_text`.

        Raises:
            StateMismatch: the text is not a fingerprint.
        """
        try:
            fields = json.loads(text)
            saved = cls(**fields)
        except (TypeError, ValueError, RecursionError) as error:
            raise StateMismatch(
                "fingerprint",
                saved=text,
                present=f"JSON with the fields {sorted(cls.__annotations__)} ({error})",
                remedy=REMEDY_FOREIGN,
            ) from None
        for field, kinds in _FINGERPRINT_TYPES.items():
            value = getattr(saved, field)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise StateMismatch(
                    f"fingerprint's {field}",
                    saved=value,
                    present=" or ".join(kind.__name__ for kind in kinds),
                    remedy=REMEDY_FOREIGN,
                )
        for field, digest in (saved.content or {}).items():
            if field not in DESCRIBED or not isinstance(digest, str):
                raise StateMismatch(
                    "fingerprint's content",
                    saved=saved.content,
                    present=f"a str for some of {', '.join(DESCRIBED)}",
                    remedy=REMEDY_FOREIGN,
                )
        return saved

    def check(self, saved: Fingerprint, *, accept: Collection[str], position: int) -> None:
        """Compare with a saved fingerprint.

        Args:
            saved: from a state.
            accept: names of fields that may differ.
            position: position of the state. A dataset of a different length is accepted only at 0.

        Raises:
            StateMismatch: a field differs and is not accepted.
        """
        for field in COMPARED:
            before, now = self.difference(saved, field) or (None, None)
            if before is None or now is None:
                continue
            if field == "length" and "dataset" in accept and position == 0:
                continue
            if field in accept and (field != "dataset" or position == 0 or self._is_as_long(saved)):
                continue
            raise StateMismatch(
                field, saved=before, present=now, remedy=_remedy(field, accept, position)
            )

    def check_rank(self, saved: Fingerprint) -> None:
        """Raise if another rank drew the seed.

        Raises:
            StateMismatch: both fingerprints name a rank, and the ranks differ.
        """
        before, now = saved.seed_drawn_by, self.seed_drawn_by
        if before is None or now is None or before.partition(" of ")[0] == now.partition(" of ")[0]:
            return
        raise StateMismatch(
            "seed",
            saved=f"drawn by {before}",
            present=f"{now}, which drew another seed",
            remedy="give every rank's loader the same seed=, or load into each rank the state that "
            "it saved itself (a RankedState holds all of them); to go on with the other rank's "
            'seed, load_state_dict(state, accept={"seed"})',
        )

    def difference(self, saved: Fingerprint, field: str) -> tuple[Any, Any] | None:
        """Return the saved and the present value of a field, or None if they are equal.

        Two digests are compared only if both cover everything, or both a sample.
        """
        before, now = getattr(saved, field), getattr(self, field)
        texts = None if before == now else (before, now)
        if self.content is None or saved.content is None or (texts and None not in texts):
            return texts
        contents = saved.content.get(field), self.content.get(field)
        is_sampled = [content is not None and content.endswith(SAMPLED) for content in contents]
        is_unknown = (before, contents[0]) == (None, None) or (now, contents[1]) == (None, None)
        if contents[0] == contents[1] or is_sampled[0] != is_sampled[1] or is_unknown:
            return texts
        return _with_content(before, contents[0]), _with_content(now, contents[1])

    def _is_as_long(self, saved: Fingerprint) -> bool:
        return self.length == saved.length


COMPARED = (
    "dataset",
    "length",
    "order",
    "shuffle",
    "drop_last",
    "transform",
    "batch_transform",
    "decoder",
    "dataset_transform",
    "batched",
    "collate_fn",
    "on_bad_sample",
)
"""Fields of :class:`Fingerprint` that are compared, in this order."""

_FINGERPRINT_TYPES: dict[str, tuple[type, ...]] = {
    field: tuple(get_origin(kind) or kind for kind in get_args(hint) or (hint,))
    for field, hint in get_type_hints(Fingerprint).items()
}

DESCRIBED = ("dataset", "dataset_transform", "transform", "batch_transform", "collate_fn")
"""Fields of :class:`Fingerprint` that describe the user's objects."""


def sampled(field: str) -> str:
    """Return the name under which a sampled field is listed as unverified.

    >>> sampled("dataset")
    'dataset (sampled)'
    """
    return f"{field} (sampled)"


ACCEPTABLE = frozenset(
    {*COMPARED, *map(sampled, DESCRIBED), "seed", "sampler", "iterable"} - {"length"}
)
"""Names that ``load_state_dict(..., accept=)`` accepts."""


def says_own_format(state: Mapping[Any, Any]) -> bool:
    """Whether a mapping claims to be a state of this package; an array does not.

    >>> says_own_format({"format": "stateful_gpu_loader"}), says_own_format({"format": [1, 2]})
    (True, False)
    """
    given_format = state.get("format")
    return isinstance(given_format, str) and given_format == FORMAT


def lane_key(lane: int) -> str:
    """Return the state's key for a lane's cursor.

    >>> lane_key(7)
    'lane_00007'
    """
    return f"lane_{lane:05d}"


def lane_of(key: str) -> int:
    """Read back :func:`lane_key`."""
    return int(key.removeprefix("lane_"))


def as_int(name: str, value: Any) -> int:
    """Convert an int of any kind, including NumPy's; a bool is refused.

    Raises:
        TypeError: the value is not a whole number.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name}={value!r} must be an int, not {type(value).__name__}")


def as_epoch(epoch: Any) -> int:
    """Convert an epoch that a pass may take; the next epoch must be valid, too.

    Raises:
        ValueError: the epoch is not an int from 0 to 2**32 - 2.
    """
    try:
        number = as_int("epoch", epoch)
    except TypeError:
        number = -1
    if not 0 <= number < MAX_EPOCH:
        raise ValueError(f"{epoch = } must be an int from 0 to {MAX_EPOCH - 1}")
    return number


def _with_content(text: str | None, content: str | None) -> str:
    described = "not described" if text is None else text
    return f"{described}; full content: {content or 'as described'}"


def _remedy(field: str, accept: Collection[str], position: int) -> str:
    if field not in ("dataset", "length"):
        return _REMEDY_SAME.format(field=field)
    remedy = "give the dataset that the state was saved with"
    if "dataset" in accept:
        return (
            f"{remedy}; one of another length is accepted at position 0 only, this state is at "
            f"{position}"
        )
    if field == "length":
        return f"{remedy}, or start again without the state"
    return (
        f"{remedy}; if it is known to be the same, and as long, load_state_dict(state, "
        "accept={'dataset'})"
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (
        lambda value: _is_int(value) and -(2**63) <= value < 2**64,
        "an int of 64 bits",
    ),
    "epoch": (
        lambda value: _is_int(value) and 0 <= value <= MAX_EPOCH,
        f"an int from 0 to {MAX_EPOCH}",
    ),
    "position": (
        lambda value: _is_int(value) and 0 <= value <= MAX_POSITION,
        f"an int from 0 to {MAX_POSITION}",
    ),
    "fingerprint": (lambda value: isinstance(value, str), "a str of JSON"),
    "global_batch_size": (
        lambda value: value is None or (_is_int(value) and value > 0),
        "a positive int or None",
    ),
    "index_digest": (_is_text_or_none, "a str or None"),
    "ahead": (_is_text_or_none, "a str or None"),
    "bad_samples": (_is_text_or_none, "a str or None"),
    "user": (lambda value: True, "anything"),
}
