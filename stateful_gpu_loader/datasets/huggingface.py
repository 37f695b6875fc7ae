"""HuggingFaceSource: encoded images of a Hugging Face Dataset, read from its Arrow table."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stateful_gpu_loader.datasets.parquet.rows import Rows, Selection, path_to
from stateful_gpu_loader.datasets.source import Source, reads_as
from stateful_gpu_loader.datasets.storage.failures import damaged, failed
from stateful_gpu_loader.datasets.storage.memory import Memory, new_memory
from stateful_gpu_loader.datasets.storage.open_files import read_file, read_whole
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.records import EncodedSample

_REMEDY = "filter the row out of the dataset, or leave it out with on_bad_sample="


class HuggingFaceSource(Source):
    """Rows of a Hugging Face ``datasets.Dataset``: an Image column and columns of the target.

    The encoded bytes come from the dataset's memory-mapped Arrow table, without ``dataset[index]``
    or Pillow. If a row has a path or URL instead of bytes, that file is read. A relative path
    starts at the current working directory, as in ``datasets``.

    Results of ``select``, ``shuffle``, ``filter``, ``train_test_split`` and
    ``concatenate_datasets`` are supported. ``Image(decode=False)`` and ``with_format`` change only
    the fingerprint.

    The decoders read JPEG, PNG, WebP and PPM. A row of another format, such as TIFF, is a bad
    sample.

    Args:
        dataset: the dataset: one split, loaded without ``streaming=True``.
        image: the Image column, or a column of bytes; ``"a.b"`` is field b of the struct a.
        target: a column, for its value; several names, for a dict of the columns' values; a dict of
            new names and columns, for a dict; None for the index. A ClassLabel is an int. Numbers,
            strings and bytes become Python values, dates and times the stored int, lists arrays.

    Attributes:
        dataset: the dataset.

    Raises:
        TypeError: ``dataset`` is not a ``datasets.Dataset``; a DatasetDict or a stream is not.
        ValueError: a column is missing or has an unsupported type, such as a list of images; the
            dataset has no rows, or has a function from ``with_transform``.

    >>> import datasets
    >>> rows = {"image": [{"bytes": b"jpeg 0"}, {"bytes": b"jpeg 1"}], "label": [7, 8]}
    >>> HuggingFaceSource(datasets.Dataset.from_dict(rows).select([1]))[0]
    (tensor([106, 112, 101, 103,  32,  49], dtype=torch.uint8), 8)
    """

    suits_processes = True
    dataset: Any

    def __init__(self, dataset: Any, image: str = "image", target: Target = "label") -> None:
        _check_dataset(dataset)
        self.dataset = dataset
        self.image = image
        self.target = target
        fields = target
        if isinstance(target, Sequence) and not isinstance(target, str):
            fields = {name: name for name in target}
        self._selection = Selection(image, fields)
        self._name = str(dataset.info.dataset_name or dataset.info.builder_name or "Dataset")
        self._folder = os.getcwd()
        self._selection.check(self._name, dataset.data.table.schema)
        self._check_features()
        if not len(self):
            raise ValueError(f"{self._name!r} has no row. Remedy: give a dataset that has rows")
        self._open()

    def _open(self) -> None:
        self._rows: Rows = self._selection.rows(self.dataset.data.table)
        chosen = self.dataset._indices
        self._chosen: Any = None if chosen is None else chosen.column(0)
        """Rows of the table chosen by ``select`` and similar methods; None for all rows."""

    def _check_features(self) -> None:
        """Refuse columns of bytes that are not images, and images in the target."""
        feature = self._feature_of(self.image)
        kind = _kind_of(feature)
        if kind not in ("Image", "Value", None):
            raise ValueError(
                f"{self._name!r}: the column {self.image!r} holds {kind}, not images. Remedy: "
                f"pass image= with one of the columns: {', '.join(self.dataset.column_names)}"
            )
        mode = getattr(feature, "mode", None)
        if mode not in (None, "RGB"):
            raise ValueError(
                f"{self._name!r}: the column {self.image!r} is Image({mode = }), but the decoders "
                "return RGB. Remedy: dataset.cast_column with Image(), and convert in the "
                "transform"
            )
        for name in self._selection.choice.names:
            kind = _kind_of(self._feature_of(name))
            if kind in ("Image", "Audio", "Video", "Pdf", "Nifti"):
                raise ValueError(
                    f"{self._name!r}: the column {name!r} of the target holds {kind}, which is not "
                    "decoded. Remedy: leave it out of target="
                )

    def _feature_of(self, name: str) -> Any:
        top, *fields = path_to(self.dataset.data.table.schema, name)
        found = self.dataset.features.get(top)
        for field in fields:
            found = found.get(field) if isinstance(found, Mapping) else None
        return found

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        """Return the image's bytes and its target.

        Raises:
            OSError: the image is stored as a path, and that file cannot be read.
            ValueError: the row has no image, or a value of the target is null.
        """
        memory = into or new_memory
        row = self._row(index)
        try:
            image = self._rows.image(row, memory)
            target = self._rows.target(row, index)
        except ValueError as error:
            raise self._damaged(index, error) from error
        if isinstance(image, str):
            data = self._read_file(index, image, memory)
        else:
            data = torch.from_numpy(image)
        return EncodedSample(data, target, f"{self._name}, row {index}")

    def read_target_alone(self, index: int) -> Any:
        if not reads_as(self, HuggingFaceSource):
            return self.read(index).target
        try:
            return self._rows.target(self._row(index), index)
        except ValueError as error:
            raise self._damaged(index, error) from error

    def fingerprint(self) -> str:
        """Return the dataset's own fingerprint, which covers its data and its transformations."""
        columns = self._selection.describe()
        return f"{len(self)} rows, datasets {self.dataset._fingerprint}, columns {columns}"

    def _row(self, index: int) -> int:
        """Return the row of the table for a sample."""
        return index if self._chosen is None else int(self._chosen[index].as_py())

    def _read_file(self, index: int, path: str, memory: Memory) -> torch.Tensor:
        place = path if is_url(path) else os.path.join(self._folder, path)
        try:
            if is_url(place):
                return torch.from_numpy(read_whole(place))
            return read_file(place, memory)
        except OSError as error:
            raise failed(error, place, f"sample {index = }") from error

    def _damaged(self, index: int, error: ValueError) -> ValueError:
        return damaged(self._name, str(error), record=f"row {index}", remedy=_REMEDY)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the table, which the dataset recreates from its path."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_rows", "_chosen")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, {len(self)} rows)"


def _check_dataset(dataset: Any) -> None:
    """Refuse objects other than ``datasets.Dataset``, without importing ``datasets``."""
    module = sys.modules.get("datasets")
    if module is None or not isinstance(dataset, module.Dataset):
        raise TypeError(
            f"dataset is of type {type(dataset).__name__}, not a datasets.Dataset. Remedy: "
            f"{_remedy_for(module, dataset)}"
        )
    if dataset.format["type"] == "custom":
        raise ValueError(
            "the dataset has a function that was given to with_transform or set_transform, which "
            "is not called here. Remedy: HuggingFaceSource(dataset.with_format(None)), and recipes "
            "as the loader's transform"
        )


def _remedy_for(module: Any, dataset: Any) -> str:
    if module is not None and isinstance(dataset, module.DatasetDict):
        return f"choose one of its splits: {', '.join(map(repr, dataset))}"
    if module is not None and isinstance(dataset, module.IterableDataset):
        return "load it without streaming=True, or read its Parquet files with ParquetShards"
    return "pass the result of datasets.load_dataset(..., split='train')"


def _kind_of(feature: Any) -> str | None:
    """Return the name of a feature's type; None for a struct."""
    kind = getattr(feature, "_type", None)
    return None if kind is None else str(kind)
