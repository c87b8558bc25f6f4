"""What every kind of dataset comes down to: pools of pictures with labels, not decoded yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Missing:
    """In place of a picture that a sample does not have; `reason` is for the user."""

    reason: str


Picture = Path | bytes | np.ndarray | Missing
"""A picture to decode: a file, encoded bytes, or uint8 pixels of shape (H, W), (H, W, 1) or (H, W, 3)."""


@dataclass(frozen=True)
class Pool:
    """Samples in a fixed order. `labels` is int64 of shape (n,), checked; `place(i)` names sample i for the user."""

    labels: np.ndarray
    pictures: Callable[[], Iterator[Picture]]
    place: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Source:
    """A dataset that was found and whose labels are right.

    Without `validation` the training pool is split by the seed. `identity` is plain values that change when the files
    do. `image_size` is what images are scaled to when the user names no size; None keeps them. `notes` are sentences for
    the user about what was found and is not used.
    """

    name: str
    class_names: tuple[str, ...]
    train: Pool
    validation: Pool | None
    identity: Any
    mirror_keeps_class: bool = True
    image_size: int | None = None
    notes: tuple[str, ...] = ()


def file_identity(files: list[Path], root: Path) -> list[tuple[str, int, int]]:
    """Name below `root`, size and modification time of each file: enough to see that one was replaced."""
    # A broken link is a broken image and shall be named with the others, so it is not an error here.
    stats = [(file, file.stat() if file.exists() else file.lstat()) for file in files]
    return [(str(file.relative_to(root)), stat.st_size, stat.st_mtime_ns) for file, stat in stats]
