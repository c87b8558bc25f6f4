"""Labels of Parquet files: whole numbers or text. None is guessed, rounded or left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.errors import DataError

Column = tuple[Path, pa.ChunkedArray]
"""The labels of one file."""

_SHOWN = 5


def refuse_nulls(file: Path, column: pa.ChunkedArray) -> None:
    """Raises DataError that names the rows without a label."""
    _refuse_rows(file, column.is_null(), column, "null")


def class_names(columns: Sequence[Column], num_classes: int | None) -> tuple[str, ...]:
    """The classes of the training labels: the different texts, sorted, or 0 to the largest number.

    Raises DataError for numbers below 0 or with a gap (unless `num_classes` is given), and for a single class.
    """
    first = columns[0][0]
    if _is_text(columns[0][1]):
        names = sorted({value for _, column in columns for value in column.unique().to_pylist()})
    else:
        largest = _largest(columns, may_have_gaps=num_classes is not None)
        names = [str(i) for i in range(num_classes or largest + 1)]
    if len(names) < 2:
        raise DataError(f"{first}: the labels are a single class; at least two are needed to learn from.")
    return tuple(names)


def class_numbers(file: Path, column: pa.ChunkedArray, names: tuple[str, ...]) -> np.ndarray:
    """The labels of one file as int64 in [0, len(names)). Raises DataError naming the rows of other ones."""
    if _is_text(column):
        found = pc.index_in(column.cast(pa.large_string()), value_set=pa.array(names, pa.large_string()))
        _refuse_rows(file, found.is_null(), column, "of classes that the training split does not have")
        return np.asarray(found.to_numpy()).astype(np.int64)
    values = _whole_numbers(file, column)
    outside = pa.chunked_array([pa.array((values < 0) | (values >= len(names)))])
    _refuse_rows(file, outside, column, f"outside 0 to {len(names) - 1}")
    return values


def _is_text(column: pa.ChunkedArray) -> bool:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _largest(columns: Sequence[Column], *, may_have_gaps: bool) -> int:
    seen: set[int] = set()
    largest, place = -1, ""
    for file, column in columns:
        values = _whole_numbers(file, column)
        _refuse_rows(file, pa.chunked_array([pa.array(values < 0)]), column, "below 0")
        seen.update(np.unique(values).tolist())
        if values.max() > largest:
            largest, place = int(values.max()), f"{file}: row {values.argmax()}"
    if largest + 1 > len(seen) and not may_have_gaps:
        # Lazily: a damaged label may be 2**40.
        missing = islice((i for i in range(largest) if i not in seen), _SHOWN)
        raise DataError(
            f"{place} has the label {largest}, but no training sample has {', '.join(map(str, missing))}. Labels count "
            f"from 0. Correct them, or say --num-classes {largest + 1} if there are classes without samples."
        )
    return largest


def _whole_numbers(file: Path, column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())  # exact, and there are functions for it
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


def _refuse_rows(file: Path, wrong: pa.ChunkedArray, column: pa.ChunkedArray, what: str) -> None:
    rows = np.flatnonzero(np.asarray(wrong.combine_chunks()))
    if not len(rows):
        return
    shown = ", ".join(str(row) for row in rows[:_SHOWN]) + (" and more" if len(rows) > _SHOWN else "")
    value = "" if what in ("null", "NaN") else f" (row {rows[0]}: {column[int(rows[0])].as_py()})"
    raise DataError(
        f"{file}: {len(rows):,} of {len(column):,} values of the column label are {what}, in row{'s' * (len(rows) > 1)} "
        f"{shown}{value}. Correct or remove these rows."
    )
