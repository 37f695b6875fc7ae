"""States that do not fit a DALI pipeline, and pipelines that cannot be resumed."""

from __future__ import annotations

import base64
import re
from enum import Enum
from functools import partial
from typing import Any

import pytest

from stateful_gpu_loader.errors import LoaderError, StateMismatch
from stateful_gpu_loader.integrations.dali import DALILoader
from stateful_gpu_loader.integrations.dali_pipeline.state import checksum
from stateful_gpu_loader.samplers import LastBatchPolicy
from tests.conformance import copy_of, differing, same
from tests.integrations.dali_readers import (
    Arguments,
    after_two_batches,
    assert_refused,
    augmented,
    loader,
    numbers,
    piped,
)

pytest.importorskip("nvidia.dali")

READING: Arguments = {
    "random_shuffle": True,
    "initial_fill": 4,
    "num_shards": 2,
    "shard_id": 0,
    "pad_last_batch": True,
}


def make(
    datasets: dict[str, Arguments], reading: Arguments | None = None, **made: Any
) -> DALILoader:
    arguments = {**datasets["file"], **READING, **(reading or {})}
    options = made.pop("options", None)
    return loader(augmented(), "file", arguments, options=options, **made)


CHANGES: list[tuple[Arguments, Arguments, str]] = [
    ({}, {"batch_size": 4}, "batch_size"),
    ({}, {"seed": 6}, "seed"),
    ({}, {"options": {"last_batch_policy": LastBatchPolicy.DROP}}, "last_batch_policy"),
    ({}, {"size": 13}, "__RandomResizedCrop_1.size"),
    ({}, {"degrees": 31.0}, "__Uniform_2.range"),
    ({}, {"noise": True}, "operator __Gaussian_4"),
    ({"random_shuffle": False}, {}, "reader.random_shuffle"),
    ({"initial_fill": 5}, {}, "reader.initial_fill"),
    ({"shard_id": 1}, {}, "reader.shard_id"),
    ({"num_shards": 3}, {}, "reader.num_shards"),
    ({"pad_last_batch": False}, {}, "reader.pad_last_batch"),
    ({"stick_to_shard": True}, {}, "reader.stick_to_shard"),
    ({"labels": list(range(1, 12))}, {}, "reader.labels"),
    ({"name": "files"}, {}, "operator files"),
]
"""Arguments of the reader, of the pipeline, and the field that is named."""


def test_another_pipeline_is_refused_by_the_field(datasets: dict[str, Arguments]) -> None:
    """DALI silently resumes most of these."""
    state = after_two_batches(make(datasets))
    for reading, made, field in CHANGES:
        assert_refused(make(datasets, reading, **made), state, field)


def test_a_pass_continues_unchanged_after_a_refused_state(datasets: dict[str, Arguments]) -> None:
    expected = [copy_of(batch) for batch in make(datasets)]
    loaded = make(datasets)
    batches = iter(loaded)
    found = [copy_of(next(batches))]
    assert_refused(loaded, after_two_batches(make(datasets, size=13)), CHANGES[3][2])
    found.extend(copy_of(batch) for batch in batches)
    assert same(found, expected)


@pytest.mark.parametrize("taken", ["before", "after"])
def test_an_operator_more_or_less_is_refused_by_name(
    datasets: dict[str, Arguments], taken: str
) -> None:
    state = after_two_batches(make(datasets, noise=taken == "before"))
    with pytest.raises(StateMismatch) as caught:
        make(datasets, noise=taken == "after").load_state_dict(state)
    assert caught.value.field == "operator __Gaussian_4", "not one whose number alone differs"
    has_it = {"before": caught.value.saved, "after": caught.value.present}
    assert has_it.pop(taken) == "noise.Gaussian"
    assert [*has_it.values()] == ["no such operator"]


def test_operators_that_are_connected_otherwise_are_refused(
    datasets: dict[str, Arguments],
) -> None:
    from nvidia.dali import fn

    def build(first: int) -> DALILoader:
        def outputs() -> Any:
            drawn = [fn.random.uniform(range=(0.0, 1.0)) for _ in range(2)]
            labels = fn.readers.file(name="reader", **datasets["file"])[1]
            return fn.stack(drawn[first], drawn[1 - first], name="pair"), labels

        return piped(outputs, "pair", "labels")

    with pytest.raises(StateMismatch, check=differing("pair.inputs")):
        build(1).load_state_dict(after_two_batches(build(0)))


def test_a_named_operator_that_is_missing_is_named(datasets: dict[str, Arguments]) -> None:
    """The error names neither the operator that took its output nor the outputs."""
    from nvidia.dali import fn

    def build(cuts: bool) -> DALILoader:
        def outputs() -> Any:
            files, labels = fn.readers.file(name="reader", **datasets["file"])
            images = fn.resize(fn.decoders.image(files, name="image"), size=8, name="small")
            return (fn.crop(images, crop=(4, 4), name="cut") if cuts else images), labels

        return piped(outputs, "images", "labels")

    with pytest.raises(StateMismatch, check=differing("operator cut", saved="Crop")):
        build(False).load_state_dict(after_two_batches(build(True)))


