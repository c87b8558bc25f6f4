"""The checkpoints of a run as the driver sees them, on a path or behind a URI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.fs

from orchestrator.config.paths import is_uri
from orchestrator.errors import CheckpointError
from orchestrator.training.session import CHECKPOINT_META


def open_location(location: str) -> tuple[Any, str]:
    """The file system of a plain path or a URI, and the path on it.

    Raises CheckpointError if the URI names storage that cannot be opened.
    """
    if not is_uri(location):
        return pyarrow.fs.LocalFileSystem(), location
    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(location)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The storage at {location} cannot be opened: {error}.") from error
    return filesystem, path


def read_bytes(location: str) -> bytes | None:
    """The content of a file on a path or behind a URI; None if there is no such file.

    Raises CheckpointError if it is there and cannot be read.
    """
    filesystem, path = open_location(location)
    try:
        with filesystem.open_input_file(path) as file:
            content: bytes = file.read()
            return content
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{location} cannot be read: {error}.") from error


class CheckpointStore:
    """Reads the folder that holds a run's checkpoints. `location` is a plain path or a URI; it may not exist yet."""

    def __init__(self, location: str) -> None:
        self._filesystem, self._root = open_location(location)

    def metas(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and meta.json of each complete checkpoint, the one with most steps last."""
        selector = pyarrow.fs.FileSelector(self._root, allow_not_found=True)
        names = [
            f.base_name for f in self._filesystem.get_file_info(selector) if f.type == pyarrow.fs.FileType.Directory
        ]
        found = [(name, self._meta(name)) for name in names if not name.startswith(".")]
        return sorted(((n, m) for n, m in found if m is not None), key=lambda entry: entry[1]["step"])

    def _meta(self, name: str) -> dict[str, Any] | None:
        try:
            with self._filesystem.open_input_file(f"{self._root}/{name}/{CHECKPOINT_META}") as file:
                meta = json.loads(file.read())
        except (OSError, ValueError):
            return None
        return meta if isinstance(meta, dict) and isinstance(meta.get("step"), int) else None

    def fetch(self, name: str, file: str, target: Path) -> None:
        """Copy one file of a checkpoint to `target`, complete or not at all.

        Raises CheckpointError if it cannot be read or written.
        """
        aside = target.with_name(f".{target.name}.partial")
        try:
            pyarrow.fs.copy_files(
                f"{self._root}/{name}/{file}", str(aside), self._filesystem, pyarrow.fs.LocalFileSystem()
            )
            aside.replace(target)
        except OSError as error:
            raise CheckpointError(f"{file} of the checkpoint {name} cannot be copied to {target}: {error}.") from error
