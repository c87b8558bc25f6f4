"""A folder of class folders: root/train/CLASS/image.jpg and root/val/CLASS/..., or root/CLASS/... to be split."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from orchestrator.data.source import Pool, Source, file_identity
from orchestrator.errors import DataError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_TRAIN = ("train", "training")
_VALIDATION = ("val", "valid", "validation", "test")


def is_class_folder(root: Path) -> bool:
    """Whether some folder in `root`, or in a split folder of it, holds images."""
    return root.is_dir() and any(
        next(_images(c), None) is not None for part in (root, *_folders(root)) for c in _folders(part)
    )


def folder_source(root: Path) -> Source:
    """The dataset in a folder of class folders. The classes are those of the training split, sorted by name.

    Raises DataError for a class without images, one that only the validation split has, or splits that are ambiguous.
    """
    train, validation, notes = _splits(root)
    classes = tuple(c.name for c in _folders(train))
    files = _files_by_class(train, classes)
    if len(classes) < 2:
        raise DataError(
            f"{train} has a single class folder, {classes[0]}; at least two are needed to learn from."
            if classes
            else f"{train} has no class folders: its images belong into {train.name}/CLASS/image.jpg."
        )
    train_pool, listed = _pool(files, classes), [f for part in files.values() for f in part]
    validation_pool = None
    if validation is not None:
        validation_files = _validation_files(validation, classes, train)
        validation_pool = _pool(validation_files, classes)
        listed += [f for part in validation_files.values() for f in part]
    return Source(
        name=root.name,
        class_names=classes,
        train=train_pool,
        validation=validation_pool,
        identity=["folder", str(root), file_identity(listed, root)],
        notes=notes,
    )


def _splits(root: Path) -> tuple[Path, Path | None, tuple[str, ...]]:
    """The folder of the training classes, that of the validation classes, and a note about folders that are neither."""
    folders = _folders(root)
    splits = [f for f in folders if f.name.lower() in _TRAIN + _VALIDATION]
    # A class of vehicles may be called "train": a split folder has class folders in it.
    if len(splits) < len(folders) and not any(_folders(f) for f in splits):
        return root, None, ()
    train, validation = _split_folder(root, _TRAIN), _split_folder(root, _VALIDATION)
    if train is None:
        if validation is not None:
            raise DataError(f"{root} has {validation.name}/ but no train/.")
        return root, None, ()
    unused = [f.name + "/" for f in folders if f not in (train, validation)]
    taken = f"{train.name}/ and {validation.name}/ are" if validation else f"{train.name}/ is"
    note = f"of {root} {taken} used, and not {', '.join(unused)}"
    return train, validation, (note,) if unused else ()


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


def _images(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Image files at any depth; links are followed, hidden files and other endings are no images.

    Raises DataError for a link to a folder that it lies in: its images would be counted again and again.
    """
    real = os.path.realpath(folder)
    if real in above:
        raise DataError(f"{folder} is a link to a folder that it lies in, {real}. Remove the link.")
    with os.scandir(folder) as listing:
        entries = list(listing)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _images(Path(entry.path), (*above, real))
        elif os.path.splitext(entry.name)[1].lower() in EXTENSIONS:
            yield Path(entry.path)


def _files_by_class(base: Path, classes: tuple[str, ...]) -> dict[str, list[Path]]:
    files = {name: sorted(_images(base / name)) for name in classes}
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
    files = {name: sorted(_images(folder / name)) for name in present}
    if not any(files.values()):
        raise DataError(
            f"{folder} has no images in class folders. Put them into {folder.name}/CLASS/image.jpg, or move the folder "
            f"away to validate on a part of {base.name}/."
        )
    return files


def _pool(files: dict[str, list[Path]], classes: tuple[str, ...]) -> Pool:
    paths = [path for part in files.values() for path in part]
    labels = [classes.index(name) for name, part in files.items() for _ in part]
    return Pool(np.array(labels, dtype=np.int64), lambda: iter(paths), lambda i: str(paths[i]))
