"""The table of what checkpoints cost."""

from __future__ import annotations

from benchmarks import bench_checkpoint
from benchmarks.markdown import Content, aims_table, as_table, medians_of, times_of


def checkpoint_section(content: Content) -> str:
    """Files beside DALI's, then batches of a pipeline beside DALI's iterator."""
    names, medians = bench_checkpoint, medians_of(content)
    files = [
        [
            names.LABELS[name],
            f"{medians[name]:.3f}",
            f"{medians[size]:.0f}" if (size := f"{name} size") in medians else "",
            times_of(content, name, names.DALI) if name != names.DALI else "",
        ]
        for name in (
            names.DALI,
            names.OURS,
            names.OURS_SYNCED,
            names.WITH_LOADER,
            names.WITH_LOADER_SYNCED,
        )
    ]
    batches = [
        [
            names.LABELS[name],
            f"{medians[name]:.2f}",
            times_of(content, name, names.PLAIN) if name != names.PLAIN else "",
        ]
        for name in (names.PLAIN, names.WRAPPED, names.ASKED)
    ]
    introduction = (
        "**Checkpoints**: `collect()` and `save()` of a numbered file, beside DALI's own, which "
        "writes without a sync. That a save takes no longer than DALI's was once an aim; it served "
        "nobody, since the difference is under a millisecond for each checkpoint, and was retired. "
        "Then a batch of a DALI pipeline on the CPU, "
        f"{content['settings']['batch_size']} crops of {content['settings']['crop']} pixels."
    )
    parts = [
        introduction,
        as_table(["", "ms a save", "bytes", "times DALI's"], files),
        as_table(["", "ms a batch", "times DALI's"], batches),
    ]
    return "\n\n".join([*parts, aims_table(content)])
