"""Which samples of indexed tars have the image and the target that were asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.tar.choice import MemberChoice, Missing
from stateful_gpu_loader.datasets.tar.index import Numbers, TarIndex


@dataclass(frozen=True)
class Selection:
    """The samples that are left, over all tars."""

    samples: Numbers
    """int64 [n]: their numbers among the samples of all tars."""
    members: Numbers
    """int64 [n, slots]: of each, the members chosen, by their numbers among those of all tars."""
    ends: list[int]
    """After each tar, how many there are up to it."""


def select(
    indices: list[TarIndex], choice: MemberChoice, paths: list[str], missing: Missing
) -> Selection:
    """The samples with a member for each slot.

    Args:
        indices: of the tars, in order.
        choice: the slots.
        paths: of the tars, for errors.
        missing: ``"error"`` refuses samples that lack one, ``"skip"`` leaves them out.

    Raises:
        ValueError: samples lack one and are not to be left out, or none is left; the text counts
            them and names the first.
    """
    found = [_members(index, choice) for index in indices]
    lacking = [np.asarray((members < 0).any(axis=1)) for members in found]
    num_lacking, total = (
        sum(int(lack.sum()) for lack in lacking),
        sum(len(lack) for lack in lacking),
    )
    if num_lacking and (missing == "error" or num_lacking == total):
        raise ValueError(_complaint(indices, choice, paths, found))
    if not total:
        raise ValueError(
            f"{paths[0]!r}{' and the other tars hold' if paths[1:] else ' holds'} no sample: no "
            "file with a name like 'key.jpg'. Remedy: correct the path"
        )
    kept = [np.flatnonzero(~lack) for lack in lacking]
    before_samples = np.cumsum([0, *(len(lack) for lack in lacking)])
    before_members = np.cumsum([0, *(len(index.members) for index in indices)])
    return Selection(
        np.concatenate([rows + start for rows, start in zip(kept, before_samples, strict=False)]),
        np.concatenate(
            [
                members[rows] + start
                for members, rows, start in zip(found, kept, before_members, strict=False)
            ]
        ),
        np.cumsum([len(rows) for rows in kept]).tolist(),
    )


def _members(index: TarIndex, choice: MemberChoice) -> Numbers:
    """int64 [samples, slots]: of each sample the member for a slot, -1 where there is none."""
    num_samples, num_members = len(index.starts) - 1, len(index.members)
    found = np.full((num_samples, len(choice.slots)), -1, dtype=np.int64)
    if not num_samples:
        return found
    for slot, alternatives in enumerate(choice.slots):
        ranks = np.full(len(index.vocabulary), len(alternatives), dtype=np.int64)
        for rank, name in reversed(list(enumerate(alternatives))):
            if name in index.vocabulary:
                ranks[index.vocabulary.index(name)] = rank
        # The best rank of a sample, and the member that has it, in one number.
        both = ranks[index.extensions] * num_members + np.arange(num_members)
        best = np.minimum.reduceat(both, index.starts[:-1])
        there = best < len(alternatives) * num_members
        found[there, slot] = best[there] % num_members
    return found


def _complaint(
    indices: list[TarIndex],
    choice: MemberChoice,
    paths: list[str],
    found: list[npt.NDArray[np.int64]],
) -> str:
    total = sum(map(len, found))
    counts = [
        f"{number} lack the {choice.names(slot)}"
        for slot in range(len(choice.slots))
        if (number := sum(int((members[:, slot] < 0).sum()) for members in found))
    ]
    tar = next(number for number, members in enumerate(found) if (members < 0).any())
    sample = int((found[tar] < 0).any(axis=1).argmax())
    return (
        f"of {total} samples in {len(paths)} tars {' and '.join(counts)}. The first: key "
        f"{indices[tar].key(sample)!r} in {paths[tar]!r} has "
        f"{', '.join(map(repr, indices[tar].extensions_of(sample)))}. Remedy: pass image= and "
        "target= as the members are called, or missing='skip' to leave such samples out; where the "
        "members of a key do not follow each other, pack the tar anew in the order of the names"
    )
