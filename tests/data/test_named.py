"""Datasets by name: found on this machine first, downloaded last, never replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torchvision.datasets

from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import find_source
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
    with pytest.raises(DataError, match="no route to host.*dataset-fashion-mnist.*--data-dir"):
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
