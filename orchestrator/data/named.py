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

from orchestrator.data.idx import has_idx_files, idx_source, is_complete
from orchestrator.data.locks import locked
from orchestrator.data.source import Picture, Pool, Source
from orchestrator.errors import DataError

_TEN = tuple(str(i) for i in range(10))
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@dataclass(frozen=True)
class _Downloadable:
    """A dataset of torchvision. `folder` is what its class makes below its root, `counts` are train, test, classes."""

    torchvision_class: str
    folder: str
    counts: tuple[int, int, int]
    class_names: tuple[str, ...] | None = None
    mirror_keeps_class: bool = True
    debian_package: str | None = None

    @property
    def is_idx(self) -> bool:
        return self.class_names is not None


_DOWNLOADABLE = {
    "mnist": _Downloadable("MNIST", "MNIST/raw", (60_000, 10_000, 10), _TEN, mirror_keeps_class=False),
    "fashion-mnist": _Downloadable(
        "FashionMNIST", "FashionMNIST/raw", (60_000, 10_000, 10), _FASHION, debian_package="dataset-fashion-mnist"
    ),
    "cifar10": _Downloadable("CIFAR10", "cifar-10-batches-py", (50_000, 10_000, 10)),
    "cifar100": _Downloadable("CIFAR100", "cifar-100-python", (50_000, 10_000, 100)),
}


def named_source(name: str, data_dir: str | None, cache: Path) -> Source:
    """The dataset of that name, which is one of `DATASET_NAMES`. Downloads what is not on this machine, once per node.

    Raises DataError when files are damaged or cannot be had, saying where they may be put.
    """
    if name == "digits":
        return _digits()
    entry, root = _DOWNLOADABLE[name], _root(data_dir, cache)
    if not entry.is_idx:
        return _cifar(name, entry, _cifar_root(name, entry, root, data_dir), may_replace=data_dir is None)
    names = entry.class_names or ()
    folder = _placed(name, root, data_dir) or _downloaded(name, entry, root, _places(name, root, data_dir))
    return idx_source(folder, name, names, mirror_keeps_class=entry.mirror_keeps_class, own_split=True)


def counts_before_download(name: str, data_dir: str | None, cache: Path) -> tuple[int, int, int] | None:
    """Training samples, test samples and classes of a dataset that would have to be downloaded; None if it is here."""
    if name == "digits":
        return None
    entry, root = _DOWNLOADABLE[name], _root(data_dir, cache)
    below = root / entry.folder
    if entry.is_idx:
        here = is_complete(below) or _placed(name, root, data_dir) is not None
    else:
        here = (_cifar_root(name, entry, root, data_dir) / entry.folder).is_dir()
    return None if here else entry.counts


def _root(data_dir: str | None, cache: Path) -> Path:
    return Path(data_dir).expanduser() if data_dir else cache / "datasets"


def _places(name: str, root: Path, data_dir: str | None) -> list[Path]:
    """Where a user or a package may have put IDX files, in order: in the folder that was named, else on the system."""
    if data_dir:
        return [root, root / name]
    data_dirs = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    shares = [Path(sys.prefix) / "share", *(Path(d) for d in data_dirs.split(":") if d)]
    return [*(share / "datasets" / name for share in shares), root / name]


def _placed(name: str, root: Path, data_dir: str | None) -> Path | None:
    return next((folder for folder in _places(name, root, data_dir) if has_idx_files(folder)), None)


def _downloaded(name: str, entry: _Downloadable, root: Path, looked_in: list[Path]) -> Path:
    """torchvision's folder of IDX files, downloaded unless all of them are there."""
    folder = root / entry.folder
    # With a lock file another process may be downloading right now. Without one the folder may be read-only.
    if _lock_file(name, root).exists() or not is_complete(folder):
        with _downloading(name, entry, root, looked_in):
            if not is_complete(folder):
                _load(entry, root, download=True)
    return folder


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


def _cifar_root(name: str, entry: _Downloadable, root: Path, data_dir: str | None) -> Path:
    """The folder that holds torchvision's folder of files: one of a package or a user, else where it is downloaded to."""
    return next((p for p in _places(name, root, data_dir) if (p / entry.folder).is_dir()), root)


def _cifar(name: str, entry: _Downloadable, root: Path, *, may_replace: bool) -> Source:
    try:
        # It compares checksums, so a download of another process that is under way does not pass for one.
        train, validation = _load_both(entry, root, download=False)
    except (RuntimeError, OSError) as error:
        folder = root / entry.folder
        if folder.exists() and not may_replace:
            raise DataError(
                f"{folder} is damaged or incomplete: its files do not have the checksums of {name}. "
                "Copy it again, or remove it to have it downloaded."
            ) from error
        with _downloading(name, entry, root, [root / entry.folder]):
            train, validation = _load_both(entry, root, download=True)
    return Source(
        name=name,
        class_names=tuple(str(n) for n in train.classes),
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


def _load(entry: _Downloadable, root: Path, *, train: bool = True, download: bool) -> Any:
    import torchvision.datasets

    return getattr(torchvision.datasets, entry.torchvision_class)(str(root), train=train, download=download)


def _load_both(entry: _Downloadable, root: Path, *, download: bool) -> tuple[Any, Any]:
    return _load(entry, root, train=True, download=download), _load(entry, root, train=False, download=download)


def _lock_file(name: str, root: Path) -> Path:
    return root / f".{name}.lock"


@contextmanager
def _downloading(name: str, entry: _Downloadable, root: Path, looked_in: list[Path]) -> Iterator[None]:
    """One process of the node, in silence: torchvision draws a progress bar for each file.

    Raises DataError saying where the files can come from instead.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (
            locked(_lock_file(name, root)),
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
        ):
            yield
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        package = f"install Debian's package {entry.debian_package}, or " if entry.debian_package else ""
        raise DataError(
            f"The dataset {name} is not in {', '.join(map(str, looked_in))}, and could not be downloaded into {root}: "
            f"{reason}. "
            f"To have it without a network, {package}call torchvision.datasets.{entry.torchvision_class}(FOLDER, "
            f"download=True) on a machine that has one, bring FOLDER here, and name it with --data-dir."
        ) from error
