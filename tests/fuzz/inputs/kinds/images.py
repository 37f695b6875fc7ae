"""Encoded images through ``probe`` and the default decoder."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from stateful_gpu_loader.decoders import make_decoder, probe
from tests.fuzz.inputs.kind import MIB, Broken, Kind
from tests.images import photograph


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


class _Images(Kind):
    names_remedy = False  # BadSample, which the loader makes of the error, adds one.
    memory = 768 * MIB  # A header may claim 8192 pixels a byte, some 25 million here.
    is_checked = False
    """Whether the format has checksums over the pixels."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._decoder = make_decoder("torchvision")
        photo = photograph("coffee").resize((31, 24))
        exif = Image.Exif()
        exif[0x0112] = 6
        self.examples = self._made(photo, exif)
        self._sound = [self._pixels(content) for content in self.examples]

    def _made(self, photo: Image.Image, exif: Image.Exif) -> list[bytes]:
        raise NotImplementedError

    def _pixels(self, content: bytes) -> torch.Tensor:
        data = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
        header = probe(data)
        image = self._decoder.decode(data, header)
        if image.dtype != torch.uint8 or image.shape != (3, header.height, header.width):
            raise Broken("the image is not what its header says")
        return image

    def read(self, content: bytes, example: int) -> None:
        image = self._pixels(content)
        if self.is_checked and not _is_turned(image, self._sound[example]):
            raise Broken("other pixels were read in silence")


def _is_turned(image: torch.Tensor, sound: torch.Tensor) -> bool:
    """Return whether it is the image in any orientation, which may lack a checksum."""
    turned = [sound, sound.flip(-1), sound.flip(-2), sound.flip(-1, -2)]
    return any(torch.equal(image, each) for each in (*turned, *(x.transpose(1, 2) for x in turned)))


class Jpegs(_Images):
    name = "JPEG"
    share = 8
    writes = True  # libjpeg: "Corrupt JPEG data: premature end of data segment"

    def _made(self, photo: Image.Image, exif: Image.Exif) -> list[bytes]:
        return [
            _encoded(photo, "JPEG", exif=exif),
            _encoded(photo, "JPEG", progressive=True, subsampling=0),
            _encoded(photo.convert("L"), "JPEG"),
            _encoded(photo.convert("CMYK"), "JPEG", restart_marker_rows=1),
        ]


class Pngs(_Images):
    name = "PNG"
    share = 8
    is_checked = True

    def _made(self, photo: Image.Image, exif: Image.Exif) -> list[bytes]:
        return [
            _encoded(photo, "PNG", exif=exif),
            _encoded(photo.convert("P"), "PNG"),
            _encoded(photo.convert("1"), "PNG"),
            _encoded(photo.convert("RGBA"), "PNG"),
            _encoded(photo.convert("I;16"), "PNG"),
        ]


class Webps(_Images):
    name = "WebP"
    share = 6

    def _made(self, photo: Image.Image, exif: Image.Exif) -> list[bytes]:
        frames = [photo.rotate(90)]
        return [
            _encoded(photo, "WEBP", exif=exif),
            _encoded(photo.convert("RGBA"), "WEBP", lossless=True),
            _encoded(photo, "WEBP", save_all=True, append_images=frames),
        ]


class Ppms(_Images):
    name = "PPM"
    memory = 64 * MIB

    def _made(self, photo: Image.Image, exif: Image.Exif) -> list[bytes]:
        plain = _encoded(photo, "PPM")
        return [plain, plain.replace(b"P6\n", b"P6 # a comment\n#another\n\t", 1)]


KINDS = (Jpegs, Pngs, Webps, Ppms)
