"""FramedShards: files of records that carry their lengths, each read from a cursor on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from stateful_gpu_loader.datasets.file_shards import Counts, FileShards
from stateful_gpu_loader.datasets.framed.framing import Bytes, Framing, ImageRecords, Place
from stateful_gpu_loader.datasets.framed.source import AnyPaths
from stateful_gpu_loader.datasets.sharded import EncodedShards, sample_or_error
from stateful_gpu_loader.datasets.storage.index_files import identity_of
from stateful_gpu_loader.datasets.storage.streams import is_compressed, open_stream
from stateful_gpu_loader.records import EncodedSample


class FramedShards(FileShards, EncodedShards):
    """The base of TFRecordShards and RecordIOShards.

    A cursor is the offset of the next record in bytes. In a compressed file, which can be read from
    its beginning only, it is the number of records before the next one.

    Args:
        paths: the shards.
        framing: where their records begin and end.
        images: what is made of a record.
        counts, num_lanes, shuffle_buffer: as of :class:`FileShards`.

    Raises:
        ValueError: no path, one twice, or counts that do not fit the shards.
    """

    def __init__(
        self,
        paths: AnyPaths,
        framing: Framing,
        images: ImageRecords,
        *,
        counts: Counts,
        num_lanes: int | None,
        shuffle_buffer: int,
    ) -> None:
        super().__init__(paths, counts, num_lanes, shuffle_buffer)
        self._framing = framing
        self._images = images

    def fingerprint(self) -> str:
        """The names of the shards in order, and what is made of a record."""
        return f"{super().fingerprint()}, {self._images}"

    def read_shard(
        self, shard: str, cursor: int
    ) -> Iterator[tuple[EncodedSample | ValueError, int]]:
        """Each sample from ``cursor`` on, with the cursor of the next one; a ValueError in place
        of a record that is whole but malformed.

        Raises:
            OSError: the file is not there or cannot be read.
            ValueError: from here on the file is damaged, or ends before the cursor.
        """
        path = self.path_of(shard)
        counting = is_compressed(path)
        start = 0 if counting else cursor
        if start and start > (size := identity_of(path)[0]):
            raise _shorter(path, f"{size} bytes, and byte {cursor}")
        number, at = 0, start
        with closing(open_stream(path, start)) as stream:
            beginning = Place(path, None if start else 0, start)
            for payload, after in self._framing.stream(stream, beginning):
                if counting and number >= cursor:
                    place, name = Place(path, number, at), f"{path}, record {number}"
                    yield sample_or_error(self._sample, payload, place, number, name), number + 1
                elif not counting:
                    place, name = Place(path, None, at), f"{path}, byte {at}"
                    yield sample_or_error(self._sample, payload, place, at, name), after
                number, at = number + 1, after
        if counting and number < cursor:
            raise _shorter(path, f"{number} records, and record {cursor}")

    def _sample(self, payload: Bytes, place: Place, number: int, name: str) -> EncodedSample:
        data, target = self._images.take(payload, place, number)
        return EncodedSample(data, target, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.paths)} shards, {self._images})"


def _shorter(path: str, what: str) -> ValueError:
    return ValueError(
        f"{path!r} has {what} was to be read next: the shard is another one than when the cursor "
        "was taken. Remedy: bring that file back, or begin the epoch anew"
    )
