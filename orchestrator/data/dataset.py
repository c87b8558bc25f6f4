"""`prepare_dataset`: from what `--dataset` says to checked, decoded files that every worker of this node maps."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from orchestrator.config.options import DATASET_NAMES, TrainConfig
from orchestrator.data.cache import Split, open_split
from orchestrator.data.folder import folder_source, is_class_folder
from orchestrator.data.idx import DEFAULT_CLASSES, has_idx_files, idx_source
from orchestrator.data.locks import locked
from orchestrator.data.named import counts_before_download, named_source
from orchestrator.data.parquet import is_parquet, parquet_source
from orchestrator.data.preparation import prepare_files
from orchestrator.data.source import Source
from orchestrator.data.splitting import validation_count
from orchestrator.errors import ConfigError, DataError, EnvironmentMismatchError

__all__ = ["DatasetInfo", "Split", "count_samples", "is_prepared", "open_split", "prepare_dataset"]

_FORMAT = 3
_INFO = "info.json"
_FILES = ("train.arrow", "validation.arrow")

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset on this node, decoded. `num_` counts are before any --limit; `notes` are sentences for the user.

    `mean` and `std` are per channel of the training pixels in [0, 1]. `fingerprint` changes with the files and with
    the settings that they were decoded with; `content` with the pixels and labels alone.
    """

    name: str
    class_names: tuple[str, ...]
    channels: int
    height: int
    width: int
    num_train: int
    num_validation: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirror_keeps_class: bool
    skipped: int
    notes: tuple[str, ...]
    train_file: str
    validation_file: str
    fingerprint: str
    content: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)


def prepare_dataset(config: TrainConfig, on_progress: OnProgress | None = None) -> DatasetInfo:
    """Find the dataset, check it, and decode it into the cache unless it is there; once per node.

    Raises ConfigError for a name that is none, DataError for data that cannot be trained on, and
    EnvironmentMismatchError for a cache that cannot be written.
    """
    cache = cache_folder(config)
    source = find_source(config, cache)
    fingerprint = _fingerprint(source, config)
    folder = cache / "images" / f"{source.name[:40]}-{fingerprint}"
    info = _cached(folder)
    if info is not None:
        return info
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock")):
            return _cached(folder) or _fill(folder, source, config, fingerprint, on_progress)
    except OSError as error:
        raise EnvironmentMismatchError(
            f"The decoded images cannot be kept in {cache}: {error.strerror or error}. Name another place with --cache-dir."
        ) from error


def is_prepared(info: DatasetInfo) -> bool:
    """Whether the very files that another process of this node prepared are here, whole."""
    return _cached(Path(info.train_file).parent) == info


def count_samples(config: TrainConfig) -> tuple[int, int, int]:
    """Training samples, validation samples and classes, without decoding or downloading. Raises as `prepare_dataset`."""
    cache = cache_folder(config)
    with _reading(config):
        if config.dataset in DATASET_NAMES and (
            counts := counts_before_download(config.dataset, config.data_dir, cache)
        ):
            return counts
    source = find_source(config, cache)
    train, validation = len(source.train), len(source.validation or ())
    if source.validation is None:
        validation = validation_count(train, config.validation_fraction)
        train -= validation
    return train, validation, len(source.class_names)


def cache_folder(config: TrainConfig) -> Path:
    """Absolute, because other processes of this node are told of files in it."""
    if config.cache_dir is not None:
        return Path(os.path.abspath(os.path.expanduser(config.cache_dir)))
    return Path(os.path.abspath(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))) / "orchestrator"


def find_source(config: TrainConfig, cache: Path) -> Source:
    """What `--dataset` means: a name, or a path to one of three layouts.

    Raises ConfigError and DataError.
    """
    with _reading(config):
        known = config.dataset in DATASET_NAMES
        source = named_source(config.dataset, config.data_dir, cache) if known else _source_at(config)
    if config.num_classes not in (None, len(source.class_names)):
        raise ConfigError(
            f"--num-classes {config.num_classes}, but {source.name} has {len(source.class_names)} classes by their names. "
            "Leave it out: it is for labels that are numbers, in a folder of IDX files or in Parquet."
        )
    return source


@contextmanager
def _reading(config: TrainConfig) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or config.dataset} cannot be read: {error.strerror or error}.") from error


def _source_at(config: TrainConfig) -> Source:
    path = Path(os.path.abspath(os.path.expanduser(config.dataset)))
    if not os.path.exists(path):
        close = difflib.get_close_matches(config.dataset, DATASET_NAMES, n=1)
        raise ConfigError(
            f"--dataset {config.dataset} is neither a name nor a path: there is no {path}. "
            + (f"Did you mean {close[0]}?" if close else f"The names are {', '.join(DATASET_NAMES)}.")
        )
    if has_idx_files(path):
        classes = tuple(str(i) for i in range(config.num_classes or DEFAULT_CLASSES))
        return idx_source(path, path.name, classes)
    if is_parquet(path):
        return parquet_source(path, config.num_classes)
    if is_class_folder(path):
        return folder_source(path)
    raise DataError(
        f"{path} is no dataset: it holds {_inventory(path)}. It can be a folder with train/CLASS/image.jpg and "
        "val/CLASS/image.jpg, or with CLASS/image.jpg; a folder with train-images-idx3-ubyte and the like; "
        "a .parquet file with the columns image and label, or a folder of such files."
    )


def _inventory(path: Path) -> str:
    if path.is_file():
        return f"a file of {path.stat().st_size:,} bytes"
    if not path.is_dir():
        return "neither a file nor a folder"
    names = sorted(p.name + "/" * p.is_dir() for p in path.iterdir())
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "") if names else "nothing"


def _fingerprint(source: Source, config: TrainConfig) -> str:
    settings = {
        "format": _FORMAT,
        "identity": source.identity,
        "classes": source.class_names,
        "image_size": config.image_size or source.image_size,
        "on_bad_sample": config.on_bad_sample,
        "split": None if source.validation is not None else [config.seed, config.validation_fraction],
    }
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=12).hexdigest()


def _cached(folder: Path) -> DatasetInfo | None:
    """The dataset in a folder of the cache, if it is whole."""
    try:
        info = DatasetInfo.from_dict(json.loads((folder / _INFO).read_text()))
        # The cache may have been moved, or be mounted elsewhere.
        info = replace(info, train_file=str(folder / _FILES[0]), validation_file=str(folder / _FILES[1]))
        for name, count in zip(_FILES, (info.num_train, info.num_validation), strict=True):
            shape = (count, info.height, info.width, info.channels)
            if open_split(folder / name).images.shape != shape:
                return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, pa.ArrowException):
        return None
    return info


def _fill(
    folder: Path, source: Source, config: TrainConfig, fingerprint: str, on_progress: OnProgress | None
) -> DatasetInfo:
    """Decode aside, then make the folder visible in one rename."""
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        facts = prepare_files(source, config, aside / _FILES[0], aside / _FILES[1], on_progress)
        info = DatasetInfo(
            name=source.name,
            class_names=source.class_names,
            mirror_keeps_class=source.mirror_keeps_class,
            train_file=str(folder / _FILES[0]),
            validation_file=str(folder / _FILES[1]),
            fingerprint=fingerprint,
            **facts,
        )
        (aside / _INFO).write_text(json.dumps(info.to_dict(), indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return info
