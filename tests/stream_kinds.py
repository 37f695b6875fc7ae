"""The table of loaders: every kind of stream, by the name that tests use.

``KINDS`` need no files and are cheap, so every general test runs on each of them. ``LOADERS`` holds
all kinds. ``tests/loader/test_conformance.py`` resumes each of them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
)
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stateful_gpu_loader import (
    ArraySource,
    CallableSource,
    FolderSource,
    HuggingFaceSource,
    MixedDataset,
    StatefulGPULoader,
    WeightedSampler,
)
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.samplers import ShardSampler
from stateful_gpu_loader.samplers.sharded import LastBatchPolicy
from tests.callables import FileBatches, Files, NoisyBatches, NoisyPlaces
from tests.datasets.shards import DamagedShards, NoisyShards, PhotoShards, identity
from tests.fuzz.configurations import Configuration
from tests.fuzz.data import Composed
from tests.images import kept_photos, small_photographs
from tests.makers import MAKERS
from tests.map_datasets import Indices, Jitter, Noisy
from tests.own_augmentations import HOLDERS, Albumentations
from tests.samplers.makers import SAMPLERS
from tests.samplers.makers import N as N_OF_SAMPLERS
from tests.user_objects import (
    BrokenIterable,
    CountingSampler,
    Endless,
    Exhausted,
    IterableWithBrokenIterator,
    KeepsWhatItLoaded,
    LazySampler,
    OwnGeneratorSampler,
    SamplerWithStatefulIterator,
    ShufflingGroups,
    StatefulBatchSampler,
    StatefulSampler,
)

Make = Callable[..., StatefulGPULoader[Any]]
Arguments = Callable[[], dict[str, Any]]
N = 23


def build(dataset: Callable[[], Any], of: dict[str, Callable[[], Any]], **given: Any) -> Any:
    made = {name: value() for name, value in of.items()}
    return StatefulGPULoader(dataset(), **{"batch_size": 4, "seed": 1, **made, **given})


def _loader(dataset: Callable[[], Any] = lambda: Noisy(N), /, **of: Any) -> Make:
    """Return a maker of loaders, which calls each callable argument for each new loader."""
    made = {name: value for name, value in of.items() if callable(value)}
    return partial(build, dataset, made, **{k: of[k] for k in of if k not in made})


def _mixture() -> MixedDataset:
    return MixedDataset([Noisy(20), Noisy(7)], weights=[0.7, 0.3], num_samples=26, block_length=8)


def _counted(**arguments: Any) -> Callable[[], NoisyShards]:
    return partial(NoisyShards, counted=True, **arguments)


# Users' samplers.


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def shared_generator() -> dict[str, Any]:
    """Return one generator for both the loader and its sampler."""
    both = generator()
    return {"sampler": RandomSampler(range(N), generator=both), "generator": both, "seed": None}


WITHOUT_STATE: dict[str, Arguments] = {
    "random, shared generator": shared_generator,
    "random, replacement": lambda: {"sampler": RandomSampler(range(N), True, 40)},
    "distributed": lambda: {"sampler": DistributedSampler(Indices(N), 2, 1)},
    "batches of torch": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(N), generator=generator()), 4, True),
        "batch_size": 1,
    },
    "unbatched": lambda: {
        "batch_size": None,
        "sampler": RandomSampler(range(N), generator=generator()),
    },
    "generator function": lambda: {"sampler": LazySampler()},
    "generator function, drop_last": lambda: {"sampler": LazySampler(), "drop_last": True},
    "counter": lambda: {"sampler": CountingSampler(N)},
    "own torch generator": lambda: {"sampler": OwnGeneratorSampler(N, generator())},
    "own NumPy generator": lambda: {"sampler": OwnGeneratorSampler(N, np.random.default_rng(3))},
    "own NumPy Mersenne": lambda: {"sampler": OwnGeneratorSampler(N, np.random.RandomState(3))},
    **{
        f"shuffles in place: {kind}": partial(
            lambda kind: {"sampler": ShufflingGroups(N, kind)}, kind
        )
        for kind in ("dict", "list", "deque", "array", "tensor")
    },
    "a list": lambda: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6]},
    "a list of batches": lambda: {"batch_sampler": [[3, 1], [4], [1, 5, 9]], "batch_size": 1},
}
WITH_STATE: dict[str, Arguments] = {
    "on the sampler": lambda: {"sampler": StatefulSampler(N)},
    "on its iterator": lambda: {"sampler": SamplerWithStatefulIterator(N)},
    "on a batch sampler": lambda: {"batch_sampler": StatefulBatchSampler(N), "batch_size": 1},
    "inside torch's batch sampler": lambda: {
        "batch_sampler": BatchSampler(StatefulSampler(N), 4, False),
        "batch_size": 1,
    },
    "unbatched": lambda: {"sampler": StatefulSampler(N), "batch_size": None},
    "distributed of torchdata": lambda: {"sampler": StatefulDistributedSampler(Indices(N), 2, 1)},
}


def with_arguments(case: Arguments, **arguments: Any) -> StatefulGPULoader[Any]:
    """Return a loader of ``Noisy(N)``, with new samplers each time."""
    given = {"batch_size": 4, "seed": 1, **case(), **arguments}
    if "batch_sampler" in given:
        del given["batch_size"]
    return StatefulGPULoader(Noisy(N), **given)


COUNTED: dict[str, Make] = {
    "order": _loader(shuffle=True),
    "drop_last": _loader(drop_last=True),
    "one of two ranks": _loader(shuffle=True, num_replicas=2, rank=1),
    "one of three ranks, drop_last": _loader(num_replicas=3, rank=2, drop_last=True),
    "unbatched": _loader(shuffle=True, batch_size=None),
    "epochs of several lengths": _loader(
        batch_size=2, sampler=lambda: ShardSampler(range(N), 2, num_shards=5, shard_id=1)
    ),
    "weighted draws": _loader(sampler=lambda: WeightedSampler([1.0] * N, 14, replacement=False)),
    "mixture": _loader(_mixture, shuffle=True),
    "dataset with state": MAKERS["dataset with state"],
    "shards": _loader(_counted(), shuffle=True),
    "shards, drop_last": _loader(_counted(), drop_last=True),
    "shards, one of two ranks": _loader(_counted(lanes=4), num_replicas=2, rank=1),
    "calls": _loader(lambda: CallableSource(NoisyPlaces(10), length=10)),
    "calls for batches": _loader(
        lambda: CallableSource(NoisyBatches(5), batch=True, length=5), batch_size=None
    ),
    "a sampler without state": partial(with_arguments, WITHOUT_STATE["distributed"]),
    "a list of batches": partial(with_arguments, WITHOUT_STATE["a list of batches"]),
    **{
        f"a sampler with state, {name}": partial(with_arguments, case)
        for name, case in WITH_STATE.items()
        if name != "on a batch sampler"
    },
    **{
        f"a sampler of {name}": partial(with_arguments, WITHOUT_STATE[name])
        for name in ("random, shared generator", "batches of torch", "unbatched", "a list")
    },
}
"""Loaders whose number of batches is known in advance."""

ENDING_SOMEWHERE: dict[str, Make] = {
    "shards of unknown length": _loader(NoisyShards, shuffle=True),
    "calls without length": _loader(lambda: CallableSource(NoisyPlaces(10, 13))),
    "a batch sampler with state": partial(with_arguments, WITH_STATE["on a batch sampler"]),
    **{
        f"a sampler of {name}": partial(with_arguments, WITHOUT_STATE[name])
        for name in ("generator function", "generator function, drop_last", "counter")
    },
    **{name: make for name, make in MAKERS.items() if "itera" in name},
}
"""Loaders whose end is known only when it is reached."""

KINDS = {**COUNTED, **ENDING_SOMEWHERE}


# More datasets and orders, and user code.


def of_fuzzer(**options: Any) -> Make:
    """Return a maker of loaders with the fuzzer's options."""
    configuration = Configuration(options).settled()
    return lambda **changes: configuration.but(**changes).build()


