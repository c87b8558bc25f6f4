"""Parquet: every form of image, and labels that are never guessed."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.data.decode import BadPictureError, Shape, decode
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
    [
        pa.array([float(v) for v in LABELS]),
        pa.array(np.array(LABELS, np.float16)),
        pa.array([Decimal(v) for v in LABELS]),
        pa.array(LABELS, pa.uint8()),
    ],
    ids=["float", "half", "decimal", "uint8"],
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
    ("NaN", replaced([float(v) for v in LABELS], {4: float("nan")}), r"1 of 12 .* NaN, in row 4\."),
    ("fraction", replaced([float(v) for v in LABELS], {4: 4.5}), r"not whole, in row 4 \(row 4: 4.5\)"),
    ("infinite", replaced([float(v) for v in LABELS], {4: float("inf")}), "infinite"),
    ("negative", replaced(LABELS, {7: -100}), r"below 0, in row 7 \(row 7: -100\)"),
    ("a gap", replaced(LABELS, {7: 9}), "row 7 has the label 9, but no training sample has 3, 4"),
    ("huge", replaced(LABELS, {7: 2**40}), "row 7 has the label 1099511627776, but no training sample has 3"),
    ("from one", [v + 1 for v in LABELS], "no training sample has 0"),
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
    pq.write_table(pa.table([IMAGES, IMAGES, LABELS], names=["image", "image", "label"]), file)
    with pytest.raises(DataError, match="the column image more than once"):
        parquet_source(file, None)


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8, 4), (8,)])
def test_tensors_that_are_no_images_are_refused_as_a_column(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="the column image is extension.*H x W x 3"):
        parquet_source(write(tmp_path / "a.parquet", fixed_tensors(shape)), None)


def test_damage_in_the_pages_is_the_file_s(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", [bytes([i]) * 3000 for i in range(12)])
    content = file.read_bytes()
    file.write_bytes(b"PAR1" + b"\xff" * 56 + content[60:])
    source = parquet_source(file, None)
    with pytest.raises(DataError, match=r"a\.parquet is damaged"):
        list(source.train.pictures())


MISSING = {
    "null": (replaced(IMAGES, {3: None}), "there is no image"),
    "null pixel": (pa.array(replaced([[0] * 64] * 12, {3: [None] * 64}), pa.list_(pa.uint8())), "64 of its 64 pixels"),
    "no square": (pa.array(replaced([[0] * 64] * 12, {3: [0] * 50}), pa.list_(pa.uint8())), "50 pixels are no square"),
    "path": (
        pa.array(replaced([{"bytes": b, "path": "x"} for b in IMAGES], {3: {"bytes": None, "path": "dog.png"}})),
        r"only the path dog\.png",
    ),
    "struct": (pa.array(replaced([{"bytes": b} for b in IMAGES], {3: {"bytes": None}})), "there is no image"),
}


@pytest.mark.parametrize("form", MISSING)
def test_an_image_that_is_not_there_has_a_reason(tmp_path: Path, form: str) -> None:
    images, reason = MISSING[form]
    pictures = list(parquet_source(write(tmp_path / "a.parquet", images), None).train.pictures())
    with pytest.raises(BadPictureError, match=reason):
        decode(pictures[3], Shape(8, 8, 1))
    assert decode(pictures[4], Shape(8, 8, 1)).shape == (8, 8, 1)


def test_two_files_of_different_types_are_both_named(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet")
    write(tmp_path / "1.parquet", labels=[str(v) for v in LABELS])
    with pytest.raises(DataError, match=r"label is int64 in .*0\.parquet and string in .*1\.parquet"):
        parquet_source(tmp_path, None)


NAMES = [
    ("train-0.parquet", "val.parquet"),
    ("train/0.parquet", "test/0.parquet"),
    ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
    ("digits_train.parquet", "digits_Validation.parquet"),
]


@pytest.mark.parametrize("names", NAMES)
def test_files_and_folders_named_after_splits_are_the_splits(tmp_path: Path, names: tuple[str, str]) -> None:
    write(tmp_path / names[0])
    write(tmp_path / names[1], IMAGES[:2], LABELS[:2])
    source = parquet_source(tmp_path, None)
    assert source.validation is not None
    assert (len(source.train), len(source.validation)) == (12, 2)
    assert source.validation.place(1) == f"row 1 of {tmp_path / names[1]}"


def test_splits_are_whole_or_not_named_at_all(tmp_path: Path) -> None:
    only = write(tmp_path / "only" / "train-0.parquet")
    assert parquet_source(tmp_path / "only", None).validation is None
    assert parquet_source(only, None).validation is None
    write(tmp_path / "only" / "more.parquet")
    with pytest.raises(DataError, match=r"more\.parquet belongs to no split, while .*train-0\.parquet"):
        parquet_source(tmp_path / "only", None)
    write(tmp_path / "half" / "contest-a.parquet")
    assert len(parquet_source(tmp_path / "half", None).train) == 12
    (tmp_path / "half" / "contest-a.parquet").rename(tmp_path / "half" / "test-a.parquet")
    with pytest.raises(DataError, match="has no training files"):
        parquet_source(tmp_path / "half", None)


def test_a_test_split_beside_a_validation_split_is_left_alone_and_noted(tmp_path: Path) -> None:
    for name in ("train", "val", "test"):
        write(tmp_path / f"{name}.parquet", *((IMAGES[:3], LABELS[:3]) if name == "val" else ()))
    source = parquet_source(tmp_path, None)
    assert source.validation is not None
    assert len(source.validation) == 3
    assert source.notes == (f"of {tmp_path} the files of train and val are used, and not 1 of test",)


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
