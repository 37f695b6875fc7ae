"""Lightning's own counters in a checkpoint, corrected where they contradict the loaders' states.

Lightning resumes by counters: which epoch, which batch of it, whether a validation was under way.
In some hooks it saves counters of which only some are increased already.
"""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.integrations.lightning.records import DONE, DUE, Saved

_EPOCH, _BATCH = "epoch_progress", "epoch_loop.batch_progress"
_VAL = "epoch_loop.val_loop.batch_progress"


def correct_counters(loops: dict[str, Any], saved: Saved) -> None:
    """Make the counters of the fit loop agree with the loaders' states.

    - The fit was stopped in the middle of an epoch (``max_steps``, ``max_time``, early stopping):
      Lightning counts the epoch as done. Corrected, the resumed fit finishes it.
    - At the end of an epoch: in some cases Lightning goes on counting batches of that epoch.
      Corrected, the next epoch begins with its first batch, once the validation is done.
    - Before a validation, or between two of its batches: Lightning skips the rest of the
      validation. Corrected, the resumed fit finishes it.
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
    """Set the epochs begun and done in this fit; keep what earlier fits added to the total."""
    current, total = progress["current"], progress["total"]
    earlier = total["processed"] - current["processed"]
    for counts, offset in ((current, 0), (total, earlier)):
        counts["ready"] = counts["started"] = ready + offset
        counts["processed"] = counts["completed"] = processed + offset


def _validate_on(progress: dict[str, Any], validated: int) -> None:
    """Set the counters as an exception in the next validation step would leave them."""
    earlier = progress["total"]["processed"] - progress["current"]["processed"]
    for counts, done in (
        (progress["current"], validated),
        (progress["total"], validated + earlier),
    ):
        counts["ready"] = counts["started"] = done + 1
        counts["processed"] = counts["completed"] = done
    progress["is_last_batch"] = False
