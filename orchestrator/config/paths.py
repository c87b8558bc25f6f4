"""Paths in a configuration, made absolute where the command was typed: a worker's current directory is another one."""

from __future__ import annotations

import os

from orchestrator.config.options import DATASET_NAMES, TrainConfig

_PATH_FIELDS = ("data_dir", "cache_dir", "pretrained", "output_dir")


def is_uri(path: str) -> bool:
    """Whether `path` names storage by scheme, such as s3://bucket/runs. Everything else is a plain path, never parsed."""
    return "://" in path


def absolute(path: str) -> str:
    """`~` expanded and made absolute; a URI stays as it is. Symbolic links are kept as the user wrote them."""
    return path if is_uri(path) else os.path.abspath(os.path.expanduser(path))


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The config as every process on every node understands it."""
    changed = {name: absolute(value) for name in _PATH_FIELDS if (value := getattr(config, name)) is not None}
    # os.path answers False where pathlib raises: a user that there is not, a name longer than a file's may be.
    if config.dataset not in DATASET_NAMES and os.path.exists(os.path.expanduser(config.dataset)):
        changed["dataset"] = absolute(config.dataset)
    if config.resume not in ("never", "auto"):
        changed["resume"] = absolute(config.resume)
    return config.model_copy(update=changed)
