"""Parquet files with a column `image` and a column `label`.

image   encoded bytes (PNG, JPEG, ...), a struct with a field `bytes`, or uint8 lists of one length: H x W or H x W x 3
        pixels of square images, or a fixed-shape tensor, which says its shape
label   whole numbers 0..C-1 (also as float or decimal, if each is whole), or text: the classes are then the different
        training labels, sorted
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.data.source import Picture, Pool, Source, file_identity
from orchestrator.errors import DataError

_BATCH_ROWS = 64
_TRAIN = ("train", "training")
_VALIDATION = ("val", "valid", "validation", "test")


def is_parquet(path: Path) -> bool:
    """Whether `path` is a Parquet file, or a folder with one in it or in a split folder of it."""
    if path.is_file():
        return path.suffix.lower() in (".parquet", ".pq")
    return path.is_dir() and bool(_files(path))


def parquet_source(path: Path, num_classes: int | None) -> Source:
    """The dataset in a Parquet file, or in the files of a folder in the order of their names.

    Files or folders named train* and val* (or test*) are the splits; else the rows are split by the seed.
    Raises DataError, naming file, column, count and first row, for what cannot be trained on.
    """
    files = [path] if path.is_file() else _files(path)
    root = path.parent if path.is_file() else path
    train, validation = _splits(files, root)
    for file in files:
        _check_columns(file)
    _check_same_types(files)
    raw_train = _labels(train)
    class_names = _class_names(raw_train, train[0], num_classes)
    pools = [_pool(train, raw_train, class_names)]
    if validation:
        pools.append(_pool(validation, _labels(validation), class_names))
    return Source(
        name=path.stem,
        class_names=class_names,
        train=pools[0],
        validation=pools[1] if validation else None,
        identity=["parquet", str(path), num_classes, file_identity(files, root)],
    )


def _files(folder: Path) -> list[Path]:
    """Parquet files in a folder and in the folders in it, but no deeper: the folder may be a whole disk."""
    folders = [
        folder,
        *(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and os.access(p, os.R_OK)),
    ]
    found = [p for place in folders for p in place.iterdir() if p.suffix.lower() in (".parquet", ".pq") and p.is_file()]
    return sorted(p for p in found if not p.name.startswith("."))


def _splits(files: list[Path], root: Path) -> tuple[list[Path], list[Path]]:
    def named(names: tuple[str, ...]) -> list[Path]:
        return [f for f in files if f.relative_to(root).parts[0].lower().startswith(names)]

    train, validation = named(_TRAIN), named(_VALIDATION)
    if not train and not validation:
        return files, []
    for group in (validation, train):
        if not group:
            raise DataError(
                f"{root} has Parquet files of one split only ({files[0].name}): a train* and a val* are needed."
            )
    chosen = next(n for n in _VALIDATION if any(f.relative_to(root).parts[0].lower().startswith(n) for f in validation))
    return train, [f for f in validation if f.relative_to(root).parts[0].lower().startswith(chosen)]


@contextmanager
def _open(file: Path) -> Iterator[pq.ParquetFile]:
    # From a file object: a path would be parsed as a URI.
    with file.open("rb") as stream:
        try:
            parquet = pq.ParquetFile(stream)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{file} is damaged or no Parquet file: {reason} Copy or download it again.") from error
        yield parquet


def _check_columns(file: Path) -> None:
    with _open(file) as opened:
        names = opened.schema_arrow.names
        missing = [name for name in ("image", "label") if name not in names]
        if missing:
            raise DataError(
                f"{file} has no column {' and no column '.join(missing)}; it has {', '.join(names)}. "
                "Rename the columns to image and label."
            )
        if opened.metadata.num_rows == 0:
            raise DataError(f"{file} has no rows.")
        kind = opened.schema_arrow.field("image").type
        if not (_is_bytes(kind) or _is_pixels(kind)):
            raise DataError(f"{file}: the column image is {kind}; encoded bytes or uint8 pixels are needed.")


def _check_same_types(files: list[Path]) -> None:
    first: dict[str, pa.DataType] = {}
    for file in files:
        with _open(file) as opened:
            for name in ("image", "label"):
                kind = opened.schema_arrow.field(name).type
                if first.setdefault(name, kind) != kind:
                    raise DataError(
                        f"The column {name} is {first[name]} in {files[0]} and {kind} in {file}. Write both as one type."
                    )


def _is_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_pixels(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.FixedShapeTensorType):
        return bool(kind.value_type == pa.uint8() and len(kind.shape) in (2, 3))
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and kind.value_type == pa.uint8())


def _labels(files: list[Path]) -> list[tuple[Path, pa.ChunkedArray]]:
    columns = []
    for file in files:
        with _open(file) as opened:
            column = opened.read(columns=["label"])["label"]
        _refuse_rows(file, column.is_null(), column, "null")
        columns.append((file, column))
    return columns


def _refuse_rows(file: Path, wrong: pa.ChunkedArray, column: pa.ChunkedArray, what: str) -> None:
    rows = np.flatnonzero(np.asarray(wrong.combine_chunks()))
    if len(rows):
        shown = ", ".join(str(row) for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
        example = "" if what == "null" else f" (row {rows[0]}: {column[int(rows[0])].as_py()})"
        raise DataError(
            f"{file}: {len(rows):,} of {len(column):,} values of the column label are {what}, in rows {shown}{example}. "
            "Correct or remove these rows."
        )


def _whole_numbers(file: Path, column: pa.ChunkedArray) -> np.ndarray:
    kind = column.type
    if pa.types.is_floating(kind):
        _refuse_rows(file, pc.is_nan(column), column, "NaN")
        _refuse_rows(file, pc.invert(pc.is_finite(column)), column, "infinite")
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        _refuse_rows(file, pc.not_equal(pc.floor(column), column), column, "not whole")
    elif not pa.types.is_integer(kind):
        raise DataError(f"{file}: the column label is {kind}; whole numbers or text are needed.")
    try:
        return np.asarray(column.cast(pa.int64()).to_numpy())
    except pa.ArrowInvalid as error:
        raise DataError(f"{file}: the column label does not fit 64-bit numbers: {error}.") from error


def _is_text(column: pa.ChunkedArray) -> bool:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _class_names(columns: list[tuple[Path, pa.ChunkedArray]], first: Path, num_classes: int | None) -> tuple[str, ...]:
    if _is_text(columns[0][1]):
        names = sorted({value for _, column in columns for value in column.unique().to_pylist()})
        if num_classes not in (None, len(names)):
            raise DataError(f"{first}: --num-classes {num_classes}, but the text labels are {len(names)} classes.")
    else:
        seen = sorted({int(v) for file, column in columns for v in np.unique(_whole_numbers(file, column))})
        names = [str(i) for i in range(num_classes or seen[-1] + 1)]
        gaps = [] if num_classes else [i for i in range(max(seen[-1], 0)) if i not in set(seen)]
        if gaps and seen[0] >= 0:
            raise DataError(
                f"{first}: the training labels go up to {seen[-1]}, but no sample has {', '.join(map(str, gaps[:5]))}. "
                f"Labels count from 0; say --num-classes {seen[-1] + 1} if these classes are meant to be empty."
            )
    if len(names) < 2:
        raise DataError(f"{first}: the labels are a single class; at least two are needed to learn from.")
    return tuple(names)


def _pool(files: list[Path], columns: list[tuple[Path, pa.ChunkedArray]], class_names: tuple[str, ...]) -> Pool:
    labels = np.concatenate([_numbers(file, column, class_names) for file, column in columns])
    ends = np.cumsum([len(column) for _, column in columns])

    def place(index: int) -> str:
        which = int(np.searchsorted(ends, index, side="right"))
        return f"row {index - (int(ends[which - 1]) if which else 0)} of {files[which]}"

    return Pool(labels, lambda: _pictures(files), place)


def _numbers(file: Path, column: pa.ChunkedArray, class_names: tuple[str, ...]) -> np.ndarray:
    if _is_text(column):
        plain = column.cast(pa.large_string())
        found = pc.index_in(plain, value_set=pa.array(class_names, pa.large_string()))
        _refuse_rows(file, found.is_null(), column, "of classes that the training split does not have")
        return np.asarray(found.to_numpy()).astype(np.int64)
    values = _whole_numbers(file, column)
    outside = pa.chunked_array([pa.array((values < 0) | (values >= len(class_names)))])
    _refuse_rows(file, outside, column, f"outside 0 to {len(class_names) - 1}")
    return values


def _pictures(files: list[Path]) -> Iterator[Picture]:
    for file in files:
        with _open(file) as opened:
            kind = opened.schema_arrow.field("image").type
            for batch in opened.iter_batches(batch_size=_BATCH_ROWS, columns=["image"]):
                for value in batch.column(0):
                    yield _picture(value, kind)


def _picture(value: Any, kind: pa.DataType) -> Picture:
    if not value.is_valid:
        return None
    if pa.types.is_struct(kind):
        content: bytes | None = value["bytes"].as_py()
        return content
    if isinstance(kind, pa.FixedShapeTensorType):
        return np.asarray(value.to_numpy())
    if _is_bytes(kind):
        encoded: bytes = value.as_py()
        return encoded
    return _square(value.values.to_numpy(zero_copy_only=False))


def _square(pixels: np.ndarray) -> Picture:
    """Flat pixels of a square image, grey or RGB; anything else is passed on as encoded nothing, which is refused."""
    for channels in (1, 3):
        side = math.isqrt(len(pixels) // channels)
        if side and side * side * channels == len(pixels):
            return pixels.reshape(side, side, channels)
    return b""
