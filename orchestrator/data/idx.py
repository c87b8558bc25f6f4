"""IDX files, the format of MNIST: every byte accounted for before anything is trained on it.

Format: two zero bytes, a type (8: unsigned byte), the number of dimensions, each as a big-endian int32, then the data
(http://yann.lecun.com/exdb/mnist). torchvision takes 64 images with 63 labels without a word.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from orchestrator.data.source import Picture, Pool, Source, file_identity
from orchestrator.errors import DataError

_UNSIGNED_BYTE = 0x08
_CHUNK = 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
_TRAIN, _VALIDATION = ("train",), ("t10k", "test")
# emnist-letters-train-images-idx3-ubyte.gz; also with a dot before idx, as some archives have it.
_NAME = re.compile(r"(?P<set>.*-)?(?P<part>train|t10k|test)-(?P<kind>(images|labels))[-.]idx[13]-ubyte(\.gz)?")
_AGAIN = "Copy or download it again."
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


def is_complete(folder: Path) -> bool:
    """Whether a folder holds images and labels of a training and of a test split."""
    return folder.is_dir() and all(
        _find(folder, parts, kind) is not None for parts in (_TRAIN, _VALIDATION) for kind in (_IMAGES, _LABELS)
    )


def idx_source(
    folder: Path, name: str, class_names: tuple[str, ...], *, mirror_keeps_class: bool = True, own_split: bool = False
) -> Source:
    """The dataset in a folder of IDX files: train-images-idx3-ubyte and so on, with or without .gz.

    `own_split`: the dataset is a known one, with these classes and a test split that may not be left out.
    Raises DataError, naming file, item and number, for anything that is not as the format says.
    """
    advice = " If the data has more classes, say --num-classes." if not own_split else ""
    train = _open_pool(folder, _TRAIN, class_names, advice)
    if train is None:
        raise DataError(f"{folder} has no file *-{_IMAGES} of a training split.")
    validation = _open_pool(folder, _VALIDATION, class_names, advice)
    if own_split and validation is None:
        raise DataError(
            f"{folder} has the training files of {name} and not the test files, t10k-{_IMAGES}.gz and so on."
        )
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


def _find(folder: Path, parts: tuple[str, ...], kind: str) -> Path | None:
    """The file of a split; of a plain and a compressed one the plain. Raises DataError for files of several datasets."""
    names = sorted(p.name for p in folder.iterdir() if p.is_file())
    matches = [m for m in map(_NAME.fullmatch, names) if m and kind.startswith(m["kind"])]
    for part in parts:
        found = {m["set"]: m[0] for m in reversed(matches) if m["part"] == part}
        if None in found:
            return folder / found[None]
        if len(found) > 1:
            raise DataError(
                f"{folder} holds several datasets: {', '.join(sorted(found.values()))}. Keep one of them in a folder."
            )
        if found:
            return folder / next(iter(found.values()))
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
    with _reading(file) as stream:
        header = _read_header(file, stream, dims)
        found = 0
        while found <= header.bytes + _CHUNK and (chunk := stream.read(_CHUNK)):
            found += len(chunk)
    if found != header.bytes:
        shape = " x ".join(f"{d:,}" for d in header.dims)
        amount = f"{found:,}" if found <= header.bytes + _CHUNK else f"at least {found:,}"
        raise DataError(
            f"{file} should hold {shape} = {header.bytes:,} bytes behind its header and holds {amount}. {_AGAIN}"
        )
    if 0 in header.dims:
        raise DataError(f"{file} has no items: its header says {' x '.join(map(str, header.dims))}. {_AGAIN}")
    return header


@contextmanager
def _reading(file: Path) -> Iterator[gzip.GzipFile | BufferedReader]:
    try:
        with _opened(file) as stream:
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file} is damaged or cut short: {error}. {_AGAIN}") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}.") from error


def _opened(file: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")


def _read_header(file: Path, stream: gzip.GzipFile | BufferedReader, dims: int) -> _Header:
    magic = stream.read(4)
    expected = bytes([0, 0, _UNSIGNED_BYTE, dims])
    if magic != expected:
        raise DataError(
            f"{file} begins with {magic.hex(' ') or 'nothing'} and not with {expected.hex(' ')}. {_hint(magic, dims)}"
        )
    sizes = stream.read(4 * dims)
    if len(sizes) < 4 * dims:
        raise DataError(f"{file} ends within its header. {_AGAIN}")
    return _Header(struct.unpack(f">{dims}I", sizes), 4 + 4 * dims)


def _hint(magic: bytes, dims: int) -> str:
    """What may be wrong with a file that should have `dims` dimensions and begins with `magic`."""
    if magic == bytes([0, 0, _UNSIGNED_BYTE, 4 - dims]):
        return f"It is a file of {'labels' if dims == 3 else 'images'}: are the names swapped?"
    return "It is gzipped: let its name end in .gz." if magic.startswith(_GZIP_MAGIC) else _AGAIN


def _read_labels(file: Path, header: _Header, classes: int, advice: str) -> np.ndarray:
    with _reading(file) as stream:
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
    with _reading(file) as stream:
        stream.read(header.offset)
        for _ in range(header.dims[0]):
            yield np.frombuffer(stream.read(height * width), np.uint8).reshape(height, width)
