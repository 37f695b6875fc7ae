"""Comparison of fingerprints, and reports of differences."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from stateful_gpu_loader.decoders.machine import package_versions
from stateful_gpu_loader.engine.makers.own_generators import unsearched
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.state.descriptions import (
    NOTHING_KNOWN,
    Describer,
    Description,
    describe_dataset,
    describe_transforms_of,
    own_fingerprint,
    shortened,
)
from stateful_gpu_loader.state.schema import (
    COMPARED,
    DESCRIBED,
    Fingerprint,
    LoaderState,
    sampled,
)

logger = logging.getLogger(__name__)

_SAVED_ALWAYS = ("dataset", "dataset_transform", "length", "collate_fn", "batched")
"""Fields that are None only in older states and torchdata's."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity of a loader, and its unverifiable parts."""

    fingerprint: Fingerprint
    unverified: Mapping[str, str]
    """Parts that cannot be verified: reasons by the names that ``accept=`` takes."""

    @cached_property
    def text(self) -> str:
        """The fingerprint as text, as every state holds it."""
        return self.fingerprint.to_text()


def identity_of(plan: Plan) -> Identity:
    """Describe everything that decides the batches and must not change between saving and loading.

    A user's sampler is identified by its class, an iterable dataset as iterable.
    """
    config, decoder, order = plan.config, plan.decoder, plan.lanes or plan.order
    sampler = None if plan.memory is None else config.own_sampler
    version = None if decoder is None else decoder.version()
    if version is not None and plan.finishes_images:
        version = ", ".join([version, *package_versions("triton")])
    if order is not None:
        algorithm = order.algorithm
    else:
        algorithm = "iterable" if sampler is None else f"sampler {type(sampler).__qualname__}"
    # A source that only decodes a reader's images is not described.
    is_source = plan.is_read and plan.source is not None
    dataset = plan.source if is_source else config.dataset
    none = Description("none")
    described = {
        "dataset": describe_dataset(dataset),
        "dataset_transform": describe_transforms_of(dataset),
        **{
            name: none if given is None else Describer().description(given)
            for name, given in (
                ("transform", plan.transform),
                ("batch_transform", plan.batch_transform),
                ("collate_fn", config.collate_fn),
            )
        },
    }
    closed = {} if plan.is_iterable else unsearched(config.dataset, config.transform)
    unknown = {
        name: [*found.unknown, *(f"generators in {each}" for each in closed.get(name, ()))]
        for name, found in described.items()
    }
    unverified = {name: ", ".join(reasons) for name, reasons in unknown.items() if reasons}
    for name, found in described.items():
        if found.is_sampled:
            unverified[sampled(name)] = "content too long to be compared in full"
    own = None if sampler is None else own_fingerprint(sampler)
    if own is not None:
        algorithm = shortened(f"{algorithm} {own()}")
    elif sampler is not None:
        unverified["sampler"] = f"the behaviour of {type(sampler).__qualname__}"
    texts = {name: shortened(found.text) for name, found in described.items()}
    fingerprint = Fingerprint(
        dataset=None if texts["dataset"] == NOTHING_KNOWN else texts["dataset"],
        dataset_transform=texts["dataset_transform"],
        transform=texts["transform"],
        batch_transform=texts["batch_transform"],
        collate_fn=texts["collate_fn"],
        length=plan.length,
        order=algorithm,
        shuffle=order is not None and order.is_shuffled,
        drop_last=config.drops_last,
        batched=config.collation[1],
        on_bad_sample=None if config.on_bad_sample == "raise" else config.on_bad_sample,
        decoder="none" if decoder is None else decoder.family,
        decoder_version=version,
        content={name: found.content for name, found in described.items() if found.content},
    )
    return Identity(fingerprint=fingerprint, unverified=unverified)


def without_descriptions(fingerprint: Fingerprint) -> Fingerprint:
    """Return the fingerprint for a state without descriptions, such as torchdata's."""
    return replace(
        fingerprint,
        dataset=None,
        dataset_transform=None,
        collate_fn=None,
        batched=None,
        content=None,
    )


def check_proven(
    identity: Identity, saved: Fingerprint, *, has_digest: bool, accept: Collection[str]
) -> None:
    """Refuse a state that cannot be verified in full; used with ``strict=True``.

    Args:
        has_digest: whether a digest of the sampler's indices verifies it.
        accept: names that need not be verified.

    Raises:
        StateMismatch: a part cannot be compared, or not in full.
    """
    open_fields = dict(identity.unverified)
    if has_digest:
        open_fields.pop("sampler", None)
    for field in _SAVED_ALWAYS:
        if getattr(saved, field) is None and getattr(identity.fingerprint, field) is not None:
            open_fields[field] = "a description that the state lacks"
    if saved.content is None:
        for field in identity.fingerprint.content or ():
            open_fields.setdefault(field, "a description that the state holds only in part")
    also = {sampled(field): field for field in DESCRIBED} | {"length": "dataset"}
    left = [field for field in open_fields if not {field, also.get(field, field)} & set(accept)]
    for field in left[:1]:
        names = sorted({"dataset" if each == "length" else each for each in left})
        described = getattr(saved, field.partition(" ")[0], saved.order)
        raise StateMismatch(
            field,
            saved="no description" if described is None else described,
            present=f"{open_fields[field]}, which cannot be verified, under strict=True",
            remedy="give your objects a method fingerprint() that returns a text, or, if they are "
            f"known to be the same, load_state_dict(state, accept={set(names)!r}) or strict=False",
        )


def check_fits(
    state: LoaderState, *, seed: int | None, num_positions: int | None, accept: Collection[str]
) -> None:
    """Check the seed and the position, which the fingerprint does not contain.

    Args:
        seed: seed that was given to the loader or its sampler.
        num_positions: number of samples in an epoch of the loader's own order; None skips the
            check.

    Raises:
        StateMismatch: the seeds differ, or the position lies outside the epoch.
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
    """Report accepted differences."""
    if saved.decoder == present.decoder and saved.decoder_version != present.decoder_version:
        warnings.warn(
            f"the state was saved with {saved.decoder} {saved.decoder_version!s:.100}, but this is "
            f"{present.decoder_version}: pixels may differ in their last bits",
            stacklevel=3,
        )
    for field in COMPARED:
        before, now = present.difference(saved, field) or (None, None)
        if None not in (before, now):
            logger.warning("accepted another %s: %r instead of %r", field, now, before)


def report_unverified(unverified: Mapping[str, str]) -> None:
    """Report what could not be verified when a state was loaded."""
    if unverified:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unverified.items())
        logger.info("the state cannot prove that these are the same: %s", reasons)


def report_batch_size(state: LoaderState, present: int | None) -> None:
    """Log a changed batch size, which is allowed."""
    if state.global_batch_size != present:
        logger.info("global batch size changed from %s to %s", state.global_batch_size, present)
