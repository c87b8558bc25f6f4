"""The folder that one run leaves behind, and the files in it."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from orchestrator.config.paths import absolute, is_uri
from orchestrator.errors import CheckpointError
from orchestrator.reporting.lock import LOCK_FILE, lock_folder
from orchestrator.reporting.names import (
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    METRICS,
    STATUS,
    SUMMARY,
    TENSORBOARD,
    TRACEBACK,
    check_name,
    check_use,
)
from orchestrator.reporting.storage import RemoteFolder, join_uri
from orchestrator.reporting.strict_json import to_json
from orchestrator.reporting.text import timestamp

__all__ = [
    "CHECKPOINTS", "CONFIG", "ENVIRONMENT", "METRICS", "STATUS", "SUMMARY", "TENSORBOARD", "TRACEBACK", "RunFolder",
]  # fmt: skip


class RunFolder:
    """The folder of a run, locked for this process until `close`.

    `path` is where its files are written. `location` is where the run is for the user: the same path, or a URI, to
    which `sync` copies the files. Make one with `create`. Every method that writes raises CheckpointError, naming the
    file, when the disk does not take it.
    """

    def __init__(self, path: Path, run_name: str, lock: IO[str], remote: RemoteFolder | None) -> None:
        self.path = path
        self.run_name = run_name
        self._lock = lock
        self._remote = remote
        self._metrics: IO[str] | None = None
        self._environment: dict[str, Any] = {}
        self._status = _first_status(run_name)

    @classmethod
    def create(cls, output_dir: str, run_name: str, resume: bool) -> Self:
        """Make the folder with a first status.json, or with `resume` open one that is there, and change nothing in it.

        Raises ConfigError if the name cannot be one, is in use without `resume`, or another process writes there, and
        CheckpointError if the folder cannot be made.
        """
        check_name(run_name)
        output_dir = absolute(output_dir)
        remote = RemoteFolder(output_dir, run_name) if is_uri(output_dir) else None
        path = _staging_folder(output_dir, run_name) if remote else Path(output_dir) / run_name
        with _writing(path, "another --output-dir"):
            path.mkdir(parents=True, exist_ok=True)
            lock = lock_folder(path)
        try:
            # Under the lock: of two drivers that found the folder empty, only one is still here.
            names = remote.names() if remote else [p.name for p in path.iterdir()]
            check_use(output_dir, run_name, {*names} - {LOCK_FILE}, resume)
            folder = cls(path, run_name, lock, remote)
            folder._settle(names, resume)
        except BaseException:
            lock.close()
            raise
        return folder

    def _settle(self, names: list[str], resume: bool) -> None:
        if self._remote is not None:
            _clear(self.path)
            if METRICS in names:
                self._remote.download(METRICS, self.path / METRICS)
        if not resume or not {*names} - {LOCK_FILE}:
            self.update_status()
            self.sync()

    @property
    def location(self) -> str:
        return self._remote.uri if self._remote else str(self.path)

    @property
    def checkpoints(self) -> str:
        """Path or URI of the folder of checkpoints, which Ray Train makes and manages."""
        return join_uri(self.location, CHECKPOINTS) if self._remote else str(self.path / CHECKPOINTS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the folder back to others. Does not raise."""
        self._close_metrics()
        self._lock.close()

    def write_config(self, yaml_text: str) -> None:
        self._replace(CONFIG, yaml_text)

    def write_env(self, environment: Mapping[str, Any]) -> None:
        """Add to env.json; a key that is there already gets the new value."""
        self._environment |= environment
        self._replace(ENVIRONMENT, to_json(self._environment, indent=2) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self._replace(SUMMARY, to_json(summary, indent=2) + "\n")

    def write_traceback(self, text: str) -> None:
        """Keep the whole traceback of a failure beside the sentence that is shown, unless the disk is full."""
        with suppress(CheckpointError):
            self._replace(TRACEBACK, text)

    def clear_failure(self) -> None:
        """Forget the traceback and the summary of an earlier launch that this one goes on from."""
        for name in (TRACEBACK, SUMMARY):
            (self.path / name).unlink(missing_ok=True)

    def update_status(self, **fields: Any) -> None:
        """Change fields of status.json. A reader sees the old file or the new one, never a part of either.

        Raises KeyError for a field that status.json does not have.
        """
        unknown = fields.keys() - self._status.keys()
        if unknown:
            raise KeyError(f"status.json has no field {', '.join(sorted(unknown))}")
        self._status |= fields
        self._status["updated_at"] = timestamp()
        self._replace(STATUS, to_json(self._status, indent=2) + "\n")

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl and flush it. NaN and Infinity become null."""
        with _writing(self.path / METRICS, "free space on the disk"):
            if self._metrics is None:
                self._metrics = open(self.path / METRICS, "a", encoding="utf-8")  # noqa: SIM115  (open for the run)
            self._metrics.write(to_json(line) + "\n")
            self._metrics.flush()

    def truncate_metrics(self, step: int) -> None:
        """Drop the lines after optimizer step `step`, which a resumed run writes again, and a line cut short."""
        self._close_metrics()
        if not (self.path / METRICS).exists():
            return
        aside = self.path / f".{METRICS}.partial"
        with _writing(self.path / METRICS, "free space on the disk"):
            with open(aside, "w", encoding="utf-8") as file:
                file.writelines(to_json(line) + "\n" for line in self.metrics() if line["step"] <= step)
            aside.replace(self.path / METRICS)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl, one at a time; one that a crash cut short is left out."""
        if not (self.path / METRICS).exists():
            return
        with open(self.path / METRICS, encoding="utf-8", errors="replace") as file:
            for text in file:
                line = _parse(text)
                if line is not None:
                    yield line

    def sync(self) -> None:
        """Copy what has changed to the URI of the run, but for the checkpoints; nothing to do for a plain folder."""
        if self._remote is not None:
            self._remote.upload(self.path, [str(p.relative_to(self.path)) for p in _small_files(self.path)])

    def _replace(self, name: str, text: str) -> None:
        aside = self.path / f".{name}.partial"
        with _writing(self.path / name, "free space on the disk"):
            aside.write_text(text, encoding="utf-8")
            aside.replace(self.path / name)

    def _close_metrics(self) -> None:
        if self._metrics is not None:
            # A line that the disk did not take has been reported, and is written once more by close.
            with suppress(OSError):
                self._metrics.close()
            self._metrics = None


def _first_status(run_name: str) -> dict[str, Any]:
    now = timestamp()
    return {
        "state": "starting",
        "run_name": run_name,
        "epoch": 0,
        "epochs": None,
        "step": 0,
        "total_steps": None,
        "progress": 0.0,
        "eta_s": None,
        "started_at": now,
        "updated_at": now,
        "pid": os.getpid(),
        "host": platform.node(),
        "exit_code": None,
        "error": None,
    }


@contextmanager
def _writing(path: Path, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{path} cannot be written: {reason}. Give {advice}.") from error


def _staging_folder(output_dir: str, run_name: str) -> Path:
    """Where the files of a run behind a URI are written first; the same one each time."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "orchestrator" / "runs" / blake2b(output_dir.encode(), digest_size=8).hexdigest() / run_name


def _clear(folder: Path) -> None:
    """Empty a staging folder: what is behind the URI counts."""
    for entry in folder.iterdir():
        if entry.name != LOCK_FILE:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _small_files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if file.is_file() and inside.parts[0] != CHECKPOINTS and not inside.name.startswith("."):
            yield file


def _parse(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None
