"""Datasets by name: found on this machine first, downloaded last, never replaced."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torchvision.datasets

from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import count_samples, find_source
from orchestrator.data.locks import locked
from orchestrator.errors import DataError
from tests.toy import write_idx_folder


@pytest.fixture(autouse=True)
def _no_system_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "share"))


def forbid_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("downloaded")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", fail)


def test_a_share_folder_is_found_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_download(monkeypatch)
    write_idx_folder(tmp_path / "share" / "datasets" / "fashion-mnist")
    source = find_source(TrainConfig(dataset="fashion-mnist"), tmp_path / "cache")
    assert (source.name, len(source.train), source.class_names[9]) == ("fashion-mnist", 64, "Ankle boot")


@pytest.mark.parametrize("below", ["", "fashion-mnist", "FashionMNIST/raw"])
def test_a_named_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    forbid_download(monkeypatch)
    write_idx_folder(tmp_path / "share" / "datasets" / "fashion-mnist", num_train=20)
    write_idx_folder(tmp_path / "mine" / below)
    config = TrainConfig(dataset="fashion-mnist", data_dir=str(tmp_path / "mine"))
    assert len(find_source(config, tmp_path / "cache").train) == 64


def test_damaged_files_are_refused_and_not_downloaded_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_download(monkeypatch)
    folder = write_idx_folder(tmp_path / "mine")
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"damaged")
    with pytest.raises(DataError, match="damaged or cut short"):
        find_source(TrainConfig(dataset="fashion-mnist", data_dir=str(folder)), tmp_path / "cache")


def test_without_a_network_it_is_said_where_the_files_may_be_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_arguments: Any, **_options: Any) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", unreachable)
    with pytest.raises(
        DataError, match="not in .*share/datasets/fashion-mnist.*no route to host.*dataset-fashion-mnist.*--data-dir"
    ):
        find_source(TrainConfig(dataset="fashion-mnist"), tmp_path / "cache")


def test_a_download_is_where_torchvision_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(root: str, *, train: bool, download: bool) -> None:
        calls.append((root, train, download))
        write_idx_folder(Path(root) / "MNIST" / "raw")

    monkeypatch.setattr(torchvision.datasets, "MNIST", download)
    for _ in range(2):
        source = find_source(TrainConfig(dataset="mnist"), tmp_path / "cache")
    assert calls == [(str(tmp_path / "cache" / "datasets"), True, True)]
    assert not source.mirror_keeps_class
    assert len(source.train) == 64


def test_an_interrupted_download_goes_on_and_its_half_is_never_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = write_idx_folder(tmp_path / "cache" / "datasets" / "MNIST" / "raw")
    for file in raw.glob("t10k*"):
        file.unlink()
    monkeypatch.setattr(torchvision.datasets, "MNIST", lambda root, **_: write_idx_folder(Path(root) / "MNIST" / "raw"))
    source = find_source(TrainConfig(dataset="mnist"), tmp_path / "cache")
    assert source.validation is not None
    assert len(source.validation) == 30


def test_a_named_folder_without_the_test_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_download(monkeypatch)
    for file in write_idx_folder(tmp_path / "mine").glob("t10k*"):
        file.unlink()
    config = TrainConfig(dataset="fashion-mnist", data_dir=str(tmp_path / "mine"))
    with pytest.raises(DataError, match="training files of fashion-mnist and not the test files"):
        find_source(config, tmp_path / "cache")


def _find_while_downloading(folder: str) -> int:
    """What a process of this node sees that asks while another one downloads."""

    def slowly(root: str, **_options: Any) -> None:
        raw = Path(root) / "MNIST" / "raw"
        raw.mkdir(parents=True)  # fails for a second download
        for name in sorted(p.name for p in Path(folder, "source").iterdir()):
            (raw / name).write_bytes(b"half")
            time.sleep(0.02)
            shutil.copy(Path(folder, "source", name), raw / name)

    torchvision.datasets.MNIST = slowly
    return len(find_source(TrainConfig(dataset="mnist"), Path(folder, "cache")).train)


def test_processes_of_a_node_wait_for_the_one_that_downloads(tmp_path: Path) -> None:
    write_idx_folder(tmp_path / "source")
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_find_while_downloading, [str(tmp_path)] * 3) == [64, 64, 64]


def test_a_lock_of_somebody_else_can_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").touch()
    monkeypatch.setattr("orchestrator.data.locks.os.access", lambda *_: False)
    with locked(tmp_path / "lock"):
        assert (tmp_path / "lock").read_bytes() == b""


def test_before_a_download_the_counts_are_known_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_download(monkeypatch)
    config = TrainConfig(dataset="fashion-mnist", cache_dir=str(tmp_path / "cache"))
    assert count_samples(config) == (60_000, 10_000, 10)
    assert count_samples(config.model_copy(update={"dataset": "cifar100"})) == (50_000, 10_000, 100)
    assert list(tmp_path.iterdir()) == []
    write_idx_folder(tmp_path / "share" / "datasets" / "fashion-mnist")
    assert count_samples(config) == (64, 30, 10)


class UnreachableCifar:
    """torchvision's class where the files are not there or damaged, and there is no network."""

    def __init__(self, _root: str, *, train: bool, download: bool) -> None:
        if download:
            raise URLError("no route to host")
        raise RuntimeError("Dataset not found or corrupted.")


def test_damaged_files_of_cifar_are_replaced_only_in_our_own_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", UnreachableCifar)
    (tmp_path / "datasets" / "cifar-10-batches-py").mkdir(parents=True)
    given = TrainConfig(dataset="cifar10", data_dir=str(tmp_path / "datasets"))
    with pytest.raises(DataError, match="cifar-10-batches-py is damaged or incomplete"):
        find_source(given, tmp_path)
    with pytest.raises(DataError, match=r"no route to host.*torchvision\.datasets\.CIFAR10\(FOLDER"):
        find_source(TrainConfig(dataset="cifar10"), tmp_path)


def test_torchvision_s_own_class_is_asked_for_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_arguments: Any, **_options: Any) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", unreachable)
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", unreachable)
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100"):
        with pytest.raises(DataError, match=f"{name} is not in .*no route to host") as raised:
            find_source(TrainConfig(dataset=name), tmp_path / "cache")
        assert "\n" not in str(raised.value)


def test_cifar_comes_as_torchvision_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cifar:
        classes = ("plane", "car")

        def __init__(self, _root: str, *, train: bool, download: bool) -> None:
            self.data = np.full((4 if train else 2, 32, 32, 3), 7, np.uint8)
            self.targets = [0, 1] * (2 if train else 1)

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Cifar)
    source = find_source(TrainConfig(dataset="cifar10"), tmp_path / "cache")
    assert source.class_names == ("plane", "car")
    assert source.train.labels.tolist() == [0, 1, 0, 1]
    assert source.validation is not None
    assert next(source.validation.pictures()).shape == (32, 32, 3)
    assert source.validation.place(1) == "image 1 of cifar10 test"


def test_cifar_in_a_share_folder_is_found_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots: list[tuple[str, bool]] = []

    class Cifar:
        classes = ("plane", "car")

        def __init__(self, root: str, *, train: bool, download: bool) -> None:
            roots.append((root, download))
            self.data = np.zeros((2, 32, 32, 3), np.uint8)
            self.targets = [0, 1]

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Cifar)
    share = tmp_path / "share" / "datasets" / "cifar10"
    (share / "cifar-10-batches-py").mkdir(parents=True)
    find_source(TrainConfig(dataset="cifar10"), tmp_path / "cache")
    assert roots == [(str(share), False)] * 2