def _named(**options: Any) -> dict[str, Make]:
    words = (v if isinstance(v, str) else f"{name} {v}" for name, v in options.items())
    return {", ".join(words): of_fuzzer(**options)}


_OWN_CODE = {"transform": "noise", "collate_fn": "mixing", "batch_transform": "blend"}
_DROPPED = {"bad": (3, 4), "on_bad_sample": "drop"}
OF_FUZZER: dict[str, Make] = {
    **{
        f"data: {name}": of_fuzzer(data=name)
        for name in (
            "content",
            "rarely noisy",
            "fetched in batches",
            "own generator",
            "composed",
            "images",
            "prepared images",
            "called iterator",
            "function of images",
            "tars",
        )
    },
    **{
        f"order: {name}": of_fuzzer(data="noisy", order=name)
        for name in ("torch's subset", "torch's weighted", "in place")
    },
    **_named(data="noisy", n=1),
    **_named(data="noisy", n=2, drop_last=True),
    **_named(data="noisy", n=8, drop_last=True),
    **{
        name: make
        for data in ("noisy", "function", "shards", "iterable")
        for name, make in _named(data=data, **_OWN_CODE).items()
    },
    **{
        name: make
        for data in ("stateful", "iterable", "own iterator", "function", "called iterator")
        for name, make in _named(data=data, batch_size=None).items()
    },
    **{
        name: make
        for data in ("iterable", "stateful iterable", "own iterator", "function")
        for name, make in _named(data=data, drop_last=True).items()
    },
    **{
        name: make
        for data in ("noisy", "stateful", "iterable", "stateful iterator", "function", "images")
        for name, make in _named(data=data, **_DROPPED).items()
    },
    **_named(data="noisy", bad=(3, 4), on_bad_sample="replace"),
    **_named(data="images", bad=(0,), on_bad_sample="replace"),
    **{
        name: make
        for data in ("noisy", "stateful")
        for order in ("stateful", "stateful iterator")
        for name, make in _named(data=data, order=order, snapshot_every_n_steps=3).items()
    },
}
"""Loaders with one or a few of the fuzzer's options, and data and orders that only it has."""


