"""The table of workers in a Ray cluster."""

from __future__ import annotations

from benchmarks import bench_ray
from benchmarks.bench_ray import (
    ACTORS,
    ACTORS_HERE,
    BYTES,
    FIRST,
    INTAKE,
    LABELS,
    LOST_ACTOR,
    LOST_NODE,
)
from benchmarks.markdown import Content, aims_table, as_table, comparisons_of, medians_of


def ray_section(content: Content) -> str:
    """Rates and first batches, bytes, recoveries, and what one thread takes in."""
    settings, medians = content["settings"], medians_of(content)
    ratios = {
        (of, found["to"]): f"{found['ratio']['median']:.2f}x"
        for of in (ACTORS_HERE, ACTORS)
        for found in comparisons_of(content, of)
    }
    rows = [
        [
            label,
            f"{medians[name]:,.0f}",
            *(ratios.get((of, name), "") for of in (ACTORS_HERE, ACTORS)),
            f"{medians[f'{FIRST} {name}']:,.0f}",
        ]
        for name, label in LABELS.items()
    ]
    on = ("actors on the same node against it", "on another node")
    head = ["", "images/s", *on, "ms to the first batch"]
    an_image = medians[BYTES]
    taken = " and ".join(
        f"{medians[f'intake {name}']:,.0f} {label}" for name, label in INTAKE.items()
    )
    return (
        f"{settings['num_workers']} workers on the cores of one machine, JPEG files of "
        f"{settings['mean_bytes'] / 1000:.0f} KB, cropped to {settings['size']}x{settings['size']} "
        f"and normalised, batches of {settings['batch_size']}.\n\n{as_table(head, rows)}\n\n"
        f"An image crosses as {an_image / 1000:,.0f} KB, {an_image / (12 * bench_ray.SIZE**2):.0%} "
        f"of float32. The only worker of a loader was lost, and the next batch came "
        f"{medians[LOST_ACTOR]:.1f} s after its actor was killed, most of it the start of another "
        f"Python that imports torch, and {medians[LOST_NODE]:.1f} s after its node was, most of it "
        "the time until Ray holds a node that sends no heartbeats for lost. One thread takes in "
        f"{taken} images a second, which is what any number of machines can send to one loader of "
        f"this machine.\n\n{aims_table(content)}"
    )
