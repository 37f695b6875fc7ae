"""PipelineStream: the batches of a running DALI pipeline, divided into epochs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.integrations.dali_identity import foreign
from stateful_gpu_loader.integrations.dali_pipeline.state import WRITER, Place
from stateful_gpu_loader.samplers.sharded import LastBatchPolicy, Sharding

Batch = dict[str, torch.Tensor]


class Cuts:
    """Divides a reader's endless stream into epochs, as DALI's iterator does.

    Args:
        meta: result of ``Pipeline.reader_meta(name)``.
        batch_size: batch size of the pipeline.
        last_batch_policy: treatment of an epoch's last batch.

    Raises:
        LoaderError: nothing would be left of an epoch.
    """

    def __init__(
        self, meta: dict[str, int], *, batch_size: int, last_batch_policy: LastBatchPolicy
    ) -> None:
        self._n = meta["epoch_size"]
        self._sharding = Sharding(
            batch_size=batch_size,
            shard_id=meta["shard_id"],
            num_shards=meta["number_of_shards"],
            stick_to_shard=bool(meta["stick_to_shard"]),
            pad_last_batch=bool(meta["pad_last_batch"]),
            last_batch_policy=last_batch_policy,
            # Shuffling does not change where epochs end.
            random_shuffle=False,
            shuffle_after_epoch=False,
        )
        if not self._sharding.most_delivered(self._n):
            raise LoaderError(
                f"LastBatchPolicy.DROP drops everything: {self._n} samples in "
                f"{meta['number_of_shards']} shards are fewer a shard than {batch_size = }. "
                "Remedy: a smaller batch_size, fewer shards, or another policy"
            )

    def batches(self, epoch: int) -> int:
        """Return the number of batches that an epoch delivers."""
        return -(-self._sharding.delivered(epoch, self._n) // self._sharding.batch_size)

    def runs_before(self, epoch: int) -> int:
        """Return the number of batches that the pipeline gives before an epoch."""
        return self._sharding.consumed(epoch, self._n) // self._sharding.batch_size

    def place_after(self, runs: int) -> tuple[int, int]:
        """Return the epoch after ``runs`` batches of the pipeline, and the number of its
        batches."""
        begun = bisect_right(range(runs + 1), runs, key=self.runs_before)
        return begun - 1, runs - self.runs_before(begun - 1)

    def samples(self, epoch: int, position: int) -> int:
        """Return the number of samples in an epoch's batch at a position."""
        batch_size = self._sharding.batch_size
        return min(batch_size, self._sharding.delivered(epoch, self._n) - position * batch_size)


def check_place(place: Place, cuts: Cuts | None) -> None:
    """Check that a place belongs to a stream with these epochs.

    Raises:
        StateMismatch: the place does not belong to such a stream.
    """
    epoch, position = place.epoch, place.position
    runs, longest = (position, position)
    if cuts is not None:
        runs, longest = cuts.runs_before(epoch) + position, cuts.batches(epoch)
    if position > longest:
        raise foreign("position", position, f"an epoch of {longest} batches", of=WRITER)
    if place.runs != runs or (cuts is None and place.source_epoch != epoch):
        raise foreign(
            "checkpoint",
            f"DALI's after {place.runs} batches of its epoch {place.source_epoch}",
            f"that after {runs}, where {epoch = } and {position = } is",
            of=WRITER,
        )


