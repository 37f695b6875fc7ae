"""Which members of a sample are its image and its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from stateful_gpu_loader.datasets.tar.samples import KEY, PICKLES
from stateful_gpu_loader.datasets.target_choice import Target, TargetChoice

Names: TypeAlias = str | Sequence[str]
Missing: TypeAlias = Literal["error", "skip"]

IMAGES = ("jpg", "jpeg", "png", "webp")
"""The extensions of what the decoders read."""


class MemberChoice:
    """The extensions that are looked for in each sample.

    Args:
        image: an extension, or several; each may be a choice such as ``"jpg;png"``.
        target: as of :class:`TargetChoice`, of extensions and such choices, or ``"__key__"``.
        missing: whether a sample that lacks one of them is an error or is skipped.

    Attributes:
        missing: as given.
        slots: of the image, then of each part of the target that is a member: extensions, of which
            the first that a sample has is taken.

    Raises:
        ValueError: an extension is empty, or its files are pickles, or ``missing`` is unknown.
        TypeError: an argument is of another type.

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
        """All extensions."""
        return frozenset(extension for slot in self.slots for extension in slot)

    def target(self, values: list[Any], key: str, number: int) -> Any:
        """The target of a sample.

        Args:
            values: of the slots after the image's.
            key: of the sample.
            number: what the target is where no member is asked for.
        """
        by_name = dict(zip(self._names, values, strict=True))
        by_name[KEY] = key
        return self._target.make(by_name.__getitem__, number)

    def names(self, slot: int) -> str:
        """A slot in words, for errors."""
        return f"{'target' if slot else 'image'} ({', '.join(self.slots[slot])})"

    def __str__(self) -> str:
        """Equal for equal choices: part of a fingerprint."""
        return self._text


def _alternatives(name: object, argument: str) -> tuple[str, ...]:
    if not isinstance(name, str):
        raise TypeError(
            f"{argument}= has {name!r}, which is no extension. Remedy: pass names such as 'jpg'"
        )
    parts = tuple(part.strip().lower().removeprefix(".") for part in name.split(";"))
    if not all(parts) or KEY in parts:
        raise ValueError(
            f"{argument}={name!r} is no choice of extensions. Remedy: pass names such as 'jpg;png'"
        )
    pickled = [part for part in parts if part.rpartition(".")[2] in PICKLES]
    if pickled:
        raise ValueError(
            f"{argument}= names {pickled[0]!r}: such files are pickles, which run code when they "
            "are loaded, and are never loaded here. Remedy: store the values as json or npy"
        )
    return parts
