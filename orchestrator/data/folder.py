"""A folder of class folders: root/train/CLASS/image.jpg and root/val/CLASS/..., or root/CLASS/... to be split."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from orchestrator.data.source import Pool, Source, file_identity
from orchestrator.errors import DataError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_TRAIN = ("train", "training")
_VALIDATION = ("val", "valid", "validation", "test")


def is_class_folder(root: Path) -> bool:
    """Whether some folder in `root`, or in a split folder of it, holds images."""
    return root.is_dir() and any(_images(c) for part in (root, *_folders(root)) for c in _folders(part))


def folder_source(root: Path) -> Source:
    """The dataset in a folder of class folders. The classes are those of the training split, sorted by name.

    Raises DataError for a class without images, one that only the validation split has, or splits that are ambiguous.
    """
    train, validation = _split_folder(root, _TRAIN), _split_folder(root, _VALIDATION)
    if train is None and validation is not None:
        raise DataError(f"{root} has {validation.name}/ but no train/.")
    base = train or root
    classes = tuple(c.name for c in _folders(base))
    files = _files_by_class(base, classes)
    if len(classes) < 2:
        raise DataError(
            f"{base} has a single class folder, {', '.join(classes)}; at least two are needed to learn from."
        )
    train_pool, listed = _pool(files, classes), [f for part in files.values() for f in part]
    validation_pool = None
    if validation is not None:
        validation_files = _validation_files(validation, classes, base)
        validation_pool = _pool(validation_files, classes)
        listed += [f for part in validation_files.values() for f in part]
    return Source(
        name=root.name,
        class_names=classes,
        train=train_pool,
        validation=validation_pool,
        identity=["folder", str(root), file_identity(listed, root)],
    )


def _split_folder(root: Path, names: tuple[str, ...]) -> Path | None:
    found = [folder for folder in _folders(root) if folder.name.lower() in names]
    # Where there is a test split besides a validation split, it is left for the end of all work.
    chosen = [folder for folder in found if folder.name.lower() != "test"] or found
    if len(chosen) > 1:
        raise DataError(
            f"{root} has {' and '.join(f.name + '/' for f in chosen)}: which one is meant? Rename the others."
        )
    return chosen[0] if chosen else None


def _folders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    """Image files at any depth, sorted; links are followed, hidden files and other endings are no images."""
    found = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        found += [Path(place, n) for n in names if Path(n).suffix.lower() in EXTENSIONS and not n.startswith(".")]
    return sorted(found)


def _files_by_class(base: Path, classes: tuple[str, ...]) -> dict[str, list[Path]]:
    files = {name: _images(base / name) for name in classes}
    empty = [name for name in classes if not files[name]]
    if empty:
        raise DataError(
            f"{base} has class folders without images: {', '.join(empty)}. Fill or remove them "
            f"(images end in {' '.join(sorted(EXTENSIONS))})."
        )
    return files


def _validation_files(folder: Path, classes: tuple[str, ...], base: Path) -> dict[str, list[Path]]:
    present = [c.name for c in _folders(folder)]
    unknown = [name for name in present if name not in classes]
    if unknown:
        raise DataError(
            f"{folder} has classes that {base} does not have: {', '.join(unknown)}. The training split has "
            f"{', '.join(classes)}. Add training images of them, or remove them."
        )
    files = {name: _images(folder / name) for name in present}
    if not any(files.values()):
        raise DataError(f"{folder} has no images.")
    return files


def _pool(files: dict[str, list[Path]], classes: tuple[str, ...]) -> Pool:
    paths = [path for part in files.values() for path in part]
    labels = [classes.index(name) for name, part in files.items() for _ in part]
    return Pool(np.array(labels, dtype=np.int64), lambda: iter(paths), lambda i: str(paths[i]))
