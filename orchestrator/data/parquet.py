"""Parquet files with a column `image` and a column `label`.

image   encoded bytes (PNG, JPEG, ...), a struct with a field `bytes`, or uint8 lists of one length: H x W or H x W x 3
        pixels of square images, or a fixed-shape tensor, which says its shape
label   whole numbers 0..C-1 (also as float or decimal, if each is whole), or text: the classes are then the different
        training labels, sorted
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.data.labels import Column, class_names, class_numbers, refuse_nulls
from orchestrator.data.source import Missing, Picture, Pool, Source, file_identity
from orchestrator.errors import DataError

_BATCH_ROWS = 64
# A column is read in pieces of this size, and not ahead: else all of it in a row group would be in memory.
_BUFFER_BYTES = 1024 * 1024
_ENDINGS = (".parquet", ".pq")
# train-0.parquet, data/train-00000-of-00002.parquet, digits_test.parquet, validation/0.parquet; not contest.parquet.
_SPLIT = re.compile(r"(?<![a-z])(train|val|test)", re.IGNORECASE)


def is_parquet(path: Path) -> bool:
    """Whether `path` is a Parquet file, or a folder with one in it, at any depth."""
    if path.is_file():
        return path.suffix.lower() in _ENDINGS
    return path.is_dir() and bool(_files(path))


def parquet_source(path: Path, num_classes: int | None) -> Source:
    """The dataset in a Parquet file, or in the files of a folder in the order of their names.

    Files or folders named train* and val* (or test*) are the splits; else the rows are split by the seed.
    Raises DataError, naming file, column, count and first row, for what cannot be trained on.
    """
    root = path.parent if path.is_file() else path
    files = [path] if path.is_file() else _files(path)
    train, validation, notes = (files, [], ()) if path.is_file() else _splits(files, root)
    _check_schemas(train + validation)
    raw_train = [(file, _read_labels(file)) for file in train]
    names = class_names(raw_train, num_classes)
    raw_validation = [(file, _read_labels(file)) for file in validation]
    return Source(
        name=path.stem,
        class_names=names,
        train=_pool(raw_train, names),
        validation=_pool(raw_validation, names) if validation else None,
        identity=["parquet", str(path), num_classes, file_identity(train + validation, root)],
        notes=notes,
    )


def _files(folder: Path) -> list[Path]:
    found = [p for p in folder.rglob("*") if p.suffix.lower() in _ENDINGS and p.is_file()]
    return sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts))


def _splits(files: list[Path], root: Path) -> tuple[list[Path], list[Path], tuple[str, ...]]:
    """Training files, validation files, and a note about a test split that is left for the end of all work."""
    by_split: dict[str, list[Path]] = {}
    for file in files:
        match = _SPLIT.search(str(file.relative_to(root)))
        by_split.setdefault(match[1].lower() if match else "", []).append(file)
    train, unnamed = by_split.get("train", []), by_split.pop("", [])
    if not by_split:
        return unnamed, [], ()
    if unnamed or not train:
        problem = f"{unnamed[0]} belongs to no split" if unnamed else f"{root} has no training files"
        raise DataError(
            f"{problem}, while {files[0] if files[0] not in unnamed else next(f for f in files if f not in unnamed)} "
            "is named after one. Name all files, or their folders, train* and val* (or test*), or none of them."
        )
    validation = by_split.get("val") or by_split.get("test") or []
    unused = by_split.get("test", []) if "val" in by_split else []
    note = f"of {root} the files of train and val are used, and not {len(unused)} of test"
    return train, validation, (note,) if unused else ()


@contextmanager
def _open(file: Path) -> Iterator[pq.ParquetFile]:
    try:
        # From a file object: a path would be parsed as a URI.
        with file.open("rb") as stream:
            yield pq.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(f"{file} is damaged or no Parquet file: {reason}. Copy or download it again.") from error


def _check_schemas(files: list[Path]) -> None:
    first: dict[str, pa.DataType] = {}
    for file in files:
        with _open(file) as opened:
            schema, rows = opened.schema_arrow, opened.metadata.num_rows
        _check_columns(file, schema)
        if rows == 0:
            raise DataError(f"{file} has no rows. Remove it, or write it again.")
        for name in ("image", "label"):
            kind = schema.field(name).type
            if first.setdefault(name, kind) != kind:
                raise DataError(
                    f"The column {name} is {first[name]} in {files[0]} and {kind} in {file}. Write both as one type."
                )


def _check_columns(file: Path, schema: pa.Schema) -> None:
    missing = [name for name in ("image", "label") if name not in schema.names]
    if missing:
        raise DataError(
            f"{file} has no column {' and no column '.join(missing)}; it has {', '.join(schema.names)}. "
            "Rename the columns to image and label, such as by rename_columns of pyarrow or rename of pandas."
        )
    twice = [name for name in ("image", "label") if schema.names.count(name) > 1]
    if twice:
        raise DataError(f"{file} has the column {twice[0]} more than once. Remove all but one.")
    kind = schema.field("image").type
    if not (_is_bytes(kind) or _is_pixels(kind)):
        raise DataError(
            f"{file}: the column image is {kind}; it has to be encoded images (binary, or a struct with binary bytes) "
            "or uint8 pixels (lists of H x W or H x W x 3, or tensors of these shapes)."
        )


def _is_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0) and _is_bytes(kind.field("bytes").type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_pixels(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.FixedShapeTensorType):
        in_order = kind.permutation in (None, list(range(len(kind.shape))))
        shaped = len(kind.shape) == 2 or (len(kind.shape) == 3 and kind.shape[2] in (1, 3))
        return bool(kind.value_type == pa.uint8() and in_order and shaped)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and kind.value_type == pa.uint8())


def _read_labels(file: Path) -> pa.ChunkedArray:
    with _open(file) as opened:
        column = opened.read(columns=["label"])["label"]
    refuse_nulls(file, column)
    return column


def _pool(columns: list[Column], names: tuple[str, ...]) -> Pool:
    files = [file for file, _ in columns]
    labels = np.concatenate([class_numbers(file, column, names) for file, column in columns])
    ends = np.cumsum([len(column) for _, column in columns])

    def place(index: int) -> str:
        which = int(np.searchsorted(ends, index, side="right"))
        return f"row {index - (int(ends[which - 1]) if which else 0)} of {files[which]}"

    return Pool(labels, lambda: _pictures(files), place)


def _pictures(files: list[Path]) -> Iterator[Picture]:
    for file in files:
        with _open(file) as opened:
            kind = opened.schema_arrow.field("image").type
            for batch in opened.iter_batches(batch_size=_BATCH_ROWS, columns=["image"]):
                for value in batch.column(0):
                    yield _picture(value, kind)


def _picture(value: Any, kind: pa.DataType) -> Picture:
    if not value.is_valid:
        return Missing("there is no image")
    if pa.types.is_struct(kind):
        content: bytes | None = value["bytes"].as_py()
        return _without_bytes(value) if content is None else content
    if _is_bytes(kind):
        encoded: bytes = value.as_py()
        return encoded
    is_tensor = isinstance(kind, pa.FixedShapeTensorType)
    pixels = (value.value if is_tensor else value).values
    if pixels.null_count:
        return Missing(f"{pixels.null_count:,} of its {len(pixels):,} pixels are null")
    return np.asarray(pixels.to_numpy()).reshape(kind.shape) if is_tensor else _square(pixels.to_numpy())


def _without_bytes(value: Any) -> Missing:
    path = value.as_py().get("path")
    return Missing(f"it has no bytes, only the path {path}" if path else "there is no image")


def _square(pixels: np.ndarray) -> Picture:
    """Flat pixels of a square image, grey or RGB."""
    for channels in (1, 3):
        side = math.isqrt(len(pixels) // channels)
        if side and side * side * channels == len(pixels):
            return pixels.reshape(side, side, channels)
    return Missing(f"its {len(pixels):,} pixels are no square, neither of 1 nor of 3 channels")