def test_a_seed_on_one_side_only_is_not_compared(datasets: dict[str, Arguments]) -> None:
    """The state brings the generators' states."""
    for before, after in ((None, 5), (5, None)):
        run = make(datasets, seed=before)
        batches = iter(run)
        next(batches)
        resumed = make(datasets, seed=after)
        resumed.load_state_dict(run.state_dict())
        assert same(list(resumed), [copy_of(batch) for batch in batches])


def test_settings_that_change_no_batch_are_not_compared(datasets: dict[str, Arguments]) -> None:
    run = make(datasets)
    batches = iter(run)
    next(batches)
    state = run.state_dict()
    resumed = make(
        datasets,
        {"read_ahead": True, "prefetch_queue_depth": 3, "dont_use_mmap": True, "lazy_init": True},
        num_threads=1,
        prefetch_queue_depth=4,
    )
    resumed.load_state_dict(state)
    assert same(list(resumed), [copy_of(batch) for batch in batches])


def test_a_large_pipeline_has_a_small_state(datasets: dict[str, Arguments]) -> None:
    """Operators are kept as digests, readers in full. A change is still found."""
    from nvidia.dali import fn

    def build(highest: float, reading: Arguments) -> DALILoader:
        def outputs() -> Any:
            ranges = [(0.0, float(i)) for i in range(1, 150)]
            drawn = [fn.random.uniform(range=each) for each in [*ranges, (0.0, highest)]]
            return fn.stack(*drawn), fn.readers.file(**datasets["file"], **reading)[1]

        return piped(outputs, "drawn", "labels")

    state = after_two_batches(build(2.0, READING))
    assert len(state["pipeline"]) < 12_000
    build(2.0, READING).load_state_dict(state)
    for changed, field in (
        (build(3.0, READING), "operator __Uniform_149"),
        (build(2.0, {**READING, "initial_fill": 5}), "__File_151.initial_fill"),
    ):
        with pytest.raises(StateMismatch) as caught:
            changed.load_state_dict(state)
        assert caught.value.field == field


def test_another_line_of_source_is_the_same_pipeline(datasets: dict[str, Arguments]) -> None:
    """DALI stores the file and the line of each operator in the graph."""
    from nvidia.dali import fn, pipeline_def

    texts = []
    for lines in (0, 3):
        text = (
            "\n" * lines
            + "def reading(**arguments):\n    return (*fn.readers.file(**arguments),)\n"
        )
        names: dict[str, Any] = {"fn": fn}
        exec(compile(text, f"{lines}.py", "exec"), names)
        make = pipeline_def(lambda names=names: names["reading"](**datasets["file"]))
        loaded = DALILoader(partial(make, batch_size=2, num_threads=1, device_id=None), ["a", "b"])
        len(loaded)
        texts.append(loaded.state_dict()["pipeline"])
    assert texts[0] == texts[1]


def test_a_built_pipeline_is_iterated_and_saved_but_not_resumed(
    datasets: dict[str, Arguments],
) -> None:
    """DALI restores a pipeline only while it is built."""
    built = numbers()("file", datasets["file"], batch_size=3, seed=5, enable_checkpointing=True)
    built.build()
    given = DALILoader(built, ["images", "labels"])
    batches = iter(given)
    next(batches)
    state = given.state_dict()
    with pytest.raises(LoaderError, match="Remedy"):
        given.load_state_dict(state)
    resumed = loader(numbers(), "file", datasets["file"])
    resumed.load_state_dict(state)
    assert same([copy_of(batch) for batch in batches], list(resumed))


def test_pipelines_that_cannot_be_saved_are_refused(datasets: dict[str, Arguments]) -> None:
    whole = partial(numbers(), "file", datasets["file"], batch_size=3)
    used = whole(enable_checkpointing=True)
    used.schedule_run()
    used.share_outputs()
    refused: list[tuple[Any, str]] = [
        (whole(), "has no checkpoints.*Remedy: make it with enable_checkpointing=True"),
        (used, "has already given 1 batches.*Remedy: pass the function"),
        (lambda **options: whole(), "has no checkpoints.*pass its keyword arguments on"),
    ]
    for pipeline, text in refused:
        with pytest.raises(LoaderError, match=re.compile(text, re.DOTALL)):
            next(iter(DALILoader(pipeline, ["images", "labels"])))
    state = after_two_batches(DALILoader(whole, ["images", "labels"]))
    deaf = DALILoader(lambda **_: whole(enable_checkpointing=True), ["images", "labels"])
    with pytest.raises(LoaderError):
        deaf.load_state_dict(state)
    with pytest.raises(TypeError, match="@pipeline_def"):
        next(iter(DALILoader(lambda: whole(), ["images", "labels"])))


