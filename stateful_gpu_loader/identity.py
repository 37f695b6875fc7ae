"""Whether a state belongs to a loader (law 4): what is compared, and what is said of it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection
from typing import Any

from stateful_gpu_loader.decoders import Decoder
from stateful_gpu_loader.decoders.batch_decoder import BatchDecoder
from stateful_gpu_loader.decoders.machine import package_versions
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.samplers import PositionOrder
from stateful_gpu_loader.shards.lanes import LanePlan
from stateful_gpu_loader.state import Fingerprint, LoaderState, describe

logger = logging.getLogger(__name__)


def fingerprint_of(
    *,
    dataset: Any,
    order: PositionOrder | LanePlan | None,
    sampler: Any,
    length: int | None,
    drop_last: bool,
    transform: Any,
    batch_transform: Any,
    decoder: Decoder | BatchDecoder | None,
    on_device: bool,
) -> Fingerprint:
    """Describe all that decides what the batches are, and nothing that does not.

    A dataset is known by its own ``fingerprint()``; without one it is not compared. A user's
    sampler is known by its class, an iterable dataset (no order, no sampler) by being one.

    Args:
        on_device: whether images are finished on a GPU: then triton's version counts, too.
    """
    version = None if decoder is None else decoder.version()
    if version is not None and on_device:
        version = ", ".join([version, *package_versions("triton")])
    has_content_id = callable(getattr(dataset, "fingerprint", None))
    if order is not None:
        algorithm = order.algorithm
    else:
        algorithm = "iterable" if sampler is None else f"sampler {type(sampler).__qualname__}"
    return Fingerprint(
        dataset=describe(dataset) if has_content_id else None,
        length=length,
        order=algorithm,
        shuffle=order is not None and order.is_shuffled,
        drop_last=drop_last,
        transform="none" if transform is None else describe(transform),
        batch_transform="none" if batch_transform is None else describe(batch_transform),
        decoder="none" if decoder is None else decoder.family,
        decoder_version=version,
    )


def check_fits(
    state: LoaderState, *, seed: int | None, num_positions: int | None, accept: Collection[str]
) -> None:
    """Compare what the fingerprint does not hold.

    Args:
        seed: that was given to the loader, or to its sampler.
        num_positions: of a loader with its own order; other positions cannot be checked here.

    Raises:
        StateMismatch: another explicit seed, or a position outside the epoch.
    """
    if seed not in (None, state.seed) and "seed" not in accept:
        raise StateMismatch(
            "seed",
            saved=state.seed,
            present=seed,
            remedy="pass seed=None, which takes the state's, or the saved seed, or "
            'load_state_dict(state, accept={"seed"})',
        )
    if num_positions is not None and state.position > num_positions:
        raise StateMismatch(
            "position",
            saved=state.position,
            present=f"an epoch of {num_positions} samples",
            remedy="load the state into a loader of the dataset that it was saved with",
        )


def report_changes(saved: Fingerprint, present: Fingerprint) -> None:
    """Say what differs and was accepted: nothing is ever silently ignored."""
    if saved.decoder == present.decoder and saved.decoder_version != present.decoder_version:
        warnings.warn(
            f"the state was saved with {saved.decoder} {saved.decoder_version}, this is "
            f"{present.decoder_version}: pixels may differ in their last bits",
            stacklevel=3,
        )
    for field, before in vars(saved).items():
        now = getattr(present, field)
        if before != now and None not in (before, now) and field != "decoder_version":
            logger.warning("accepted another %s: %r instead of %r", field, now, before)


def report_batch_size(state: LoaderState, present: int | None) -> None:
    """Another one is free to come (B4), and worth a line in the log."""
    if state.global_batch_size != present:
        logger.info("global batch size changed from %s to %s", state.global_batch_size, present)
