"""One process of a node at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock on `file` (made if need be) for the block; it falls with the process, however that ends.

    A file that is there may be locked without the right to write to it. Raises OSError if the file cannot be made.
    """
    with open(file, "a" if os.access(file, os.W_OK) or not file.exists() else "r") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
