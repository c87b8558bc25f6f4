"""IDX files: what is damaged is refused with the file and the numbers."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orchestrator.data.idx import has_idx_files, idx_source
from orchestrator.errors import DataError
from tests.toy import idx_bytes, toy_images, write_idx_folder

TEN = tuple(str(i) for i in range(10))
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def rewrite(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(gzip.compress(change(gzip.decompress(file.read_bytes()))))


def relabel(file: Path, item: int, label: int) -> None:
    rewrite(file, lambda b: b[: 8 + item] + bytes([label]) + b[9 + item :])


def test_good_files_give_their_pixels_and_labels(toy_folder: Path) -> None:
    source = idx_source(toy_folder, "toy", TEN)
    images, labels = toy_images(64)
    assert np.array_equal(np.stack(list(source.train.pictures())), images)
    assert source.train.labels.tolist() == labels.tolist()
    assert source.validation is not None
    assert len(source.validation) == 30
    assert source.train.place(3).startswith("item 3 of ")


def test_files_without_gz_and_with_a_prefix_are_found(tmp_path: Path) -> None:
    images, labels = toy_images(20)
    (tmp_path / "emnist-letters-train-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (tmp_path / "emnist-letters-train-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    assert has_idx_files(tmp_path)
    source = idx_source(tmp_path, "letters", TEN)
    assert len(source.train) == 20
    assert source.validation is None


DAMAGES = [
    ("cut data", IMAGES, lambda b: b[:-500], "holds 49,676"),
    ("bytes behind the data", IMAGES, lambda b: b + b"1234567", "holds 50,183"),
    ("wrong magic", IMAGES, lambda b: b"\1\2" + b[2:], "begins with 01 02 08 03"),
    ("huge count", IMAGES, lambda b: b[:4] + struct.pack(">I", 2**31 - 1) + b[8:], "2,147,483,647 x 28 x 28"),
    ("ends in the header", IMAGES, lambda b: b[:9], "ends within its header"),
    ("no bytes", IMAGES, lambda b: b"", "begins with nothing"),
    (
        "one label short",
        LABELS,
        lambda b: idx_bytes(np.frombuffer(b[8:-1], np.uint8)),
        "has 64 images and .* has 63 labels",
    ),
    ("no items", IMAGES, lambda b: idx_bytes(np.zeros((0, 28, 28), np.uint8)), "has no items"),
]


@pytest.mark.parametrize(("name", "change", "said"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
def test_damage_is_named(toy_folder: Path, name: str, change: Callable[[bytes], bytes], said: str) -> None:
    rewrite(toy_folder / name, change)
    with pytest.raises(DataError, match=said) as raised:
        idx_source(toy_folder, "toy", TEN)
    assert name in str(raised.value)


def test_a_cut_gzip_is_named(toy_folder: Path) -> None:
    file = toy_folder / IMAGES
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError, match=f"{IMAGES} is damaged or cut short"):
        idx_source(toy_folder, "toy", TEN)


def test_far_too_many_bytes_are_not_read_to_their_end(toy_folder: Path) -> None:
    rewrite(toy_folder / IMAGES, lambda b: b + bytes(9_000_000))
    with pytest.raises(DataError, match=r"= 50,176 bytes behind its header and holds at least [12],"):
        idx_source(toy_folder, "toy", TEN)


def test_a_gzipped_file_with_a_plain_name_is_recognised(toy_folder: Path) -> None:
    (toy_folder / IMAGES).rename(toy_folder / IMAGES.removesuffix(".gz"))
    with pytest.raises(DataError, match=r"begins with 1f 8b .* It is gzipped: let its name end in \.gz"):
        idx_source(toy_folder, "toy", TEN)


def test_files_of_two_datasets_are_not_mixed(tmp_path: Path) -> None:
    images, labels = toy_images(20)
    for name in ("emnist-digits", "emnist-letters"):
        (tmp_path / f"{name}-train-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (tmp_path / f"{name}-train-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    with pytest.raises(DataError, match="several datasets: emnist-digits-.*, emnist-letters-"):
        idx_source(tmp_path, "emnist", TEN)


def test_names_with_a_dot_are_found(tmp_path: Path) -> None:
    images, labels = toy_images(20)
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images.idx3-ubyte").write_bytes(idx_bytes(images))
        (tmp_path / f"{part}-labels.idx1-ubyte").write_bytes(idx_bytes(labels))
    source = idx_source(tmp_path, "dots", TEN)
    assert source.validation is not None
    assert len(source.validation) == 20


def test_swapped_files_are_recognised(toy_folder: Path) -> None:
    images, labels = (toy_folder / IMAGES).read_bytes(), (toy_folder / LABELS).read_bytes()
    (toy_folder / IMAGES).write_bytes(labels)
    (toy_folder / LABELS).write_bytes(images)
    with pytest.raises(DataError, match="are the names swapped"):
        idx_source(toy_folder, "toy", TEN)


@pytest.mark.parametrize("label", [10, 255])
def test_a_label_outside_the_classes_is_named_with_its_item(toy_folder: Path, label: int) -> None:
    relabel(toy_folder / LABELS, 37, label)
    with pytest.raises(DataError, match=rf"item 37 is {label}, allowed are 0 to 9.*--num-classes"):
        idx_source(toy_folder, "toy", TEN)


def test_the_validation_labels_are_checked_as_well(toy_folder: Path) -> None:
    relabel(toy_folder / "t10k-labels-idx1-ubyte.gz", 3, 12)
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte.gz: the label of item 3 is 12"):
        idx_source(toy_folder, "toy", TEN)


def test_images_without_labels_and_a_single_class_are_refused(tmp_path: Path) -> None:
    folder = write_idx_folder(tmp_path / "a")
    (folder / LABELS).unlink()
    with pytest.raises(DataError, match="but no train-labels"):
        idx_source(folder, "toy", TEN)
    (folder / LABELS).write_bytes(gzip.compress(idx_bytes(np.zeros(64, np.uint8))))
    with pytest.raises(DataError, match="single class"):
        idx_source(folder, "toy", TEN)
