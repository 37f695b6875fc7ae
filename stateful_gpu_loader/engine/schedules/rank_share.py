"""Users' samplers that yield one rank's share of the indices, as DistributedSampler does.

Their digest names the rank. To load one rank's state on another, the sampler is iterated as the
saved rank and compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stateful_gpu_loader.engine.schedules.sampler_snapshot import samplers_in
from stateful_gpu_loader.errors import StateMismatch

_RANKED = re.compile(r"([0-9a-f]+) of rank (\d+) of (\d+)")


class RankShare:
    """The rank and number of ranks whose share a sampler yields.

    They are attributes of the sampler or of samplers in it.

    >>> class Dealt:
    ...     def __init__(self): self.rank, self.num_replicas = 1, 2
    ...     def __iter__(self): return iter(range(self.rank, 6, self.num_replicas))
    >>> sampler = Dealt()
    >>> share = RankShare(sampler)
    >>> share.signed("ab12")
    'ab12 of rank 1 of 2'
    >>> with share.taken_as(0):
    ...     list(sampler)
    [0, 2, 4]
    >>> list(sampler)
    [1, 3, 5]
    """

    def __init__(self, sampler: Any) -> None:
        divided = [each for each in (sampler, *samplers_in(sampler)) if _divides(each)]
        places = {(each.rank, each.num_replicas) for each in divided}
        self._divided: list[Any] = divided if len(places) == 1 else []
        self._place: tuple[int, int] | None = next(iter(places)) if len(places) == 1 else None

    def __str__(self) -> str:
        return "" if self._place is None else " of rank {} of {}".format(*self._place)

    def signed(self, digest: str) -> str:
        """Return the digest with the rank of its indices, if the sampler has one."""
        return f"{digest}{self}"

    def other_rank(self, saved: str | None) -> int | None:
        """Return the rank of a saved digest; None for this rank's indices.

        Raises:
            StateMismatch: the digest belongs to a share among another number of ranks.
        """
        match = None if saved is None else _RANKED.fullmatch(saved)
        if match is None or self._place is None:
            return None
        rank, num_replicas = int(match[2]), int(match[3])
        if num_replicas != self._place[1]:
            raise StateMismatch(
                "sampler",
                saved=f"indices of rank {rank} of {num_replicas}",
                present=f"a sampler{self}",
                remedy=f"resume with num_replicas={num_replicas}; a sampler of this package, such "
                "as DistributedShuffledSampler or RepeatedSampler, resumes on any number of ranks",
            )
        return None if rank == self._place[0] else rank

    @contextmanager
    def taken_as(self, rank: int) -> Iterator[None]:
        """Let the sampler yield another rank's share while the context is open."""
        own = [sampler.rank for sampler in self._divided]
        try:
            for sampler in self._divided:
                sampler.rank = rank
            yield
        finally:
            for sampler, before in zip(self._divided, own, strict=True):
                sampler.rank = before


def unsigned(digest: Any) -> Any:
    """Return the part that the digests of all ranks' shares have in common.

    >>> unsigned("ab12 of rank 1 of 2"), unsigned("ab12")
    ('of 2', 'ab12')
    """
    match = _RANKED.fullmatch(digest) if isinstance(digest, str) else None
    return digest if match is None else f"of {match[3]}"


def _divides(sampler: Any) -> bool:
    """Whether a sampler has a rank that can be set, among several ranks."""
    rank = getattr(sampler, "__dict__", {}).get("rank")
    if type(rank) is not int:
        return False
    try:
        num_replicas = getattr(sampler, "num_replicas", None)
    except RuntimeError:  # torch.distributed is not initialised yet
        return False
    return type(num_replicas) is int and 0 <= rank < num_replicas > 1
