"""Converts DALI's outputs to torch tensors that DALI does not overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from stateful_gpu_loader.errors import LoaderError


def to_tensors(
    outputs: Sequence[Any], names: Sequence[str], *, own_memory: bool
) -> dict[str, torch.Tensor]:
    """Return each output of a batch as a tensor [batch_size, ...], on the device where it is.

    Args:
        outputs: what ``Pipeline.share_outputs()`` returned.
        names: a name for each of them.
        own_memory: whether outputs keep their memory as long as they are referenced, as with
            ``exec_dynamic``. Other DALI executors overwrite them with a later batch, so they are
            copied.

    Raises:
        LoaderError: the numbers of outputs and names differ, or the samples of an output differ in
            shape.
    """
    if len(outputs) != len(names):
        raise LoaderError(
            f"the pipeline has {len(outputs)} outputs, output_map has {len(names)} names: "
            f"{list(names)}. Remedy: one name for each output, in their order"
        )
    tensors = {}
    for name, output in zip(names, outputs, strict=True):
        try:
            dense = output.as_tensor()
        except RuntimeError as error:
            raise LoaderError(
                f"the samples of output {name!r} differ in shape: {output.shape()}. Remedy: bring "
                "them to one, with fn.resize, fn.crop or fn.pad"
            ) from error
        tensor = from_dlpack(dense)
        if not own_memory:
            tensor = tensor.clone()
            if tensor.is_cuda:
                # DALI writes on a stream of its own, which does not wait for the copy.
                torch.cuda.current_stream(tensor.device).synchronize()
        tensors[name] = tensor
    return tensors
