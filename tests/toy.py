"""Small learnable data for tests: class k is a bright block at a place of its own, as IDX files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def toy_images(count: int, classes: int = 10, seed: int = 0, size: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (count, size, size) and uint8 (count,)."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) % classes).astype(np.uint8)
    images = rng.integers(0, 40, (count, size, size)).astype(np.uint8)
    block = size // 4
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 4)
        image[row * block : (row + 1) * block, column * block : (column + 1) * block] = 220
    return images, labels


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + b"".join(struct.pack(">I", d) for d in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx_folder(folder: Path, num_train: int = 64, num_validation: int = 30, size: int = 28) -> Path:
    """An MNIST-like folder; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", num_train, 0), ("t10k", num_validation, 1)):
        images, labels = toy_images(count, seed=seed, size=size)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images), mtime=0))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels), mtime=0))
    return folder
