"""How many samples each tar has, as users and tools say it."""

from __future__ import annotations

import json
import operator
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

from stateful_gpu_loader.datasets.storage.streams import open_stream

Counts: TypeAlias = (
    Mapping[str, SupportsIndex] | Sequence[SupportsIndex] | str | os.PathLike[str] | None
)
"""By name, in the order of the shards, or a JSON file of either kind that webdataset's tools write:
``{"000.tar": 1000, ...}`` (sizes.json) or ``{"shardlist": [{"url": ..., "nsamples": ...}]}``."""


def counts_by_name(counts: Counts, names: Sequence[str], paths: Sequence[str]) -> dict[str, int]:
    """The samples of each shard by its name; none where ``counts`` is None.

    Args:
        counts: a mapping or file names each shard as ``shards()`` does, by its path, or, where that
            is enough to tell them apart, by the last part of its path.
        names: of the shards, as ``shards()`` gives them.
        paths: of the shards.

    Raises:
        OSError: the file cannot be read.
        ValueError: a shard has no count, or one below 0; or the file is of neither kind.
        TypeError: a count is no integer.

    >>> counts_by_name({"a.tar": 3, "b.tar": 4}, ["x/a.tar", "y/b.tar"], ["/x/a.tar", "/y/b.tar"])
    {'x/a.tar': 3, 'y/b.tar': 4}
    """
    if counts is None:
        return {}
    given: Any = _from_file(os.fspath(counts)) if isinstance(counts, (str, os.PathLike)) else counts
    if isinstance(given, Mapping):
        found = _by_name(given, names, paths)
    elif len(given) == len(names):
        found = dict(zip(names, given, strict=True))
    else:
        raise ValueError(
            f"counts has {len(given)} numbers for {len(names)} shards. Remedy: give one a shard"
        )
    numbers = {name: operator.index(count) for name, count in found.items()}
    for name, number in numbers.items():
        if number < 0:
            raise ValueError(f"counts has {number} samples for {name!r}. Remedy: count from 0")
    return numbers


def _by_name(
    given: Mapping[str, Any], names: Sequence[str], paths: Sequence[str]
) -> dict[str, Any]:
    last = [path.rpartition("/")[2] for path in paths]
    alike = Counter(last)
    found = {}
    for name, path, end in zip(names, paths, last, strict=True):
        ways = (name, path, end) if alike[end] == 1 else (name, path)
        way = next((way for way in ways if way in given), None)
        if way is None:
            raise ValueError(
                f"counts does not name the shard {name!r}. Remedy: give one for each, by the names "
                "that shards() gives"
            )
        found[name] = given[way]
    return found


def _from_file(path: str) -> dict[str, Any]:
    with open_stream(path) as stream:
        text = stream.read()
    try:
        content = json.loads(text)
        if isinstance(content.get("shardlist", content), dict):
            return dict(content)
        return {
            name: entry["nsamples"]
            for entry in content["shardlist"]
            for name in (entry["url"], entry["url"].rpartition("/")[2])
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path!r} is no list of shards and samples ({type(error).__name__}: {error}). Remedy: "
            'pass a JSON file such as {"000.tar": 1000}'
        ) from error
