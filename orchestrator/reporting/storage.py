"""A folder behind a URI, such as s3://bucket/runs/NAME, through `pyarrow.fs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orchestrator.errors import CheckpointError, ConfigError

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def join_uri(uri: str, name: str) -> str:
    """`uri`/`name`, before the options that a URI may end with (`?endpoint_override=...`)."""
    place, mark, options = uri.partition("?")
    return f"{place.rstrip('/')}/{name}{mark}{options}"


class RemoteFolder:
    """The small files of a run behind a URI. It may not exist yet.

    Raises ConfigError for a URI that cannot be opened; later, CheckpointError when its storage fails.
    """

    def __init__(self, output_dir: str, run_name: str) -> None:
        import pyarrow.fs

        if not _SAFE_NAME.fullmatch(run_name):
            raise ConfigError(
                f"--run-name {run_name!r} cannot be part of the URI {output_dir}: "
                "use letters, digits, '.', '_' and '-', beginning with a letter or digit."
            )
        self.uri = join_uri(output_dir, run_name)
        self._uploaded: dict[str, tuple[int, int]] = {}
        try:
            self._filesystem, self._root = pyarrow.fs.FileSystem.from_uri(self.uri)
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(
                f"--output-dir {output_dir} cannot be opened: {error}. Give a folder, or a URI such as s3://BUCKET/runs."
            ) from error

    def names(self) -> list[str]:
        """What is directly in the folder; nothing if there is no such folder."""
        import pyarrow.fs

        selector = pyarrow.fs.FileSelector(self._root, allow_not_found=True)
        try:
            return sorted(file.base_name for file in self._filesystem.get_file_info(selector))
        except OSError as error:
            raise CheckpointError(f"{self.uri} cannot be read: {error}.") from error

    def download(self, name: str, target: Path) -> None:
        self._copy(name, target, up=False)

    def upload(self, folder: Path, names: list[str]) -> None:
        """Copy files, named relative to `folder`, that have changed since they were last uploaded."""
        for name in names:
            stat = (folder / name).stat()
            seen = (stat.st_mtime_ns, stat.st_size)
            if self._uploaded.get(name) != seen:
                self._copy(name, folder / name, up=True)
                self._uploaded[name] = seen

    def _copy(self, name: str, local: Path, *, up: bool) -> None:
        import pyarrow.fs

        here: Any = pyarrow.fs.LocalFileSystem()
        there = f"{self._root}/{name}"
        try:
            if up:
                self._filesystem.create_dir(there.rpartition("/")[0], recursive=True)
                pyarrow.fs.copy_files(str(local), there, here, self._filesystem)
            else:
                pyarrow.fs.copy_files(there, str(local), self._filesystem, here)
        except OSError as error:
            verb = "written" if up else "read"
            raise CheckpointError(f"{name} of the run at {self.uri} cannot be {verb}: {error}.") from error
