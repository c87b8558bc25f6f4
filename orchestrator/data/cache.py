"""The decoded form of a split: one Arrow IPC file that every worker of a node maps into its memory.

One record batch with a column `image`, a fixed-shape tensor of (H, W, C) uint8, and a column `label`, int64. Mapped
pages are shared by all processes that read them, so the images are in memory once, and only those that are used.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from orchestrator.data.decode import Shape


@dataclass(frozen=True)
class Split:
    """Mapped samples: `images` uint8 of (n, H, W, C), read-only, and `labels` int64 of (n,)."""

    images: np.ndarray
    labels: np.ndarray


def open_split(path: str | Path) -> Split:
    """Map the file of a split. Nothing is copied.

    Raises pyarrow.ArrowInvalid or OSError if it is no such file.
    """
    batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    column = batch.column("image")
    height, width, channels = column.type.shape
    pixels = column.storage.values
    images = np.frombuffer(pixels.buffers()[1], np.uint8, len(pixels), pixels.offset)
    return Split(images.reshape(len(batch), height, width, channels), batch.column("label").to_numpy())


class SplitWriter:
    """Writes a split image by image, holding none of them: raw pixels go to a file beside `path` first."""

    def __init__(self, path: Path, shape: Shape) -> None:
        self._path = path
        self._shape = shape
        self._raw_path = path.with_suffix(".raw")
        self._raw = open(self._raw_path, "wb")  # noqa: SIM115  (closed by finish)
        self._labels = array("q")
        self._sum = np.zeros(shape.channels, np.uint64)
        self._squares = np.zeros(shape.channels, np.uint64)
        self._content = hashlib.blake2b(digest_size=16)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._raw.close()
        self._raw_path.unlink(missing_ok=True)

    def add(self, image: np.ndarray, label: int) -> None:
        """Append one image uint8 of (H, W, C)."""
        pixels = image.tobytes()
        self._raw.write(pixels)
        self._labels.append(label)
        self._content.update(pixels + label.to_bytes(8, "little"))
        flat = image.reshape(-1, self._shape.channels)
        self._sum += flat.sum(0, dtype=np.uint64)
        self._squares += np.square(flat, dtype=np.uint32).sum(0, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self._labels)

    def content(self) -> str:
        """Hash of all pixels and labels in their order; the same wherever and whenever they were decoded."""
        return self._content.hexdigest()

    def classes(self) -> set[int]:
        return set(self._labels)

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation per channel of pixels in [0, 1], from exact integer sums; a deviation of 0 becomes 1."""
        count = len(self) * self._shape.height * self._shape.width
        sums, squares = [int(v) for v in self._sum], [int(v) for v in self._squares]
        means = tuple(s / count / 255 for s in sums)
        variances = [(q * count - s * s) / count**2 for s, q in zip(sums, squares, strict=True)]
        return means, tuple(v**0.5 / 255 or 1.0 for v in variances)

    def finish(self) -> None:
        """Turn the raw pixels into the Arrow file."""
        self._raw.close()
        shape = (self._shape.height, self._shape.width, self._shape.channels)
        size = shape[0] * shape[1] * shape[2]
        with pa.memory_map(str(self._raw_path)) as raw:
            pixels = pa.Array.from_buffers(pa.uint8(), len(self) * size, [None, raw.read_buffer()])
            storage = pa.FixedSizeListArray.from_arrays(pixels, size)
            images = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), shape), storage)
            labels = pa.array(np.frombuffer(self._labels, np.int64))
            batch = pa.RecordBatch.from_arrays([images, labels], ["image", "label"])
            # Without it, 2**31 values (14,000 images of 224 x 224 x 3) would be the most.
            large = pa.ipc.IpcWriteOptions(allow_64bit=True)
            with pa.OSFile(str(self._path), "wb") as sink, pa.ipc.new_file(sink, batch.schema, options=large) as writer:
                writer.write_batch(batch)
