"""Datasets with a name: the digits of this package, and those that torchvision can download."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from orchestrator.data.idx import has_idx_files, idx_source
from orchestrator.data.locks import locked
from orchestrator.data.source import Picture, Pool, Source
from orchestrator.errors import DataError

_TEN = tuple(str(i) for i in range(10))
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@dataclass(frozen=True)
class _Downloadable:
    torchvision_class: str
    class_names: tuple[str, ...] | None
    mirror_keeps_class: bool
    debian_package: str | None = None


_DOWNLOADABLE = {
    "mnist": _Downloadable("MNIST", _TEN, mirror_keeps_class=False),
    "fashion-mnist": _Downloadable("FashionMNIST", _FASHION, True, "dataset-fashion-mnist"),
    "cifar10": _Downloadable("CIFAR10", None, mirror_keeps_class=True),
    "cifar100": _Downloadable("CIFAR100", None, mirror_keeps_class=True),
}

NAMES = ("digits", *_DOWNLOADABLE)


def named_source(name: str, data_dir: str | None, cache: Path) -> Source:
    """The dataset of that name, which is one of `NAMES`. Downloads what is not on this machine, once per node.

    Raises DataError when files are damaged or cannot be had, saying where they may be put.
    """
    if name == "digits":
        return _digits()
    entry = _DOWNLOADABLE[name]
    root = Path(data_dir).expanduser() if data_dir else cache / "datasets"
    if entry.class_names is None:
        return _cifar(name, entry, root)
    for folder in _idx_folders(name, entry, root, only_root=data_dir is not None):
        if has_idx_files(folder):
            break
    else:
        _download(name, entry, root)
        folder = root / entry.torchvision_class / "raw"
    return idx_source(folder, name, entry.class_names, mirror_keeps_class=entry.mirror_keeps_class, classes_flag=False)


def _idx_folders(name: str, entry: _Downloadable, root: Path, *, only_root: bool) -> list[Path]:
    """Where IDX files may lie, in order: in a folder that was named, on the system, in the cache."""
    below = [root, root / name, root / entry.torchvision_class / "raw"]
    if only_root:
        return below
    data_dirs = os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share").split(":")
    shares = [Path(sys.prefix) / "share", *(Path(d) for d in data_dirs if d)]
    return [*(share / "datasets" / name for share in shares), *below]


def _digits() -> Source:
    file = resources.files("orchestrator.data") / "digits.parquet"
    with file.open("rb") as stream:
        table = pq.read_table(stream)
    # 0..16 black pixels of a 4x4 field each: to 0..255, so that full is white.
    values = table["image"].combine_chunks().flatten().to_numpy().reshape(-1, 8, 8).astype(np.uint16)
    pixels = ((values * 255 + 8) // 16).astype(np.uint8)
    return Source(
        name="digits",
        class_names=_TEN,
        train=Pool(table["label"].to_numpy().astype(np.int64), lambda: iter(pixels), lambda i: f"digit {i}"),
        validation=None,
        identity=["digits", 1],
        mirror_keeps_class=False,
        image_size=28,
    )


def _cifar(name: str, entry: _Downloadable, root: Path) -> Source:
    train, validation = (_download(name, entry, root, train=part) for part in (True, False))
    names = tuple(str(n) for n in train.classes)
    return Source(
        name=name,
        class_names=names,
        train=_in_memory(train, f"{name} train"),
        validation=_in_memory(validation, f"{name} test"),
        # torchvision has compared the checksums of the files, so the name says it all.
        identity=["torchvision", name],
        mirror_keeps_class=entry.mirror_keeps_class,
    )


def _in_memory(dataset: Any, title: str) -> Pool:
    pixels: np.ndarray = dataset.data

    def pictures() -> Iterator[Picture]:
        return iter(pixels)

    return Pool(np.array(dataset.targets, dtype=np.int64), pictures, lambda i: f"image {i} of {title}")


def _download(name: str, entry: _Downloadable, root: Path, *, train: bool = True) -> Any:
    """torchvision's dataset, downloaded into `root` unless it is there."""
    import torchvision.datasets

    dataset_class = getattr(torchvision.datasets, entry.torchvision_class)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f".{name}.lock"), _quiet():
            return dataset_class(str(root), train=train, download=True)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        there = f"Debian's package {entry.debian_package}, or " if entry.debian_package else ""
        raise DataError(
            f"The dataset {name} is not on this machine and could not be downloaded into {root}: {error}. "
            f"Get it by {there}on a machine with a network by torchvision.datasets.{entry.torchvision_class}"
            "(FOLDER, download=True), and name that folder with --data-dir."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """torchvision prints a progress bar for each file."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