def test_arguments_are_checked(datasets: dict[str, Arguments]) -> None:
    whole = partial(augmented(), "file", datasets["file"], batch_size=3)
    with pytest.raises(TypeError, match="Remedy"):
        DALILoader(3, ["images"])
    with pytest.raises(ValueError, match="Remedy"):
        DALILoader(whole, ["images", "images"])
    for policy in ("fill", LoaderError, Enum("Other", ["FILL"])["FILL"]):
        with pytest.raises(TypeError, match=r"of stateful_gpu_loader\.samplers"):
            DALILoader(whole, ["images"], last_batch_policy=policy)  # type: ignore[arg-type]
    with pytest.raises(LoaderError, match=r"2 .*output_map.* 1"):
        next(iter(DALILoader(whole, ["images"])))
    with pytest.raises(LoaderError, match=r"'files' .*'reader'"):
        len(DALILoader(whole, ["images", "labels"], reader_name="files"))


def test_pipelines_instead_of_loaders_get_a_remedy(datasets: dict[str, Arguments]) -> None:
    """Epochs need one end, samples one shape, and DALI cannot serialize Python operators."""
    from nvidia.dali import fn

    def read(name: str = "reader") -> Any:
        return tuple(fn.readers.file(name=name, **datasets["file"]))

    two = lambda: (read("a")[1], read("b")[1])  # noqa: E731
    assert len(piped(two, "a", "b", reader_name="b")) == 6
    refused: list[tuple[Any, str]] = [
        (two, r"several readers: \['a', 'b'\]"),
        (lambda: (fn.random.uniform(), fn.random.uniform()), "nothing ends an epoch"),
        (read, "the samples of output 'a' differ in shape.*Remedy"),
        (
            lambda: (*read(), fn.python_function(read("b")[1], function=abs))[1:],
            "python_function.*Remedy: do the operator's work on",
        ),
    ]
    for outputs, text in refused:
        with pytest.raises(LoaderError, match=text):
            next(iter(piped(outputs, "a", "b")))


def test_damaged_states_are_refused(datasets: dict[str, Arguments]) -> None:
    loaded = loader(numbers(), "caffe", datasets["caffe"])
    state = after_two_batches(loaded)
    checkpoint = base64.b64decode(state["checkpoint"])
    flipped = bytearray(checkpoint)
    flipped[20] ^= 1
    without_operators = checkpoint[checkpoint.index(b'\x12\x1f\n\x1b{"iter"') :]
    of_none = {
        "checkpoint": base64.b64encode(without_operators).decode(),
        "checksum": checksum(without_operators),
    }
    assert b'"iter": 2' in checkpoint
    longer = state["pipeline"].replace('epoch_size": 11', 'epoch_size": 12')
    damaged: list[tuple[Any, str]] = [
        ({**state, "pipeline": longer}, "reader.epoch_size"),
        (None, "format"),
        ({}, "format"),
        ({**state, "format": "another"}, "format"),
        ({**state, "version": 2}, "version"),
        ({**state, "version": True}, "version"),
        ({**state, "more": 1}, "keys"),
        ({**state, "epoch": -1}, "epoch"),
        ({**state, "epoch": True}, "epoch"),
        ({**state, "epoch": 1}, "checkpoint"),
        ({**state, "position": 1}, "checkpoint"),
        ({**state, "position": 5}, "position"),
        ({**state, "position": 2.0}, "position"),
        ({**state, "checkpoint": None}, "checkpoint"),
        ({**state, "checkpoint": "?"}, "checkpoint"),
        ({**state, "checkpoint": ""}, "checkpoint"),
        ({**state, "checkpoint": state["checkpoint"][:-8]}, "checkpoint"),
        ({**state, "pipeline": "[]"}, "pipeline"),
        ({**state, "pipeline": "[" * 10**5}, "pipeline"),
        ({**state, "pipeline": "{}"}, "batch_size"),
        ({**state, "dali": None}, "dali"),
        ({**state, **dict.fromkeys(("checkpoint", "checksum", "pipeline", "dali"))}, "checkpoint"),
        ({**state, "checkpoint": base64.b64encode(flipped).decode()}, "checkpoint"),
        ({**state, "checksum": "0"}, "checkpoint"),
        ({**state, **of_none}, "checkpoint"),
    ]
    for wrong, field in damaged:
        with pytest.raises(StateMismatch) as caught:
            loaded.load_state_dict(wrong)
        assert caught.value.field == field, wrong
        assert loaded.state_dict() == state


def test_another_version_of_dali_warns(datasets: dict[str, Arguments]) -> None:
    loaded = loader(numbers(), "caffe", datasets["caffe"])
    state = after_two_batches(loaded) | {"dali": "2.3.0"}
    with pytest.warns(UserWarning, match=r"2\.3\.0.* 2\."):
        loaded.load_state_dict(state)
