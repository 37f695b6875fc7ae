"""Makes, checks and builds DALI pipelines that can be saved and restored."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.integrations.dali_identity import foreign
from stateful_gpu_loader.integrations.dali_pipeline.description import Graph
from stateful_gpu_loader.integrations.dali_pipeline.state import WRITER, Place

Factory = Callable[..., Any]
"""A function that returns an unbuilt ``Pipeline``.

It takes ``enable_checkpointing`` and ``checkpoint``.
"""

_NO_CHECKPOINTS = (
    "Remedy: make it with enable_checkpointing=True; a function must pass its keyword arguments "
    "on to the pipeline"
)

_KINDS = {
    "CALLABLE": "a function without arguments",
    "ITERABLE": "an iterable",
    "GENERATOR_FUNC": "a generator function",
}
"""Descriptions of DALI's kinds of external sources."""


def make_pipeline(factory: Factory, checkpoint: bytes | None) -> Any:
    """Return an unbuilt pipeline.

    Raises:
        TypeError: the function does not take the arguments.
    """
    options = {} if checkpoint is None else {"checkpoint": checkpoint}
    try:
        return factory(enable_checkpointing=True, **options)
    except TypeError as error:
        raise TypeError(
            f"the function that makes the pipeline is called with enable_checkpointing=True and, "
            f"to resume, checkpoint=...; that failed: {error}. Remedy: pass what @pipeline_def "
            "makes, functools.partial of it for other arguments, or a function that hands its "
            "keyword arguments on to it"
        ) from error


def start_py_workers(pipeline: Any) -> None:
    """Start the worker processes of a pipeline's parallel external sources.

    Raises:
        LoaderError: the workers would be forked, and CUDA was initialised in this process.
    """
    if _forks(pipeline) and torch.cuda.is_initialized():  # DALI checks this after forking, or never
        raise LoaderError(
            "start_py_workers() forks worker processes, and CUDA has been initialised in this "
            "process before. Remedy: call it before the first use of the GPU, or make the "
            "pipeline with py_start_method='spawn'"
        )
    _collect_before_fork(pipeline)
    pipeline.start_py_workers()


def put_checkpoint(pipeline: Any, checkpoint: bytes | None) -> Any:
    """Set the checkpoint, if there is one, from which an unbuilt pipeline is restored."""
    # DALI takes the checkpoint when the pipeline is made, but its workers may have started since.
    pipeline._checkpoint = checkpoint
    return pipeline


def graph_of(pipeline: Any) -> Graph:
    """Return the graph of a pipeline, without building it.

    Raises:
        LoaderError: DALI cannot serialize an operator, or cannot save the state of an external
            source.
    """
    with warnings.catch_warnings():
        # DALI warns about the external sources that are refused below.
        warnings.filterwarnings("ignore", message="Checkpointing enabled in a pipeline")
        graph = Graph.from_serialized(_serialized(pipeline))
    _refuse_sources(pipeline, graph)
    return graph


def build(pipeline: Any, place: Place | None) -> None:
    """Build a pipeline, at a place if there is one.

    Raises:
        StateMismatch: DALI cannot restore the place's checkpoint.
        LoaderError: the function that made the pipeline did not pass the checkpoint on.
    """
    _collect_before_fork(pipeline)
    if place is None:
        pipeline.build()
        return
    try:
        pipeline.build()
    except RuntimeError as error:
        raise foreign(
            "checkpoint",
            place.checkpoint,
            f"one that DALI can restore ({error})",
            of=WRITER,
        ) from error
    if not pipeline.is_restored_from_checkpoint:
        raise LoaderError(
            "the function that makes the pipeline was given checkpoint=..., and the pipeline is "
            f"not restored from it. {_NO_CHECKPOINTS}, and return one that is not built"
        )


def beginning_of(pipeline: Any) -> Place:
    """Return the place of a pipeline that was not run.

    Raises:
        LoaderError: the pipeline was made without checkpoints, or was run.
    """
    try:
        place = Place(0, 0, pipeline.checkpoint())
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise LoaderError(
            f"the pipeline has no checkpoints: {reason}. {_NO_CHECKPOINTS}"
        ) from error
    if place.runs:
        raise LoaderError(
            f"the pipeline has already given {place.runs} batches, and their epoch is "
            "unknown. Remedy: pass the function that makes the pipeline"
        )
    return place


def ending_reader(pipeline: Any, metas: Mapping[str, Any], reader_name: str | None) -> str | None:
    """Return the name of the reader that ends epochs, or None if an external source does.

    Args:
        pipeline: the built pipeline.
        metas: metadata of all its readers, by name.
        reader_name: the user's choice.

    Raises:
        LoaderError: there is no such reader, there are several, or nothing could end an epoch.
    """
    if reader_name is not None and reader_name not in metas:
        raise LoaderError(
            f"{reader_name = } is not a reader of the pipeline, which has {sorted(metas)}. "
            "Remedy: pass the name= of a reader"
        )
    if reader_name is None and len(metas) > 1:
        raise LoaderError(
            f"the pipeline has several readers: {sorted(metas)}. Remedy: pass the reader_name of "
            "the one that an epoch goes through once"
        )
    if reader_name is None and not metas and not pipeline._input_callbacks:
        raise LoaderError(
            "nothing ends an epoch of the pipeline: it has no reader and no external source. "
            "Remedy: add one"
        )
    return reader_name or next(iter(metas), None)


def _forks(pipeline: Any) -> bool:
    """Whether the pipeline has parallel external sources with forked workers."""
    if pipeline.py_start_method != "fork":
        return False
    if not pipeline._py_graph_built:  # private in DALI
        pipeline._build_graph()
    return bool(pipeline._parallel_input_callbacks)


def _collect_before_fork(pipeline: Any) -> None:
    """Collect garbage, because destroying other pipelines would kill a forked worker."""
    if _forks(pipeline):
        gc.collect()


def _serialized(pipeline: Any) -> bytes:
    try:
        return bytes(pipeline.serialize())
    except RuntimeError as error:
        if "serialize the operator" not in str(error):
            raise
        reason = str(error).partition("\n")[0]
        raise LoaderError(
            "a pipeline with such an operator has no state: DALI can neither save what Python does "
            f"in it nor identify the pipeline ({reason}). Remedy: do the operator's work on the "
            "loader's batches, or with DALI's own operators"
        ) from error


def _refuse_sources(pipeline: Any, graph: Graph) -> None:
    # Private in DALI, whose public names show too little.
    fed = set()
    for group in pipeline._input_callbacks:
        names = [instance.name for instance in group.instances]
        fed.update(names)
        kind = group.source_desc.kind.name
        if kind == "CALLABLE" and group.source_desc.has_inputs:
            continue
        raise LoaderError(
            f"DALI cannot save the state of the external source {', '.join(names)}, "
            f"{_KINDS.get(kind, kind)}: after a resume it would begin again. Remedy: give it a "
            "function of one argument (SampleInfo, BatchInfo or the batch number) whose result "
            "depends only on that, or use StatefulGPULoader with a CallableSource"
        )
    for operator in graph.operators:
        if operator.kind == "ExternalSource" and operator.name not in fed:
            raise LoaderError(
                f"the external source {operator.name} is fed by feed_input(), which this loader "
                "does not call. Remedy: give it a source= of one argument"
            )
