"""The tables of docs/benchmarks.md, of docs/scale.md and of the README, from the JSON files alone:
``python -m benchmarks.table``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.bench_checkpoint import checkpoint_section
from benchmarks.bench_cold import cold_section
from benchmarks.bench_converted import converted_section
from benchmarks.bench_cores import cores_section
from benchmarks.bench_executors import executors_section
from benchmarks.bench_faults import faults_section
from benchmarks.bench_overhead import overhead_section
from benchmarks.bench_prepared import prepared_section
from benchmarks.bench_ray import ray_section
from benchmarks.bench_sizes import sizes_section
from benchmarks.bench_state import state_section
from benchmarks.bench_throughput import throughput_section
from benchmarks.cores_picture import draw_cores
from benchmarks.gpu.results import gpu_section
from benchmarks.headline import headline
from benchmarks.markdown import Content
from benchmarks.peers_picture import draw_peers
from benchmarks.peers_table import peers_section
from benchmarks.picture import draw_throughput
from benchmarks.scale_picture import draw_object_storage, draw_scale
from benchmarks.scale_tables import object_storage_section, scale_section
from benchmarks.source_tables import lanes_section, locality_section, sources_section

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs"
PICTURES_OF = {
    "peers": ("peers.png", "this loader beside others", draw_peers),
    "throughput": ("throughput.png", "images a second of every loader", draw_throughput),
    "cores": ("cores.png", "images a second over the number of workers", draw_cores),
}
"""By benchmark: file, alternative text, and drawing function."""
SCALE_DOCUMENT, RAY_DOCUMENT = "scale.md", "cluster.md"
"""Next to the first document."""
SCALE = (
    ("scale", "scale.png", "what one rank pays", draw_scale, scale_section),
    (
        "object_storage",
        "object-storage.png",
        "rates from object storage beside those from local files",
        draw_object_storage,
        object_storage_section,
    ),
)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").replace("\n", " "))
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="folder of the JSON")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where all tables go")
    parser.add_argument("--readme", type=Path, default=README, help="where the six rows go")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="folder of the pictures")
    arguments = parser.parse_args(given)
    for benchmark, (picture, _, draw_picture) in PICTURES_OF.items():
        content = results.read_results(arguments.results, benchmark)
        if content is not None:
            draw_picture(content, arguments.pictures / picture)
            print(f"drew {picture}")
    for file, name, draw in (
        (arguments.document, "benchmarks", markdown),
        (arguments.readme, "headline", headline),
    ):
        pictures = Path(os.path.relpath(arguments.pictures, file.parent))
        print(put_into(file, name, draw(arguments.results, pictures)))
    ray = results.read_results(arguments.results, "ray")
    if ray is not None:
        text = "\n\n".join([ray_section(ray), _origin(ray), _machine_and_versions(ray)])
        print(put_into(arguments.document.with_name(RAY_DOCUMENT), "ray", text))
    for benchmark, picture, alternative, draw_picture, section in SCALE:
        content = results.read_results(arguments.results, benchmark)
        if content is not None:
            draw_picture(content, arguments.pictures / picture)
            file = arguments.document.with_name(SCALE_DOCUMENT)
            link = Path(os.path.relpath(arguments.pictures, file.parent)) / picture
            last = [_origin(content), _machine_and_versions(content)]
            text = "\n\n".join([f"![{alternative}]({link})", section(content), *last])
            print(put_into(file, benchmark, text))


def markdown(folder: Path, pictures: Path) -> str:
    """Return all tables with results, as Markdown.

    Args:
        folder: folder of the JSON files.
        pictures: folder in which the text looks for the pictures.
    """
    parts, where = [], []
    for benchmark, section in (
        ("peers", peers_section),
        ("throughput", throughput_section),
        ("cores", cores_section),
        ("sizes", sizes_section),
        ("prepared", prepared_section),
        ("converted", converted_section),
        ("state", state_section),
        ("cold", cold_section),
        ("overhead", overhead_section),
        ("faults", faults_section),
        ("executors", executors_section),
        ("sources", sources_section),
        ("lanes", lanes_section),
        ("locality", locality_section),
        ("checkpoint", checkpoint_section),
        ("gpu", gpu_section),
    ):
        content = results.read_results(folder, benchmark)
        if content is not None:
            if benchmark in PICTURES_OF:
                file, alternative, _ = PICTURES_OF[benchmark]
                parts.append(f"![{alternative}]({pictures / file})")
            parts += [section(content), _origin(content)]
            where.append(_machine_and_versions(content))
    return "\n\n".join([*parts, *dict.fromkeys(where)])


def put_into(file: Path, name: str, text: str) -> str:
    """Put the text between the markers of this name; return a message about it."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if not file.is_file():
        return f"no tables drawn: there is no {file.name}"
    before, found_start, rest = file.read_text(encoding="utf-8").partition(start)
    _, found_end, after = rest.partition(end)
    if not (found_start and found_end):
        return f"no tables drawn: {file.name} lacks the markers {start} and {end}"
    file.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")
    return f"drew the tables of {file.name}"


def _origin(content: Content) -> str:
    return (
        f"<sub>`{content['command']}`, {content['date'][:10]}, medians of {content['rounds']} "
        "alternating rounds.</sub>"
    )


def _machine_and_versions(content: Content) -> str:
    machine = content["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return f"<sub>Measured on {machine['processor']}, {machine['cores']} cores: {versions}.</sub>"


if __name__ == "__main__":
    main()