class Labelled(Indices):
    """Images of a single value, and labels."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 8, 8), float(index)) + torch.rand(()), index % 5


def blend(batch: list[torch.Tensor]) -> list[Any]:
    """A collate function like MixUp: one draw from each global generator for the whole batch."""
    weight = random.random() + float(torch.rand(())) + float(np.random.rand())
    return [batch[0].float() * weight, *batch[1:]]


def with_augmentations(case: Arguments, **arguments: Any) -> StatefulGPULoader[Any]:
    """Return a loader whose dataset or transform holds private generators."""
    given = {"batch_size": 4, "shuffle": True, "seed": 3, "collate_fn": list, **case()}
    return StatefulGPULoader(**{**given, **arguments})


def _dali_shard(policy: LastBatchPolicy, **arguments: Any) -> Make:
    """Return a maker of one shard of three, as in DALI's readers."""
    given = {"shard_id": 2, "num_shards": 3, "last_batch_policy": policy, **arguments}
    sampler = partial(ShardSampler, Noisy(14), 2, **given)
    return _loader(lambda: Noisy(14), batch_size=2, sampler=sampler)


_FILL, _DROP, _PARTIAL = LastBatchPolicy
OF_MAPS: dict[str, Make] = {
    "a transform's private generator": _loader(transform=Jitter),
    "private generators in Compose": _loader(lambda: Composed(N, Jitter(), Jitter())),
    **{
        f"albumentations in {name}": partial(with_augmentations, case)
        for name, case in HOLDERS.items()
    },
    **{
        f"albumentations.{kind}": _loader(
            lambda kind=kind: Albumentations(kind), batch_size=16, collate_fn=lambda: list
        )
        for kind in ("Compose", "ReplayCompose")
    },
    "batch_transform of torchvision": _loader(
        lambda: Labelled(22), batch_transform=lambda: v2.MixUp(num_classes=5)
    ),
    "batch_transforms": _loader(
        lambda: Labelled(22),
        batch_transform=lambda: [T.CutMix(num_classes=5), blend, T.MixUp(num_classes=5)],
    ),
    **{
        f"a sampler of {name}": partial(with_arguments, case)
        for name, case in WITHOUT_STATE.items()
        if name not in ("distributed", "a list of batches")
    },
    **{
        f"sampler by position, {name}": _loader(
            lambda: Noisy(N_OF_SAMPLERS), sampler=make, collate_fn=lambda: identity
        )
        for name, make in SAMPLERS.items()
    },
    "mixture, in order": _loader(_mixture, shuffle=False),
    "mixture in a mixture": _loader(
        lambda: MixedDataset([_mixture(), Noisy(9)], [0.7, 0.3], num_samples=21), shuffle=True
    ),
    "DALI's shard": _dali_shard(_FILL),
    "DALI's shard, sticking": _dali_shard(_PARTIAL, pad_last_batch=True, stick_to_shard=True),
    "DALI's shard, shuffled": _dali_shard(_DROP, pad_last_batch=True, random_shuffle=True),
    "DALI's shard, shuffled, sticking": _dali_shard(
        _PARTIAL, random_shuffle=True, stick_to_shard=True
    ),
    "DALI's shard, shuffled after epochs": _dali_shard(_DROP, shuffle_after_epoch=True),
}