class PipelineStream:
    """Delivers the batches of one built pipeline.

    It takes DALI's checkpoint with each delivered batch, before it starts another batch.

    Args:
        pipeline: a built pipeline that has not run since.
        names: names of its outputs.
        cuts: epochs of the reader that ends them; None if an external source ends them.
        place: position of the pipeline.
        loaded: whether the place comes from a state.
    """

    def __init__(
        self,
        pipeline: Any,
        names: Sequence[str],
        cuts: Cuts | None,
        place: Place,
        *,
        loaded: bool,
    ) -> None:
        self.place = place
        self.cuts = cuts
        self._pipeline, self._names = pipeline, names
        self._rests = loaded
        self._num_passes = 0
        self._is_scheduled = False
        self._held: Any = None
        """Outputs of an external source, taken to find out whether its epoch continues."""
        self._failure: BaseException | None = None
        self._failed_ahead: Exception | None = None

    def begin_pass(self) -> int:
        """Begin a pass, in the next epoch if this one was delivered; return its number.

        In a state from between an epoch's last batch and its end, the rest is empty.
        """
        with self._unbroken():
            # An empty epoch of a source is not skipped.
            may_end = self.cuts is not None or self.place.position > 0
            if may_end and not self._rests and self._is_at_end():
                self._end_epoch()
        self._num_passes += 1
        return self._num_passes

    def next(self, number: int) -> Batch | None:
        """Return the next batch of a pass, or None at the end of an epoch.

        Args:
            number: number of the pass.

        Raises:
            LoaderError: a later pass has begun; or an earlier call failed or was interrupted, and
                DALI may have lost its batch.
        """
        if number != self._num_passes:
            raise LoaderError(
                "this iterator was left: another one of the same DALILoader has begun, and a "
                "pipeline is one stream. Remedy: use one iterator at a time"
            )
        with self._unbroken():
            self._rests = False
            if self._is_at_end():
                self._end_epoch()
                return None
            return self._deliver()

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        if self._failure is not None:
            reason = str(self._failure).partition("\n")[0]
            raise LoaderError(
                f"the pipeline cannot continue after {type(self._failure).__name__}: {reason}. "
                "Remedy: fix the cause, then load_state_dict(state_dict()), which continues after "
                "the last delivered batch"
            ) from self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _deliver(self) -> Batch:
        outputs = self._take() if self._held is None else self._held
        self._held = None
        place, checkpoint = self.place, self._pipeline.checkpoint()
        own_memory = bool(self._pipeline.exec_dynamic)
        batch = to_tensors(outputs, self._names, own_memory=own_memory)
        if self.cuts is not None:
            samples = self.cuts.samples(place.epoch, place.position)
            batch = {name: tensor[:samples] for name, tensor in batch.items()}
        self._schedule()
        self.place = Place(place.epoch, place.position + 1, checkpoint)
        return batch

    def _is_at_end(self) -> bool:
        if self.cuts is not None:
            return self.place.position == self.cuts.batches(self.place.epoch)
        if self._held is None:
            self._held = self._take()
        return self._held is None

    def _end_epoch(self) -> None:
        epoch, position, checkpoint = self.place.epoch, self.place.position, self.place.checkpoint
        if self.cuts is None:
            # DALI then counts another epoch, and its source begins again.
            self._pipeline.reset()
            self._is_scheduled = False
            checkpoint = self._pipeline.checkpoint()
        else:
            runs = self.cuts.runs_before(epoch + 1) - self.cuts.runs_before(epoch)
            for _ in range(runs - position):
                # The policy drops these batches.
                self._take()
                checkpoint = self._pipeline.checkpoint()
                self._schedule()
        self.place = Place(epoch + 1, 0, checkpoint)

    def _take(self) -> Any:
        """Return the outputs of the next run; None if an external source has ended."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._run_ahead()
        if self._failed_ahead is not None and self._pipeline.empty():
            raise self._failed_ahead
        try:
            return self._pipeline.share_outputs()
        except StopIteration:
            if self.cuts is None:
                return None
            raise LoaderError(
                f"an external source ended inside the reader's epoch {self.place.epoch}, after "
                f"{self.place.position} batches. Remedy: let it go on for as long as the reader"
            ) from None

    def _schedule(self) -> None:
        self._pipeline.release_outputs()
        if self._failed_ahead is None:
            self._run_ahead()

    def _run_ahead(self) -> None:
        """Start a run; a failure is raised later, in place of the batch."""
        try:
            self._pipeline.schedule_run()
        except Exception as error:
            self._failed_ahead = error


def to_tensors(
    outputs: Sequence[Any], names: Sequence[str], *, own_memory: bool
) -> dict[str, torch.Tensor]:
    """Return each output of a batch as a tensor [batch_size, ...] on its device.

    Args:
        outputs: result of ``Pipeline.share_outputs()``.
        names: a name for each output.
        own_memory: whether outputs keep their memory as long as they are referenced, as with
            ``exec_dynamic``; otherwise they are copied.

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
                # DALI's stream does not wait for the copy.
                torch.cuda.current_stream(tensor.device).synchronize()
        tensors[name] = tensor
    return tensors
