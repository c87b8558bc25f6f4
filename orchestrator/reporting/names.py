"""The names of a run and of the files in its folder. What is refused is a ConfigError."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.config.paths import is_uri
from orchestrator.errors import ConfigError
from orchestrator.reporting.storage import join_uri

CONFIG = "config.yaml"
ENVIRONMENT = "env.json"
STATUS = "status.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
TRACEBACK = "traceback.txt"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
WEIGHTS = "model.safetensors"
BEST_WEIGHTS = "best.safetensors"

_OF_A_RUN = frozenset({CONFIG, STATUS, METRICS, CHECKPOINTS})
_LONGEST_NAME = 200


def check_name(name: str) -> None:
    """Refuse what cannot be the name of one folder."""
    if "/" in name:
        raise ConfigError(
            f"--run-name {name!r} is the name of one folder and cannot hold '/'. Give the folders above it as --output-dir."
        )
    if name in ("", ".", "..") or not name.isprintable() or len(os.fsencode(name)) > _LONGEST_NAME:
        raise ConfigError(
            f"--run-name {name!r} cannot be the name of a folder: use 1 to {_LONGEST_NAME} bytes of printable characters."
        )


def check_use(output_dir: str, run_name: str, names: set[str], resume: bool) -> None:
    """Refuse a folder with these `names` in it, unless it is empty, or is a run and is to be resumed.

    A run without a line of metrics failed or was stopped before its first step: its name may be used again.
    """
    if not names:
        return
    place = join_uri(output_dir, run_name) if is_uri(output_dir) else str(Path(output_dir) / run_name)
    if not names & _OF_A_RUN:
        raise ConfigError(f"{place} holds something else than a run. Give another --run-name or --output-dir.")
    if not resume and METRICS in names:
        raise ConfigError(
            f"There is a run of the name {run_name} already, in {place}. Add --resume auto to go on with it, "
            f"or give another name to begin a new one, such as --run-name {_free_name(output_dir, run_name)}."
        )


def check_name_is_free(output_dir: str, run_name: str, resume: bool) -> None:
    """Refuse early what `RunFolder.create` would refuse after the data was prepared; it alone decides for good."""
    check_name(run_name)
    folder = Path(output_dir) / run_name
    if not is_uri(output_dir) and folder.is_dir():
        check_use(output_dir, run_name, {p.name for p in folder.iterdir() if not p.name.startswith(".")}, resume)


def _free_name(output_dir: str, run_name: str) -> str:
    number = 2
    while not is_uri(output_dir) and (Path(output_dir) / f"{run_name}-{number}").exists():
        number += 1
    return f"{run_name}-{number}"
