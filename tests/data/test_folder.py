"""Folders of class folders: classes come from the training split, and nothing shifts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.data.folder import folder_source, is_class_folder
from orchestrator.errors import DataError
from tests.data.pictures import class_folders, grey


def test_a_class_that_validation_lacks_does_not_shift_the_others(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 2, "b": 2, "c": 2})
    class_folders(tmp_path / "val", {"b": 2, "c": 1})
    source = folder_source(tmp_path)
    assert source.class_names == ("a", "b", "c")
    assert source.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.validation is not None
    assert source.validation.labels.tolist() == [1, 1, 2]


def test_a_class_that_training_lacks_is_refused_by_name(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 2, "b": 2, "c": 2})
    class_folders(tmp_path / "val", {"b": 1, "c": 1, "d": 1})
    with pytest.raises(DataError, match="does not have: d. The training split has a, b, c"):
        folder_source(tmp_path)


def test_class_folders_alone_are_to_be_split(tmp_path: Path) -> None:
    source = folder_source(class_folders(tmp_path, {"cat": 3, "dog": 2}))
    assert source.validation is None
    assert [Path(p).name for p in source.train.pictures()] == ["0.png", "1.png", "2.png", "0.png", "1.png"]
    assert source.train.place(3) == str(tmp_path / "dog" / "0.png")


def test_empty_and_single_classes_are_refused(tmp_path: Path) -> None:
    class_folders(tmp_path / "a", {"x": 1, "y": 1})
    (tmp_path / "a" / "empty").mkdir()
    (tmp_path / "a" / "empty" / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match="without images: empty"):
        folder_source(tmp_path / "a")
    with pytest.raises(DataError, match="single class folder, x"):
        folder_source(class_folders(tmp_path / "b", {"x": 3}))


def test_what_is_no_image_is_left_aside(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "a" / "notes.txt").write_text("x")
    grey(1).save(tmp_path / "a" / ".hidden.png")
    grey(1).save(tmp_path / "a" / "UPPER.PNG")
    (tmp_path / "a" / "deep").mkdir()
    grey(1).save(tmp_path / "a" / "deep" / "z.png")
    (tmp_path / "b" / "link.png").symlink_to(tmp_path / "a" / "0.png")
    (tmp_path / ".cache").mkdir()
    source = folder_source(tmp_path)
    assert source.class_names == ("a", "b")
    names = [str(Path(p).relative_to(tmp_path)) for p in source.train.pictures()]
    assert names == ["a/0.png", "a/UPPER.PNG", "a/deep/z.png", "b/0.png", "b/link.png"]


def test_splits_that_are_ambiguous_are_refused_and_test_is_kept_for_later(tmp_path: Path) -> None:
    for name in ("train", "val", "test"):
        class_folders(tmp_path / name, {"a": 1, "b": 1})
    source = folder_source(tmp_path)
    assert source.validation is not None
    assert source.validation.place(0) == str(tmp_path / "val" / "a" / "0.png")
    class_folders(tmp_path / "valid", {"a": 1, "b": 1})
    with pytest.raises(DataError, match="which one is meant"):
        folder_source(tmp_path)


def test_a_validation_split_without_a_training_split_is_refused(tmp_path: Path) -> None:
    class_folders(tmp_path / "val", {"a": 1, "b": 1})
    with pytest.raises(DataError, match="no train/"):
        folder_source(tmp_path)


def test_what_is_a_class_folder(tmp_path: Path) -> None:
    assert not is_class_folder(tmp_path)
    grey(1).save(tmp_path / "a.png")
    assert not is_class_folder(tmp_path)
    class_folders(tmp_path / "train", {"a": 1, "b": 1})
    assert is_class_folder(tmp_path)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    source = folder_source(class_folders(tmp_path, {"car": 2, "plane": 2, "train": 2}))
    assert source.class_names == ("car", "plane", "train")
    assert source.validation is None


def test_images_in_a_split_folder_need_class_folders(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "flat", {"train": 2, "val": 2})
    with pytest.raises(
        DataError, match=r"flat/train has no class folders: its images belong into train/CLASS/image\.jpg"
    ):
        folder_source(root)
    class_folders(root / "train", {"a": 2, "b": 2})
    with pytest.raises(DataError, match="flat/val has no images in class folders"):
        folder_source(root)


@pytest.mark.parametrize("target", ["a", ".", "a/deep"])
def test_a_link_to_a_folder_around_it_is_refused(tmp_path: Path, target: str) -> None:
    class_folders(tmp_path, {"a/deep": 2, "b": 2})
    (tmp_path / "a" / "deep" / "link").symlink_to(tmp_path / target)
    with pytest.raises(DataError, match="is a link to a folder that it lies in"):
        folder_source(tmp_path)


def test_a_linked_class_folder_is_followed(tmp_path: Path) -> None:
    class_folders(tmp_path / "real", {"x": 3})
    class_folders(tmp_path / "data", {"a": 2})
    (tmp_path / "data" / "b").symlink_to(tmp_path / "real" / "x")
    assert folder_source(tmp_path / "data").train.labels.tolist() == [0, 0, 1, 1, 1]


def test_folders_beside_the_splits_are_noted(tmp_path: Path) -> None:
    for name in ("train", "extra"):
        class_folders(tmp_path / name, {"a": 1, "b": 1})
    assert folder_source(tmp_path).notes == (f"of {tmp_path} train/ is used, and not extra/",)
