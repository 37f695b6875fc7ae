"""Sources with damaged images, and how their makers are made; beside ``damaged``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source
from stateful_gpu_loader.decoders import Decoder, ImageHeader, make_decoder
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.images import CallableMaker, ImageMaker
from stateful_gpu_loader.engine.makers.memory import BatchMemory
from stateful_gpu_loader.records import EncodedSample
from tests.engine.makers.damaged import policy_for
from tests.images import encode, photograph, write_photo_folder

NUM_PHOTOS = 21
RECIPES = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]


def undecodable(good: bytes) -> bytes:
    """A sound header and a sound end, and between them what no decoder reads."""
    return good[:-400] + b"\xff\xc0" * 199 + good[-2:]


DAMAGE: dict[int, Callable[[bytes], bytes]] = {
    2: lambda good: good[: len(good) // 2],
    5: lambda good: b"this is no photograph\n" * 20,
    6: undecodable,
    11: lambda good: b"",
    13: undecodable,
}


def write_damaged_photos(root: Path) -> Path:
    """Writes ``NUM_PHOTOS`` files, those of ``DAMAGE`` damaged; the folder."""
    files = write_photo_folder(root, num_classes=3, per_class=7)
    assert len(files) == NUM_PHOTOS
    for index, damage in DAMAGE.items():
        files[index].write_bytes(damage(files[index].read_bytes()))
    return root


class Redirected(Source):
    """Another source in which some indices hold the samples of others; counts what is read."""

    def __init__(self, source: Source, copies: Mapping[int, int] | None = None) -> None:
        self.source = source
        self.copies = copies or {}
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> EncodedSample:
        self.reads[index] += 1
        return self.source.read(self.copies.get(index, index))

    def fingerprint(self) -> str:
        return "redirected"


class InMemory(Source):
    """Images of given sizes, some of which cannot be decoded."""

    def __init__(self, sizes: list[tuple[int, int]], broken: set[int]) -> None:
        self.files = []
        for index, (height, width) in enumerate(sizes):
            photo = photograph("coffee").rotate(7 * index).resize((width, height))
            data = encode(photo, quality=95)
            if index in broken:
                good = bytes(data.numpy())
                data = torch.frombuffer(bytearray(undecodable(good)), dtype=torch.uint8)
            self.files.append(data)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> EncodedSample:
        return EncodedSample(self.files[index], {"index": torch.tensor(index)}, f"{index}.jpg")

    def fingerprint(self) -> str:
        return "in memory"


class Counting(Decoder):
    """Counts what it decodes."""

    family = "counting"

    def __init__(self) -> None:
        self.decoder = make_decoder("torchvision")
        self.calls = 0

    def version(self) -> str:
        return "1"

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        self.calls += 1
        return self.decoder.decode(data, header)


def image_maker(
    source: Source,
    policy: BadSamplePolicy | str = "raise",
    *,
    recipes: list[T.Recipe] = RECIPES,
    collate_fn: Callable[[Any], Any] = default_collate,
    batched: bool = True,
    decoder: Decoder | None = None,
) -> ImageMaker:
    """A maker as a loader makes it."""
    if isinstance(policy, str):
        policy = policy_for(source, policy)
    return ImageMaker(
        source,
        decoder=decoder or make_decoder("torchvision"),
        recipes=T.Compose(recipes),
        collate_fn=collate_fn,
        batched=batched,
        allocate=BatchMemory(2).empty,
        policy=policy,
    )


def callable_maker(
    source: Source, policy: BadSamplePolicy | str = "raise", transform: Any = None
) -> CallableMaker:
    """The same, with a callable of the user's that draws."""
    if isinstance(policy, str):
        policy = policy_for(source, policy)
    return CallableMaker(
        source,
        decoder=make_decoder("torchvision"),
        transform=transform or noisy_corner,
        collate_fn=default_collate,
        batched=True,
        policy=policy,
    )


def noisy_corner(image: torch.Tensor) -> torch.Tensor:
    return image[:, :8, :8] + torch.rand(3, 8, 8)


def identity(samples: list[Any]) -> list[Any]:
    return samples


MAKERS: dict[str, Any] = {
    "recipes": image_maker,
    "recipes, own collate": partial(image_maker, collate_fn=identity),
    "callable": callable_maker,
}
