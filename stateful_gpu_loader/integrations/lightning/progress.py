"""Lightning's own counters in a checkpoint, where they say another place than the loaders do.

Lightning resumes by its counters: which epoch, which batch of it, whether a validation was under
way. Some of its hooks save them half way between two places; the callback knows which it is.
"""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.integrations.lightning.records import DONE, DUE, Saved

_EPOCH, _BATCH = "epoch_progress", "epoch_loop.batch_progress"
_VAL = "epoch_loop.val_loop.batch_progress"


def put_right(loops: dict[str, Any], saved: Saved) -> None:
    """Let the counters of the fit loop agree with where the loaders stand.

    - Stopped in the middle of an epoch (``max_steps``, ``max_time``, early stopping): Lightning
      counts the epoch as done. It goes on instead.
    - At the end of an epoch: Lightning goes on counting that epoch's batches, in some cases. The
      next epoch begins at its first batch instead, unless its validation is still to be gone
      through.
    - Before a validation, or in the middle of one between two batches: Lightning leaves out what
      is left. It goes through it instead.
    """
    epoch, batch = loops[_EPOCH], loops[_BATCH]
    if saved.validation == DUE:
        for counts in (batch["current"], batch["total"]):
            counts["completed"] = counts["processed"]
        _validate_on(loops[_VAL], saved.validated)
        return
    if saved.batches:
        if epoch["current"]["processed"] > saved.epoch:
            _set(epoch, ready=saved.epoch + 1, processed=saved.epoch)
        return
    if saved.validation == DONE and epoch["current"]["processed"] < saved.epoch:
        return
    _set(epoch, ready=saved.epoch, processed=saved.epoch)
    total = batch["total"]
    total["started"] = total["ready"] = total["completed"] = total["processed"]
    batch["current"] = dict.fromkeys(batch["current"], 0)
    batch["is_last_batch"] = False


def _set(progress: dict[str, Any], *, ready: int, processed: int) -> None:
    """Epochs begun and epochs done; what earlier fits have counted in total stays."""
    current, total = progress["current"], progress["total"]
    earlier = total["processed"] - current["processed"]
    for counts, offset in ((current, 0), (total, earlier)):
        counts["ready"] = counts["started"] = ready + offset
        counts["processed"] = counts["completed"] = processed + offset


def _validate_on(progress: dict[str, Any], validated: int) -> None:
    """As an exception in the next step of the validation would have left them."""
    earlier = progress["total"]["processed"] - progress["current"]["processed"]
    for counts, done in (
        (progress["current"], validated),
        (progress["total"], validated + earlier),
    ):
        counts["ready"] = counts["started"] = done + 1
        counts["processed"] = counts["completed"] = done
    progress["is_last_batch"] = False