def _shards(lanes: int, **of: Any) -> Make:
    dataset = NoisyShards((5, 0, 3, 8, 1), lanes=lanes, buffer=9)
    return _loader(lambda: dataset, **{"shuffle": True, **of})


def _damaged(**of: Any) -> Make:
    damage = {0: (3, "value"), 2: (8, "value"), 3: (0, "missing"), 5: (2, "missing")}
    dataset = DamagedShards(damage, (7, 4, 9, 5, 0, 6), lanes=2, buffer=10)
    return _loader(lambda: dataset, batch_size=3, on_bad_sample="drop", **of)


_BAD_AMONG = [5, 17, 9, 0, 6]
OF_STREAMS: dict[str, Make] = {
    "shards, one lane in order": _shards(1, shuffle=False),
    "shards, one lane": _shards(1, batch_size=1),
    "shards, three lanes in order": _shards(3, shuffle=False, batch_size=2),
    "shards, three lanes": _shards(3, drop_last=True),
    "shards, more lanes than shards": _shards(8),
    "shards, unbatched": _shards(3, batch_size=None),
    "shards, one batch of everything": _shards(3, batch_size=100),
    "damaged shards": _damaged(shuffle=True),
    "damaged shards in order": _damaged(shuffle=False),
    "iterable that keeps what it loaded": _loader(KeepsWhatItLoaded, batch_size=2),
    "broken iterator": _loader(
        lambda: IterableWithBrokenIterator(_BAD_AMONG), on_bad_sample="drop"
    ),
    "broken iterable": _loader(lambda: BrokenIterable(_BAD_AMONG), on_bad_sample="drop"),
    "calls, ending at a batch's end": _loader(lambda: CallableSource(NoisyPlaces(8))),
    "calls, empty epochs": _loader(lambda: CallableSource(NoisyPlaces(0, 5, 0))),
    "calls for batches, empty epochs": _loader(
        lambda: CallableSource(NoisyBatches(4, 0, 1), batch=True), batch_size=None
    ),
    "called iterator, endless": _loader(lambda: CallableSource(Endless()), batch_size=2),
    "called iterator, exhausted": _loader(lambda: CallableSource(Exhausted()), batch_size=2),
}


# Images that the loader decodes.


RECIPES = [
    T.RandomResizedCrop(24),
    T.RandomHorizontalFlip(),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomRotation(20),
    T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]
