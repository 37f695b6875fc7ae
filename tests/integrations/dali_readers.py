"""DALI pipelines over the same photographs in the format of each of DALI's readers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from stateful_gpu_loader.integrations.dali import DALILoader
from tests.conformance import refusal
from tests.datasets.coco.coco_files import write_annotations
from tests.datasets.lmdb.lmdb_files import encoded_datum, tensor, tensors, write_lmdb
from tests.datasets.record_files import write_recordio, write_tfrecords
from tests.datasets.tar.tar_files import write_tar
from tests.images import write_photo_folder

N = 11
"""Number of samples of each dataset. No batch size of these tests divides it."""
READERS = ("file", "caffe", "caffe2", "webdataset", "tfrecord", "mxnet", "coco", "numpy")
Arguments = dict[str, Any]
Make = Callable[..., DALILoader]


def write_datasets(root: Path) -> dict[str, Arguments]:
    """Write the photographs in each format; return the arguments of each reader."""
    folder = root / "photos"
    photos = write_photo_folder(folder, num_classes=1, per_class=N, seed=3)
    images = [path.read_bytes() for path in photos]
    caffe = [encoded_datum(image, label) for label, image in enumerate(images)]
    caffe2 = [
        tensors(tensor("string", image), tensor("int32", [label]))
        for label, image in enumerate(images)
    ]
    entries = [
        entry
        for label, image in enumerate(images)
        for entry in ((f"{label:03d}.jpg", image), (f"{label:03d}.cls", bytes([label])))
    ]
    tfrecords = [root / f"{name}.tfrecord" for name in "ab"]
    indices = write_tfrecords(tfrecords, images)
    recordio = write_recordio(root / "images.rec", images)
    arrays = root / "arrays"
    arrays.mkdir()
    for label in range(N):
        np.save(arrays / f"{label:03d}.npy", np.full((2, 3), label, dtype=np.int32))
    content = {
        "images": [
            {"id": label, "file_name": path.name, "height": 64, "width": 64}
            for label, path in enumerate(photos)
        ],
        "annotations": [
            {"id": label, "image_id": label, "category_id": 1, "bbox": [1, 2, 30, 40]}
            | {"area": 1200, "iscrowd": 0}
            for label in range(N)
        ],
        "categories": [{"id": 1, "name": "photo"}],
    }
    annotations = write_annotations(root / "instances.json", content)
    return {
        "file": {"files": [str(path) for path in photos], "labels": list(range(N))},
        "caffe": {"path": str(write_lmdb(root / "caffe", caffe))},
        "caffe2": {"path": str(write_lmdb(root / "caffe2", caffe2))},
        "webdataset": {
            "paths": str(write_tar(root / "photos.tar", entries)),
            "ext": ["jpg", "cls"],
            "missing_component_behavior": "error",
        },
        "tfrecord": {
            "path": [str(path) for path in tfrecords],
            "index_path": [str(path) for path in indices],
        },
        "mxnet": {"path": str(root / "images.rec"), "index_path": str(recordio)},
        "coco": {
            "file_root": str(photos[0].parent),
            "annotations_file": str(annotations),
            "image_ids": True,
        },
        "numpy": {"file_root": str(arrays)},
    }


@cache
def augmented() -> Any:
    """Return a pipeline of a reader with random crops, rotations and flips; [images, labels]."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(num_threads=2, device_id=None)  # type: ignore[untyped-decorator]
    def pipeline(
        reader: str,
        arguments: Arguments,
        size: int = 12,
        degrees: float = 30.0,
        noise: bool = False,
    ) -> Any:
        files, labels = read(reader, arguments)
        if reader == "numpy":
            return files + fn.random.uniform(range=(0.0, 1.0)), labels
        images = fn.decoders.image(files, device="cpu")
        images = fn.random_resized_crop(images, size=(size, size))
        angle = fn.random.uniform(range=(-degrees, degrees))
        images = fn.rotate(images, angle=angle, fill_value=0, keep_size=True)
        if noise:
            images = fn.noise.gaussian(images, stddev=10.0)
        mirror = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, mirror=mirror, std=[255.0]), labels

    return pipeline


@cache
def numbers() -> Any:
    """Return a pipeline of labels and random numbers, without images."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def pipeline(reader: str, arguments: Arguments) -> Any:
        return fn.random.uniform(range=(0.0, 1.0)), read(reader, arguments)[1]

    return pipeline


def read(reader: str, arguments: Arguments) -> tuple[Any, Any]:
    """Return the encoded image, and an output that numbers it."""
    from nvidia.dali import fn, tfrecord

    arguments = {"name": "reader", **arguments}
    if reader == "numpy":
        array = fn.readers.numpy(**arguments)
        return array, array
    if reader == "tfrecord":
        features = {
            "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
            "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        }
        found = fn.readers.tfrecord(**arguments, features=features)
        return found["image/encoded"], found["image/class/label"]
    found = getattr(fn.readers, reader)(**arguments)
    return found[0], found[-1]


def loader(
    definition: Any,
    reader: str,
    arguments: Arguments,
    /,
    *,
    options: Arguments | None = None,
    **made: Any,
) -> DALILoader:
    """Return a loader of a pipeline.

    Args:
        definition: :func:`augmented` or :func:`numbers`.
        options: arguments of the loader.
        made: arguments of the pipeline.
    """
    made = {"batch_size": 3, "seed": 5, **made}
    factory = partial(definition, reader, arguments, **made)
    return DALILoader(factory, ["images", "labels"], **(options or {}))


def piped(outputs: Callable[[], Any], *names: str, **options: Any) -> DALILoader:
    """Return a loader of a pipeline with these outputs, in batches of two."""
    from nvidia.dali import pipeline_def

    made = pipeline_def(outputs)
    factory = partial(made, batch_size=2, num_threads=1, device_id=None, seed=1)
    return DALILoader(factory, list(names), **options)


def after_two_batches(loaded: DALILoader) -> dict[str, Any]:
    batches = iter(loaded)
    next(batches)
    next(batches)
    return loaded.state_dict()


def assert_refused(loaded: DALILoader, state: dict[str, Any], field: str) -> None:
    """Check that the refusal names the field, and changes nothing."""
    error = refusal(loaded, state, field)
    assert error.saved != error.present
