"""What a folder of prepared images was made from, as the folder itself says."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from stateful_gpu_loader.datasets.prepared.store import INDEX_FILE
from stateful_gpu_loader.datasets.storage.kept_files import (
    KeptFile,
    Owners,
    new_file,
    owners_for_folder,
)

_FILE = "prepared.json"
_LAYOUT = 3
"""Version of the files in the folder."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What decides the pixels in a folder, and how they are laid out."""

    source: str
    """Fingerprint of the source."""
    recipes: str
    """Fingerprint of the recipes."""
    decoder: str
    """Family of the decoder."""
    versions: tuple[str, ...]
    """Versions of the packages that made the pixels; others may make other last bits."""
    segment_bytes: int
    """Size at most of a file of pixels."""
    layout: int = _LAYOUT

    def key(self) -> bytes:
        """16 bytes that differ where other pixels belong into the folder."""
        text = json.dumps([self.source, self.recipes, self.decoder])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def check_types(self) -> None:
        """Raises ValueError unless each field is of its type."""
        texts = (self.source, self.recipes, self.decoder, *self.versions)
        numbers = (self.segment_bytes, self.layout)
        if not all(type(text) is str for text in texts) or not all(
            type(number) is int and 0 < number < 1 << 32 for number in numbers
        ):
            raise ValueError(f"its fields are {asdict(self)}")

    def check(self, folder: Path, found: Description) -> None:
        """Refuse a folder of other pixels than these; warn of other versions.

        Raises:
            ValueError: the folder was made from something else.
        """
        for name in ("layout", "source", "recipes", "decoder"):
            present, before = getattr(self, name), getattr(found, name)
            if present != before:
                raise ValueError(
                    f"{str(folder)!r} was prepared with another {name}: {before!r:.200} instead of "
                    f"{present!r:.200}. Remedy: give another directory, or remove this one"
                )
        if self.versions != found.versions:
            warnings.warn(
                f"the images in {str(folder)!r} were begun by {found.versions!r:.200}, this is "
                f"{self.versions}: images that are added may differ in their last bits",
                stacklevel=4,
            )


def read_description(folder: Path) -> Description | None:
    """Return the description in a folder; None if it was not begun.

    Raises:
        ValueError: the description is damaged, or of a later version of this package.
        PermissionError: it is not trusted (:class:`KeptFile`).
        OSError: it cannot be read.
    """
    path = folder / _FILE
    try:
        kept = KeptFile(str(path), os.O_RDONLY, owners_for_folder(folder))
    except FileNotFoundError:
        return None
    with open(kept.number, "rb", closefd=False) as file:
        content = file.read()
    try:
        fields = json.loads(content.decode())
        found = Description(**{**fields, "versions": tuple(fields["versions"])})
        found.check_types()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} is no description of prepared images: {error!s:.200}. Remedy: remove "
            "its folder, or give another one"
        ) from error
    return found


def begin(folder: Path, wanted: Description, *, index_bytes: int) -> Description:
    """Make a folder, unless another process has, and return the description that it has.

    Raises:
        PermissionError: a file in it is not trusted (:class:`KeptFile`).
        OSError: it cannot be made or read.
        ValueError: it was made from something else.
    """
    found = read_description(folder)
    if found is None:
        _make(folder, wanted, index_bytes)
        found = read_description(folder)
    if found is None:
        raise FileNotFoundError(f"{str(folder / _FILE)!r} was removed while it was made")
    wanted.check(folder, found)
    with contextlib.suppress(FileNotFoundError):
        KeptFile(str(folder / INDEX_FILE), os.O_RDONLY, owners_for_folder(folder))
    return found


def _make(folder: Path, wanted: Description, index_bytes: int) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        owners = owners_for_folder(folder)
        index = KeptFile(str(folder / INDEX_FILE), os.O_RDWR | os.O_CREAT, owners)
        # It only grows: another process may have begun the folder, and written to it.
        if os.fstat(index.number).st_size < index_bytes:
            os.truncate(index.number, index_bytes)
        _write_once(folder, json.dumps(asdict(wanted), indent=1), owners)
    except PermissionError:
        raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}, so no directory of prepared images can be begun. Remedy: make room "
            "there, or give another directory",
            str(folder),
        ) from error


def _write_once(folder: Path, text: str, owners: Owners) -> None:
    """Write the description whole, unless another process was faster."""
    with (
        new_file(folder / _FILE, owners) as (file, temporary),
        contextlib.suppress(FileExistsError),
    ):
        file.write(text.encode())
        file.close()
        os.link(temporary, folder / _FILE)
