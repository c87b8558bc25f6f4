"""Parquet: every form of image, and labels that are never guessed."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.data.decode import Shape, decode
from orchestrator.data.parquet import is_parquet, parquet_source
from orchestrator.data.source import Source
from orchestrator.errors import DataError
from tests.data.pictures import encoded, grey

IMAGES = [encoded(grey(20 * i)) for i in range(12)]
LABELS = [i % 3 for i in range(12)]


def write(path: Path, images: Any = None, labels: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"image": IMAGES if images is None else images, "label": LABELS if labels is None else labels}), path
    )
    return path


def decoded(source: Source, shape: Shape) -> list[int]:
    return [int(decode(p, shape)[0, 0, 0]) for p in source.train.pictures()]


def fixed_tensors(shape: tuple[int, ...]) -> pa.Array:
    pixels = np.stack([np.full(shape, 20 * i, np.uint8) for i in range(12)])
    return pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)


FORMS = {
    "bytes": (IMAGES, 1),
    "struct": (pa.array([{"bytes": b, "path": "x"} for b in IMAGES]), 1),
    "flat grey": ([[20 * i] * 64 for i in range(12)], 1),
    "flat colour": ([[20 * i] * 192 for i in range(12)], 3),
    "grey tensors": (fixed_tensors((8, 8)), 1),
    "colour tensors": (fixed_tensors((8, 8, 3)), 3),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_image_comes_out_in_order(tmp_path: Path, form: str) -> None:
    images, channels = FORMS[form]
    if form.startswith("flat"):
        images = pa.array(images, pa.list_(pa.uint8()))
    source = parquet_source(write(tmp_path / "a.parquet", images), None)
    assert decoded(source, Shape(8, 8, channels)) == [20 * i for i in range(12)]
    assert source.train.labels.tolist() == LABELS
    assert source.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    "labels",
    [pa.array([float(v) for v in LABELS]), pa.array([Decimal(v) for v in LABELS]), pa.array(LABELS, pa.uint8())],
    ids=["float", "decimal", "uint8"],
)
def test_numbers_that_are_whole_are_labels(tmp_path: Path, labels: pa.Array) -> None:
    assert parquet_source(write(tmp_path / "a.parquet", labels=labels), None).train.labels.tolist() == LABELS


@pytest.mark.parametrize("dictionary", [False, True])
def test_text_is_a_label_through_the_sorted_classes(tmp_path: Path, dictionary: bool) -> None:
    labels = pa.array(["cat", "ant", "bee"] * 4)
    source = parquet_source(
        write(tmp_path / "a.parquet", labels=labels.dictionary_encode() if dictionary else labels), None
    )
    assert source.class_names == ("ant", "bee", "cat")
    assert source.train.labels.tolist() == [2, 0, 1] * 4


def replaced(values: list[Any], changes: dict[int, Any]) -> list[Any]:
    return [changes.get(i, v) for i, v in enumerate(values)]


BAD_LABELS = [
    ("nulls", replaced(LABELS, dict.fromkeys((2, 5, 11))), r"3 of 12 .* null, in rows 2, 5, 11\."),
    ("null type", pa.nulls(12), "12 of 12"),
    ("NaN", replaced([float(v) for v in LABELS], {4: float("nan")}), r"1 of 12 .* NaN, in rows 4"),
    ("fraction", replaced([float(v) for v in LABELS], {4: 4.5}), r"not whole, in rows 4 \(row 4: 4.5\)"),
    ("infinite", replaced([float(v) for v in LABELS], {4: float("inf")}), "infinite"),
    ("negative", replaced(LABELS, {7: -100}), r"outside 0 to 2, in rows 7 \(row 7: -100\)"),
    ("a gap", replaced(LABELS, {7: 9}), "go up to 9, but no sample has 3, 4"),
    ("from one", [v + 1 for v in LABELS], "no sample has 0"),
    ("bool", [True, False] * 6, "label is bool"),
    ("one class", [0] * 12, "single class"),
    ("lists", [[1, 0]] * 12, "label is list"),
]


@pytest.mark.parametrize(("labels", "said"), [b[1:] for b in BAD_LABELS], ids=[b[0] for b in BAD_LABELS])
def test_labels_that_cannot_be_meant_are_refused_with_rows(tmp_path: Path, labels: Any, said: str) -> None:
    file = write(tmp_path / "a.parquet", labels=labels)
    with pytest.raises(DataError, match=said) as raised:
        parquet_source(file, None)
    assert str(file) in str(raised.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet")
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(DataError, match="damaged or no Parquet file"):
        parquet_source(file, None)
    pq.write_table(pa.table({"img": IMAGES, "target": LABELS}), file)
    with pytest.raises(DataError, match="no column image and no column label; it has img, target"):
        parquet_source(file, None)
    write(file, pa.array([], pa.binary()), pa.array([], pa.int64()))
    with pytest.raises(DataError, match="no rows"):
        parquet_source(file, None)
    write(file, images=list(range(12)))
    with pytest.raises(DataError, match="column image is int64"):
        parquet_source(file, None)


def test_two_files_of_different_types_are_both_named(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet")
    write(tmp_path / "1.parquet", labels=[str(v) for v in LABELS])
    with pytest.raises(DataError, match=r"label is int64 in .*0\.parquet and string in .*1\.parquet"):
        parquet_source(tmp_path, None)


@pytest.mark.parametrize("names", [("train-0.parquet", "val.parquet"), ("train/0.parquet", "test/0.parquet")])
def test_files_and_folders_named_after_splits_are_the_splits(tmp_path: Path, names: tuple[str, str]) -> None:
    write(tmp_path / names[0])
    write(tmp_path / names[1], IMAGES[:2], LABELS[:2])
    source = parquet_source(tmp_path, None)
    assert source.validation is not None
    assert (len(source.train), len(source.validation)) == (12, 2)
    assert source.validation.place(1) == f"row 1 of {tmp_path / names[1]}"


def test_a_class_that_only_validation_has_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", labels=["a", "b", "c"] * 4)
    write(tmp_path / "val.parquet", labels=["a", "b", "z"] * 4)
    with pytest.raises(DataError, match="classes that the training split does not have, in rows 2, 5, 8, 11"):
        parquet_source(tmp_path, None)


def test_samples_of_several_files_keep_their_places(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet")
    source = parquet_source(tmp_path, None)
    assert source.train.place(13) == f"row 1 of {tmp_path / 'b.parquet'}"
    assert source.train.place(11) == f"row 11 of {tmp_path / 'a.parquet'}"


def test_what_is_parquet(tmp_path: Path) -> None:
    assert not is_parquet(tmp_path)
    write(tmp_path / "deep" / "a.parquet")
    assert is_parquet(tmp_path)
    assert is_parquet(tmp_path / "deep" / "a.parquet")
