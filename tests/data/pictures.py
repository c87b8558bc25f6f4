"""Small pictures for the tests of folders, Parquet files and decoding."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def red_and_blue() -> Image.Image:
    """6x4 pixels, the left half red, the right half blue."""
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:, :3], pixels[:, 3:] = (255, 0, 0), (0, 0, 255)
    return Image.fromarray(pixels)


def grey(value: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new("L", size, value)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def class_folders(root: Path, counts: dict[str, int], size: tuple[int, int] = (8, 8)) -> Path:
    """`root`/CLASS/0.png ... with a grey of its own for each class."""
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            grey(40 * number + index, size).save(root / name / f"{index}.png")
    return root
