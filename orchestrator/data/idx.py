"""IDX files, the format of MNIST: every byte accounted for before anything is trained on it.

Format: two zero bytes, a type (8: unsigned byte), the number of dimensions, each as a big-endian int32, then the data
(http://yann.lecun.com/exdb/mnist). torchvision takes 64 images with 63 labels without a word.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from orchestrator.data.source import Picture, Pool, Source, file_identity
from orchestrator.errors import DataError

_UNSIGNED_BYTE = 0x08
_CHUNK = 1024 * 1024
_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
_TRAIN, _VALIDATION = ("train",), ("t10k", "test")
DEFAULT_CLASSES = 10


@dataclass(frozen=True)
class _Header:
    dims: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        # Python's integers: a damaged header may say 2**31 images of 2**31 by 2**31.
        size = 1
        for dim in self.dims:
            size *= dim
        return size


def has_idx_files(folder: Path) -> bool:
    """Whether a folder holds the images of a training split as an IDX file."""
    return folder.is_dir() and _find(folder, _TRAIN, _IMAGES) is not None


def idx_source(
    folder: Path, name: str, class_names: tuple[str, ...], *, mirror_keeps_class: bool = True, classes_flag: bool = True
) -> Source:
    """The dataset in a folder of IDX files: train-images-idx3-ubyte and so on, with or without .gz.

    Raises DataError, naming file, item and number, for anything that is not as the format says.
    """
    advice = " If the data has more classes, say --num-classes." if classes_flag else ""
    train = _open_pool(folder, _TRAIN, class_names, advice)
    if train is None:
        raise DataError(f"{folder} has no file *-{_IMAGES} of a training split.")
    validation = _open_pool(folder, _VALIDATION, class_names, advice)
    files = sorted(p for p in folder.iterdir() if "-idx" in p.name and p.is_file())
    _check_all_classes(train[1], class_names, train[0])
    return Source(
        name=name,
        class_names=class_names,
        train=train[1],
        validation=validation[1] if validation else None,
        identity=["idx", str(folder), file_identity(files, folder)],
        mirror_keeps_class=mirror_keeps_class,
    )


def _check_all_classes(pool: Pool, class_names: tuple[str, ...], file: Path) -> None:
    if len(set(pool.labels.tolist())) < 2:
        raise DataError(f"{file} has a single class in {len(pool):,} labels; at least two are needed to learn from.")


def _find(folder: Path, prefixes: tuple[str, ...], kind: str) -> Path | None:
    """The file of a split: train-images-idx3-ubyte, emnist-letters-train-images-idx3-ubyte.gz, and the like."""
    names = sorted(p.name for p in folder.iterdir() if p.is_file())
    for prefix in prefixes:
        wanted = tuple(f"{prefix}-{kind}{end}" for end in ("", ".gz"))
        found = [n for n in names if n in wanted] or [n for n in names if n.endswith(tuple("-" + w for w in wanted))]
        if found:
            return folder / found[0]
    return None


def _open_pool(
    folder: Path, prefixes: tuple[str, ...], class_names: tuple[str, ...], advice: str
) -> tuple[Path, Pool] | None:
    images, labels = _find(folder, prefixes, _IMAGES), _find(folder, prefixes, _LABELS)
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        raise DataError(
            f"{folder} has {(images or labels)} but no {prefixes[0]}-{_LABELS if images else _IMAGES} to it."
        )
    image_header = _check_file(images, 3)
    label_header = _check_file(labels, 1)
    if image_header.dims[0] != label_header.dims[0]:
        raise DataError(
            f"{images} has {image_header.dims[0]:,} images and {labels} has {label_header.dims[0]:,} labels. "
            "Every image needs one label: copy or download both again."
        )
    values = _read_labels(labels, label_header, len(class_names), advice)
    return labels, Pool(values, lambda: _pictures(images, image_header), lambda i: f"item {i} of {images}")


def _check_file(file: Path, dims: int) -> _Header:
    """Read a file to its end in bounded memory; the header is believed only after the bytes were counted."""
    try:
        with _opened(file) as stream:
            header = _read_header(file, stream, dims)
            found = 0
            while found <= header.bytes and (chunk := stream.read(_CHUNK)):
                found += len(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file} is damaged or cut short: {error}. Copy or download it again.") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}.") from error
    if found != header.bytes:
        shape = " x ".join(f"{d:,}" for d in header.dims)
        amount = f"more than {header.bytes:,}" if found > header.bytes else f"only {found:,}"
        raise DataError(
            f"{file} should hold {shape} = {header.bytes:,} bytes behind its header and holds {amount}. "
            "Copy or download it again."
        )
    if header.dims[0] == 0 or 0 in header.dims:
        raise DataError(f"{file} has no items: its header says {' x '.join(map(str, header.dims))}.")
    return header


def _opened(file: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")


def _read_header(file: Path, stream: gzip.GzipFile | BufferedReader, dims: int) -> _Header:
    magic = stream.read(4)
    expected = bytes([0, 0, _UNSIGNED_BYTE, dims])
    if magic != expected:
        swapped = {3: "labels", 1: "images"}[dims] if magic == bytes([0, 0, _UNSIGNED_BYTE, 4 - dims]) else None
        hint = f" It looks like a file of {swapped}: are the names swapped?" if swapped else ""
        raise DataError(f"{file} begins with {magic.hex(' ') or 'nothing'} and not with {expected.hex(' ')}.{hint}")
    sizes = stream.read(4 * dims)
    if len(sizes) < 4 * dims:
        raise DataError(f"{file} ends within its header.")
    return _Header(struct.unpack(f">{dims}I", sizes), 4 + 4 * dims)


def _read_labels(file: Path, header: _Header, classes: int, advice: str) -> np.ndarray:
    with _opened(file) as stream:
        stream.read(header.offset)
        values = np.frombuffer(stream.read(header.bytes), np.uint8).astype(np.int64)
    wrong = np.flatnonzero(values >= classes)
    if len(wrong):
        more = f" {len(wrong):,} labels are outside." if len(wrong) > 1 else ""
        raise DataError(
            f"{file}: the label of item {wrong[0]} is {values[wrong[0]]}, allowed are 0 to {classes - 1}.{more}{advice}"
        )
    return values


def _pictures(file: Path, header: _Header) -> Iterator[Picture]:
    _, height, width = header.dims
    with _opened(file) as stream:
        stream.read(header.offset)
        for _ in range(header.dims[0]):
            yield np.frombuffer(stream.read(height * width), np.uint8).reshape(height, width)