ALL_RECIPES = [
    T.RandomCrop(48, padding=4, pad_if_needed=True),
    T.Resize(40),
    T.RandomVerticalFlip(),
    T.RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 5),
    T.TrivialAugmentWide(),
    T.RandAugment(),
    T.GaussianBlur(3),
    T.RandomGrayscale(0.3),
    T.CenterCrop(36),
    T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    T.RandomErasing(0.7, value="random"),
    T.ToDtype(torch.bfloat16),
    T.ToMemoryFormat(torch.channels_last),
]
CONVERTED = list(
    T.from_torchvision(
        [
            v2.RandomChoice([v2.RandomResizedCrop(24), v2.RandomResizedCrop(24, (0.5, 1.0))]),
            v2.RandomApply([v2.ColorJitter(0.4), v2.GaussianBlur(3)], p=0.5),
            v2.RandomOrder([v2.RandomRotation(9), v2.RandomHorizontalFlip()]),
            v2.AugMix(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    ).recipes
)
V2 = v2.Compose([v2.RandomResizedCrop(24), v2.ColorJitter(0.5), v2.ToDtype(torch.float32, True)])


def _source() -> FolderSource:
    return FolderSource(kept_photos())


def _photographs(**of: Any) -> Make:
    return _loader(_source, **{"shuffle": True, "transform": RECIPES, **of})


def noisy_corner(image: torch.Tensor) -> torch.Tensor:
    """A user's transform that draws from two generators."""
    return image[:, :16, :16].float() * torch.rand(()) + np.random.rand()


def roll(image: torch.Tensor) -> torch.Tensor:
    return image.roll(int(torch.randint(9, ())), 1)


def ragged(samples: list[tuple[torch.Tensor, int]]) -> Any:
    """A collate function that draws, for images of any size."""
    shift = int(torch.randint(5, ()))
    return [image.roll(shift, 1) for image, _ in samples], [target for _, target in samples]


def _image_folder() -> ImageFolder:
    steps = [v2.PILToTensor(), v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()]
    return ImageFolder(str(kept_photos()), transform=v2.Compose(steps))


def _mixed_sources() -> MixedDataset:
    paths = sorted(kept_photos().rglob("*.jpg"))
    parts = [FolderSource.from_paths(paths[start::2], range(7)) for start in range(2)]
    return MixedDataset(parts, [0.3, 0.7], num_samples=15)


@functools.cache
def _rows() -> HuggingFaceSource:
    from tests.datasets.huggingface.saved import dataset_of  # imported only when needed

    files = [
        (path.read_bytes(), i % 3) for i, path in enumerate(sorted(kept_photos().rglob("*.jpg")))
    ]
    return HuggingFaceSource(dataset_of(files).shuffle(seed=1))


@functools.cache
def _pixels() -> ArraySource:
    return ArraySource(small_photographs(N), range(N))


def _calls(function: Any, **of: Any) -> Make:
    """Return a maker of a function that returns the bytes of photographs."""
    files = sorted(kept_photos().rglob("*.jpg"))
    return _loader(
        lambda: CallableSource(function(files), image=0, batch=function is FileBatches),
        **{"transform": RECIPES, "batch_size": None if function is FileBatches else 5, **of},
    )


def calls_for_photographs(**arguments: Any) -> StatefulGPULoader[Any]:
    return _calls(Files)(**arguments)


def calls_for_batches_of_photographs(**arguments: Any) -> StatefulGPULoader[Any]:
    return _calls(FileBatches)(**arguments)


@functools.cache
def _shards_of_photos(broken: frozenset[int]) -> PhotoShards:
    return PhotoShards((3, 6, 5, 4) if broken else (3, 0, 5, 1, 4), broken=broken)


_BROKEN = frozenset({101, 103, 201})


def _photo_shards(broken: frozenset[int] = frozenset(), **of: Any) -> Make:
    return _loader(
        lambda: _shards_of_photos(broken),
        **{"shuffle": True, "batch_size": 3, "transform": RECIPES, **of},
    )


OF_IMAGES: dict[str, Make] = {
    "photographs": _photographs(),
    "photographs, all recipes": _photographs(transform=ALL_RECIPES),
    "photographs, converted": _photographs(transform=CONVERTED),
    "photographs, parts of them": _photographs(decoder="nvimgcodec"),
    "photographs, scaled": _photographs(scaled_decoding=True),
    "photographs, unbatched": _photographs(batch_size=None),
    "photographs, transforms of torchvision": _photographs(transform=lambda: V2),
    "photographs, own transform": _photographs(transform=lambda: noisy_corner),
    "photographs, a recipe and own transform": _photographs(
        transform=lambda: [T.RandomResizedCrop(24), roll]
    ),
    "photographs, own collate_fn": _photographs(
        transform=[T.RandomHorizontalFlip()], collate_fn=lambda: ragged
    ),
    "photographs, own sampler": _photographs(
        shuffle=None, sampler=lambda: RandomSampler(range(13), generator=generator())
    ),
    "ImageFolder of torchvision": _loader(_image_folder, shuffle=True, strict=True),
    "rows of Hugging Face": _loader(_rows, shuffle=True, transform=RECIPES),
    "pixels of an array": _loader(_pixels, shuffle=True, transform=RECIPES),
    "pixels of an array, own sampler": _loader(
        _pixels, transform=RECIPES, sampler=lambda: RandomSampler(range(N), generator=generator())
    ),
    "mixture of photographs": _loader(_mixed_sources, shuffle=True, transform=RECIPES),
    "shards of photographs": _photo_shards(),
    "shards of photographs, in order": _photo_shards(shuffle=False, batch_size=2),
    "shards of photographs, unbatched": _photo_shards(batch_size=None),
    "shards of photographs, not collated": _photo_shards(
        transform=None, collate_fn=lambda: identity
    ),
    "shards of photographs, batch_transform": _photo_shards(batch_transform=lambda: blend),
    "shards of damaged photographs": _photo_shards(_BROKEN, batch_size=2, on_bad_sample="drop"),
    "shards of damaged photographs, one by one": _photo_shards(
        _BROKEN, batch_size=1, on_bad_sample="drop"
    ),
    "shards of damaged photographs, unbatched": _photo_shards(
        _BROKEN, batch_size=None, on_bad_sample="drop"
    ),
    "calls for photographs": calls_for_photographs,
    "calls for photographs, own transform": partial(calls_for_photographs, transform=noisy_corner),
    "calls for batches of photographs": calls_for_batches_of_photographs,
}

LOADERS = {**KINDS, **OF_FUZZER, **OF_MAPS, **OF_STREAMS, **OF_IMAGES}
