"""Looking at every picture of a dataset, deciding on one shape, and decoding all of them into two files."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from orchestrator.config.options import TrainConfig
from orchestrator.data.cache import SplitWriter
from orchestrator.data.decode import BadPictureError, Look, Shape, decode, look_at
from orchestrator.data.source import Picture, Pool, Source
from orchestrator.data.splitting import split_mask
from orchestrator.errors import DataError, EnvironmentMismatchError

_THREADS = 4
_WINDOW = 256
_SHOWN = 10

_In = TypeVar("_In")
_Out = TypeVar("_Out")

OnProgress = Callable[[int, int], None]


@dataclass
class _Survey:
    """What the headers of all pictures say: sizes with an example each, and which pictures are bad."""

    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    examples: dict[tuple[int, int], str] = field(default_factory=dict)
    grey: bool = True
    bad: dict[str, str] = field(default_factory=dict)


def prepare_files(
    source: Source, config: TrainConfig, train_path: Path, validation_path: Path, on_progress: OnProgress | None
) -> dict[str, Any]:
    """Write both splits and return the fields of DatasetInfo that come out of the pictures.

    Raises DataError for pictures that cannot be read (all of them are named) or are of several sizes, and
    EnvironmentMismatchError if there is too little room.
    """
    with _quiet_pillow():
        return _prepare(source, config, train_path, validation_path, on_progress)


@contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Pillow warns, without a file's name, of large images and of tags that it cannot read; neither is an error here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def _prepare(
    source: Source, config: TrainConfig, train_path: Path, validation_path: Path, on_progress: OnProgress | None
) -> dict[str, Any]:
    pools = [source.train, *([source.validation] if source.validation is not None else [])]
    survey = _survey(pools)
    if not survey.sizes:
        raise DataError(f"No image of {source.name} can be read. {_list_bad(survey.bad)}")
    shape, notes = _choose_shape(survey, config.image_size or source.image_size, named=config.image_size is not None)
    _check_room(train_path.parent, sum(map(len, pools)), shape)
    with SplitWriter(train_path, shape) as train, SplitWriter(validation_path, shape) as validation:
        writers = _destinations(source, config, train, validation)
        bad = _decode_all(pools, writers, shape, on_progress)
        if bad and config.on_bad_sample == "stop":
            raise DataError(f"{_list_bad(bad)} Mend or remove them, or leave them out with --on-bad-sample skip.")
        _check_not_empty(source, train, validation)
        notes += _classes_without_images(source, train)
        train.finish()
        validation.finish()
        mean, std = train.statistics()
        content = f"{train.content()}{validation.content()}"
        counts = {"num_train": len(train), "num_validation": len(validation)}
    if bad:
        notes.append(f"left out: {_list_bad(bad)}")
    dims = {"height": shape.height, "width": shape.width, "channels": shape.channels}
    return {
        **dims,
        **counts,
        "content": content,
        "mean": mean,
        "std": std,
        "skipped": len(bad),
        "notes": (*source.notes, *notes),
    }


def _survey(pools: list[Pool]) -> _Survey:
    survey = _Survey()
    for pool in pools:
        for index, look in enumerate(_map(_try_look, pool.pictures())):
            if isinstance(look, str):
                survey.bad[pool.place(index)] = look
                continue
            size = (look.width, look.height)
            survey.sizes[size] += 1
            survey.examples.setdefault(size, pool.place(index))
            survey.grey = survey.grey and look.grey
    return survey


def _try_look(picture: Picture) -> Look | str:
    try:
        return look_at(picture)
    except BadPictureError as error:
        return str(error)


def _choose_shape(survey: _Survey, image_size: int | None, *, named: bool) -> tuple[Shape, list[str]]:
    channels = 1 if survey.grey else 3
    if image_size is not None:
        shape = Shape(image_size, image_size, channels)
        others = sum(n for size, n in survey.sizes.items() if size != (image_size, image_size))
        if not others or not named:
            return shape, []
        kinds = f", which have {len(survey.sizes)} sizes," if len(survey.sizes) > 1 else ""
        size = f"{image_size}x{image_size}"
        return shape, [f"{others:,} of {sum(survey.sizes.values()):,} images{kinds} are scaled and cropped to {size}"]
    if len(survey.sizes) > 1:
        shown = [f"{survey.examples[s]} is {s[0]}x{s[1]}" for s, _ in survey.sizes.most_common(3)]
        side = min(min(size) for size in survey.sizes)
        raise DataError(
            f"The images are of {len(survey.sizes)} sizes: {', '.join(shown)}. Give the one to bring them all to, "
            f"such as --image-size {side}."
        )
    width, height = next(iter(survey.sizes))
    return Shape(height, width, channels), []


def _check_room(folder: Path, samples: int, shape: Shape) -> None:
    # The raw pixels and the Arrow file made of them are there at the same time.
    needed = 2 * samples * shape.height * shape.width * shape.channels
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise EnvironmentMismatchError(
            f"Decoding {samples:,} images of {shape.width}x{shape.height} needs {needed / 2**30:.1f} GiB in "
            f"{folder.parent}, and {free / 2**30:.1f} GiB are free. Name another place with --cache-dir, or use a smaller --image-size."
        )


def _destinations(
    source: Source, config: TrainConfig, train: SplitWriter, validation: SplitWriter
) -> list[Callable[[int], SplitWriter]]:
    """For each pool, which split its sample i goes to."""
    if source.validation is not None:
        return [lambda _: train, lambda _: validation]
    mask = split_mask(len(source.train), config.seed, config.validation_fraction)
    return [lambda i: validation if mask[i] else train]


def _decode_all(
    pools: list[Pool], writers: list[Callable[[int], SplitWriter]], shape: Shape, on_progress: OnProgress | None
) -> dict[str, str]:
    bad: dict[str, str] = {}
    done, total = 0, sum(map(len, pools))
    for pool, writer_of in zip(pools, writers, strict=True):
        for index, image in enumerate(_map(lambda picture: _try_decode(picture, shape), pool.pictures())):
            if isinstance(image, str):
                bad[pool.place(index)] = image
            else:
                writer_of(index).add(image, int(pool.labels[index]))
            done += 1
            if on_progress is not None and (done % _WINDOW == 0 or done == total):
                on_progress(done, total)
    return bad


def _try_decode(picture: Picture, shape: Shape) -> np.ndarray | str:
    try:
        return decode(picture, shape)
    except BadPictureError as error:
        return str(error)


def _map(function: Callable[[_In], _Out], items: Iterator[_In]) -> Iterator[_Out]:
    """Results in the order of the items, on several threads, with a bounded number of items under way."""
    with ThreadPoolExecutor(_THREADS) as threads:
        while window := list(islice(items, _WINDOW)):
            yield from threads.map(function, window)


def _list_bad(bad: dict[str, str]) -> str:
    shown = "; ".join(f"{place} ({reason})" for place, reason in list(bad.items())[:_SHOWN])
    more = f"; and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
    return f"{len(bad):,} image{'s' * (len(bad) != 1)} cannot be read: {shown}{more}."


def _check_not_empty(source: Source, train: SplitWriter, validation: SplitWriter) -> None:
    if len(train) == 0 or len(validation) == 0:
        raise DataError(
            f"{source.name} has {len(train):,} training and {len(validation):,} validation images; both need one at least."
        )


def _classes_without_images(source: Source, train: SplitWriter) -> list[str]:
    """A note when a class of the data lost all of its training images, to the split or to bad files."""
    there = set(source.train.labels.tolist()) - train.classes()
    names = [source.class_names[i] for i in sorted(there)]
    return [f"no training image is left of the class {', '.join(names[:_SHOWN])}"] if names else []
