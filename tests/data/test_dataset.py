"""`prepare_dataset`: what it finds, what it keeps, and that it does so once."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import orchestrator.data.cache as cache
import orchestrator.data.preparation as preparation
from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import DatasetInfo, count_samples, is_prepared, open_split, prepare_dataset
from orchestrator.data.decode import Shape
from orchestrator.errors import ConfigError, DataError, EnvironmentMismatchError
from tests.data.pictures import class_folders, encoded, grey, red_and_blue
from tests.toy import toy_images, write_idx_folder


def config_for(dataset: Path | str, **changes: Any) -> TrainConfig:
    return TrainConfig(dataset=str(dataset), **changes)


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(preparation, "decode", fail)


def test_the_digits_of_the_package() -> None:
    info = prepare_dataset(config_for("digits"))
    assert (info.num_train, info.num_validation) == (1438, 359)
    assert (info.height, info.width, info.channels) == (28, 28, 1)
    assert info.class_names == tuple("0123456789")
    assert not info.mirror_keeps_class
    assert info.notes == ()
    split = open_split(info.train_file)
    assert (int(split.images.min()), int(split.images.max())) == (0, 255)
    assert set(split.labels.tolist()) == set(range(10))


def test_files_become_mapped_pixels_with_exact_statistics(toy_folder: Path) -> None:
    info = prepare_dataset(config_for(toy_folder))
    split = open_split(info.train_file)
    images, labels = toy_images(64)
    assert np.array_equal(split.images[..., 0], images)
    assert split.labels.tolist() == labels.tolist()
    assert not split.images.flags.writeable
    assert info.mean[0] == pytest.approx(float((images / 255).mean()), rel=1e-12)
    assert info.std[0] == pytest.approx(float((images / 255).std()), rel=1e-9)


def test_an_info_survives_the_way_between_processes(toy_folder: Path) -> None:
    info = prepare_dataset(config_for(toy_folder))
    assert DatasetInfo.from_dict(info.to_dict()) == info
    assert is_prepared(info)
    shutil.rmtree(Path(info.train_file).parent)
    assert not is_prepared(info)


def test_counting_agrees_and_writes_nothing(toy_folder: Path, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "classes", {"a": 7, "b": 4})
    before = sorted(tmp_path.rglob("*"))
    counted = [count_samples(config_for(f)) for f in (toy_folder, folder, "digits")]
    assert sorted(tmp_path.rglob("*")) == before
    for dataset, count in zip((toy_folder, folder, "digits"), counted, strict=True):
        info = prepare_dataset(config_for(dataset))
        assert (info.num_train, info.num_validation, len(info.class_names)) == count


def test_the_split_is_a_function_of_the_seed(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "c", {"a": 30, "b": 30})

    def parts(**changes: Any) -> tuple[list[int], list[int]]:
        info = prepare_dataset(config_for(folder, **changes))
        files = (info.train_file, info.validation_file)
        train, validation = ([int(i[0, 0, 0]) for i in open_split(f).images] for f in files)
        return train, validation

    train, validation = parts()
    assert len(validation) == 12
    assert not {*train} & {*validation}
    assert sorted(train + validation) == list(range(30)) + list(range(40, 70))
    assert parts(cache_dir=str(tmp_path / "other")) == (train, validation)
    assert parts(seed=1)[1] != validation
    assert len(parts(validation_fraction=0.5)[1]) == 30


def test_nothing_is_decoded_twice_until_a_file_changes(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare_dataset(config_for(toy_folder))
    with monkeypatch.context() as patch:
        forbid_decoding(patch)
        assert prepare_dataset(config_for(toy_folder)) == first
        os.utime(toy_folder / "train-images-idx3-ubyte.gz", ns=(1, 1))
        with pytest.raises(AssertionError, match="decoded again"):
            prepare_dataset(config_for(toy_folder))
    second = prepare_dataset(config_for(toy_folder))
    assert second.fingerprint != first.fingerprint
    assert not list((tmp_path / "xdg-cache").rglob("*.partial"))
    assert not list((tmp_path / "xdg-cache").rglob("*.raw"))


def test_a_cache_may_be_moved(toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = prepare_dataset(config_for(toy_folder, cache_dir="here"))
    assert Path(first.train_file).parents[2] == tmp_path / "here"
    shutil.move(tmp_path / "here", tmp_path / "there")
    forbid_decoding(monkeypatch)
    second = prepare_dataset(config_for(toy_folder, cache_dir="there"))
    assert Path(second.train_file).is_relative_to(tmp_path / "there")
    assert len(open_split(second.validation_file).labels) == 30


def test_more_values_than_32_bits_can_count(tmp_path: Path) -> None:
    # Two GiB of pixels would make a slow test: without this option Arrow refuses to write that many.
    options = []
    original = cache.pa.ipc.new_file

    def spying(sink: Any, schema: Any, **given: Any) -> Any:
        options.append(given["options"].allow_64bit)
        return original(sink, schema, **given)

    with pytest.MonkeyPatch.context() as patch, cache.SplitWriter(tmp_path / "a.arrow", Shape(2, 2, 1)) as writer:
        patch.setattr(cache.pa.ipc, "new_file", spying)
        writer.add(np.zeros((2, 2, 1), np.uint8), 0)
        writer.finish()
    assert options == [True]


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "no info", "foreign info"])
def test_a_damaged_cache_is_made_again(toy_folder: Path, damage: str) -> None:
    info = prepare_dataset(config_for(toy_folder))
    file, sidecar = Path(info.train_file), Path(info.train_file).parent / "info.json"
    content = file.read_bytes()
    if damage == "no info":
        sidecar.unlink()
    elif damage == "foreign info":
        sidecar.write_text("[1, 2]")
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "foreign": b"x" * 1000}[damage])
    assert prepare_dataset(config_for(toy_folder)) == info
    assert file.read_bytes() == content


def _prepare(folder: str, cache: str) -> tuple[str, int]:
    decoded = 0
    original = preparation.decode

    def counting(*arguments: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return original(*arguments)

    preparation.decode = counting
    return prepare_dataset(config_for(folder, cache_dir=cache)).fingerprint, decoded


def test_of_several_processes_one_decodes(toy_folder: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        results = pool.starmap(_prepare, [(str(toy_folder), str(tmp_path / "shared"))] * 4)
    assert len({fingerprint for fingerprint, _ in results}) == 1
    assert sorted(decoded for _, decoded in results) == [0, 0, 0, 94]


def test_images_of_several_sizes_need_one(tmp_path: Path) -> None:
    class_folders(tmp_path / "c", {"a": 3, "b": 3})
    grey(9, (20, 10)).save(tmp_path / "c" / "b" / "9.png")
    with pytest.raises(DataError, match=r"2 sizes: .* is 8x8, .*9\.png is 20x10.*--image-size 8"):
        prepare_dataset(config_for(tmp_path / "c"))
    info = prepare_dataset(config_for(tmp_path / "c", image_size=8))
    assert (info.height, info.width) == (8, 8)
    assert info.notes == ("1 of 7 images, which have 2 sizes, are scaled and cropped to 8x8",)


def test_one_colour_image_makes_a_colour_dataset(tmp_path: Path) -> None:
    class_folders(tmp_path / "c", {"a": 4, "b": 4}, size=(6, 4))
    assert prepare_dataset(config_for(tmp_path / "c")).channels == 1
    red_and_blue().save(tmp_path / "c" / "b" / "9.png")
    info = prepare_dataset(config_for(tmp_path / "c"))
    assert (info.channels, len(info.mean)) == (3, 3)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """4 good images of a and 3 of b; one cut, one empty, one HTML page."""
    root = class_folders(tmp_path / "broken", {"a": 4, "b": 3})
    content = encoded(Image.effect_noise((64, 64), 90).resize((8, 8)), "JPEG")
    (root / "b" / "cut.jpg").write_bytes(content[: len(content) * 2 // 3])
    (root / "a" / "empty.jpg").write_bytes(b"")
    (root / "b" / "html.jpg").write_bytes(b"<html>404</html>")
    (root / "a" / "notes.txt").write_text("no image")
    return root


def test_every_broken_image_is_named_and_nothing_is_kept(broken: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 images cannot be read") as raised:
        prepare_dataset(config_for(broken))
    message = str(raised.value)
    assert all(str(broken / p) in message for p in ("a/empty.jpg", "b/cut.jpg", "b/html.jpg"))
    assert "--on-bad-sample skip" in message
    assert not list((tmp_path / "xdg-cache").rglob("*.arrow"))


def test_broken_images_may_be_left_out_and_are_counted(broken: Path) -> None:
    info = prepare_dataset(config_for(broken, on_bad_sample="skip"))
    assert info.num_train + info.num_validation == 7
    assert info.skipped == 3
    assert "3 images cannot be read" in info.notes[0]
    labels = [*open_split(info.train_file).labels, *open_split(info.validation_file).labels]
    assert sorted(int(v) for v in labels) == [0, 0, 0, 0, 1, 1, 1]


def test_only_broken_images_are_no_dataset(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "c" / name).mkdir(parents=True)
        (tmp_path / "c" / name / "0.png").write_bytes(b"x")
    with pytest.raises(DataError, match="No image of c can be read"):
        prepare_dataset(config_for(tmp_path / "c", on_bad_sample="skip"))


def test_an_image_cut_behind_its_header_is_a_bad_image_and_no_trouble_with_the_cache(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "c", {"a": 4, "b": 4}, size=(64, 64))
    content = encoded(Image.effect_noise((64, 64), 90))
    (root / "a" / "9.png").write_bytes(content[: len(content) // 2])
    (root / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(
        DataError, match=r"2 images cannot be read: .*a/9\.png \(.*truncated.*b/gone\.png \(No such file"
    ):
        prepare_dataset(config_for(root))
    assert prepare_dataset(config_for(root, on_bad_sample="skip")).skipped == 2


def test_large_images_and_odd_tags_raise_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = class_folders(tmp_path / "c", {"a": 4, "b": 4})
    Image.new("RGB", (8, 8)).save(root / "a" / "tag.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff garbage")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    assert prepare_dataset(config_for(root)).num_train == 7
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match="No image of c can be read.*decompression bomb"):
        prepare_dataset(config_for(root, seed=1))


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = class_folders(tmp_path / "c", {"a": 2, "b": 2})

    def refuse(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("orchestrator.data.folder.os.scandir", refuse)
    for ask in (prepare_dataset, count_samples):
        with pytest.raises(DataError, match="c/a cannot be read: Permission denied"):
            ask(config_for(root))


def test_a_cache_that_cannot_be_written_is_an_environment_error(toy_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EnvironmentMismatchError, match="--cache-dir"):
        prepare_dataset(config_for(toy_folder, cache_dir=str(tmp_path / "file")))


def test_too_little_room_is_said_before_it_is_used(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(EnvironmentMismatchError, match=r"94 images of 28x28 needs .* GiB are free"):
        prepare_dataset(config_for(toy_folder))


def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        folder = write_idx_folder(tmp_path / str(count), num_train=count, num_validation=10, size=48)
        tracemalloc.start()
        prepare_dataset(config_for(folder))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(100)
    assert peak(4000) < 1.5 * peak(600)


@pytest.mark.parametrize("place", ["with space", "umläut-日本", "a#b", "p%20q", "slash/"])
def test_paths_are_taken_as_they_are(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_folder(tmp_path / place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for written in (str(tmp_path / place), f"./{place}", f"~/{place}", f"{place}/"):
        assert prepare_dataset(config_for(written)).num_train == 64
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_to_a_dataset_is_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(write_idx_folder(tmp_path / "real"))
    assert prepare_dataset(config_for(tmp_path / "link")).name == "link"


def test_a_number_of_classes_that_is_not_the_data_s_is_refused(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "c", {"a": 3, "b": 3})
    assert prepare_dataset(config_for(folder, num_classes=2)).class_names == ("a", "b")
    for dataset, has in ((folder, 2), ("digits", 10)):
        with pytest.raises(ConfigError, match=f"--num-classes 7, but .* has {has} classes"):
            prepare_dataset(config_for(dataset, num_classes=7))


def test_what_is_found_and_not_used_is_noted(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        class_folders(tmp_path / "c" / part, {"a": 3, "b": 3})
    notes = prepare_dataset(config_for(tmp_path / "c")).notes
    assert notes == (f"of {tmp_path / 'c'} train/ and val/ are used, and not test/",)


def test_what_is_no_dataset_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fashon-mnist is neither a name nor a path.*Did you mean fashion-mnist\?"):
        prepare_dataset(config_for("fashon-mnist"))
    (tmp_path / "stuff").mkdir()
    (tmp_path / "stuff" / "a.csv").write_text("x")
    with pytest.raises(DataError, match=r"it holds a\.csv\. It can be a folder with train/CLASS/"):
        prepare_dataset(config_for(tmp_path / "stuff"))
    with pytest.raises(DataError, match="neither a file nor a folder"):
        prepare_dataset(config_for("/dev/null"))
    for nonsense in ("~nobody-of-this-name/x", "x" * 5000):
        with pytest.raises(ConfigError, match="neither a name nor a path"):
            prepare_dataset(config_for(nonsense))
    with pytest.raises(DataError, match="a file of 1 bytes"):
        prepare_dataset(config_for(tmp_path / "stuff" / "a.csv"))
