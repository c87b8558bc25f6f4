"""From a picture to uint8 pixels of one shape, whatever it was stored as.

Orientation tags are applied (one that cannot be read counts as none), palettes looked up, CMYK converted, 16-bit greys
brought to 8 bits by dropping the lower byte. Of an animation the first frame is taken. What is transparent shows white,
as on a page. Images of another size are scaled so that the shorter side fits (bilinear, antialiased), then the middle is
cut out. Pillow's limit against decompression bombs stands, and a cut file is never filled up.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from orchestrator.data.source import Missing, Picture

_GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
_ORIENTATION = 0x0112
# Exif 2.3, table 6: what brings an image of this orientation upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadPictureError(Exception):
    """A picture that cannot be read; the message is the reason, without its place."""


@dataclass(frozen=True)
class Look:
    """What a picture's header tells."""

    width: int
    height: int
    grey: bool


@dataclass(frozen=True)
class Shape:
    """The one shape of a dataset's images."""

    height: int
    width: int
    channels: int


def look_at(picture: Picture) -> Look:
    """Size as shown and whether it is grey, from the header alone.

    Raises BadPictureError.
    """
    if isinstance(picture, np.ndarray):
        return Look(picture.shape[1], picture.shape[0], picture.ndim == 2 or picture.shape[2] == 1)
    with _opened(picture) as image:
        width, height = reversed(image.size) if _orientation(image) >= 5 else image.size
        return Look(width, height, image.mode in _GREY_MODES)


def decode(picture: Picture, shape: Shape) -> np.ndarray:
    """Pixels uint8 of (height, width, channels).

    Raises BadPictureError.
    """
    if isinstance(picture, np.ndarray) and picture.shape[:2] == (shape.height, shape.width):
        channels = 1 if picture.ndim == 2 else picture.shape[2]
        if channels == shape.channels:
            return picture.reshape(shape.height, shape.width, shape.channels)
    try:
        with Image.fromarray(_squeeze(picture)) if isinstance(picture, np.ndarray) else _opened(picture) as image:
            method = _UPRIGHT.get(_orientation(image))
            upright = image if method is None else image.transpose(method)
            plain = _fit(_plain(upright, shape.channels), shape)
    except BadPictureError:
        raise
    except Exception as error:
        raise BadPictureError(_reason(error)) from error
    return np.asarray(plain).reshape(shape.height, shape.width, shape.channels)


def _orientation(image: Image.Image) -> int:
    """How an image that is not loaded yet has to be turned, as the tag counts it: 1 to 8, 1 is upright."""
    if image.format == "TIFF":
        return 1  # Pillow turns these itself
    try:
        # Of the base class: that of PNG decodes the whole image, in case a tag comes behind the pixels.
        return int(Image.Image.getexif(image).get(_ORIENTATION, 1))
    except Exception:
        return 1


def _squeeze(pixels: np.ndarray) -> np.ndarray:
    return pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def _opened(picture: Any) -> Image.Image:
    if isinstance(picture, Missing):
        raise BadPictureError(picture.reason)
    try:
        return Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture)
    except Exception as error:
        raise BadPictureError(_reason(error, picture)) from error


def _reason(error: Exception, picture: Any = None) -> str:
    if isinstance(error, UnidentifiedImageError):
        empty = picture == b"" or (isinstance(picture, Path) and picture.stat().st_size == 0)
        return "it is empty (0 bytes)" if empty else "it is not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _plain(image: Image.Image, channels: int) -> Image.Image:
    if image.mode == "F":
        raise BadPictureError("floating-point pixels have no range of their own; store 8 or 16 bits")
    if image.mode.startswith("I"):
        image = Image.fromarray((np.clip(np.asarray(image), 0, 65535) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        colours = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours)
    return image.convert("L" if channels == 1 else "RGB")


def _fit(image: Image.Image, shape: Shape) -> Image.Image:
    if image.size == (shape.width, shape.height):
        return image
    return ImageOps.fit(image, (shape.width, shape.height), Image.Resampling.BILINEAR)
