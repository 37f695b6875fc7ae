"""Composer's callback is not included: copy its few lines from docs/trainers/composer.md."""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.errors import MissingDependency


def __getattr__(name: str) -> Any:
    if name == "LoaderStateCallback":
        raise MissingDependency(
            "mosaicml for torch>=2.8",
            needed_for="LoaderStateCallback for Composer",
            remedy="Composer has no such release: copy the callback of docs/trainers/composer.md "
            "into your program, where it loads the checkpoints that this one wrote",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
