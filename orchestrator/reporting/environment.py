"""What the driver runs on, for env.json. Environment variables are left out: they hold secrets."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from orchestrator.reporting.text import timestamp

_PACKAGES = (
    "orchestrator", "torch", "torchvision", "ray", "numpy", "pyarrow", "pillow", "pydantic", "tyro", "rich",
    "tensorboardX", "safetensors", "psutil",
)  # fmt: skip
_GIT_TIMEOUT_S = 5.0


def driver_environment() -> dict[str, Any]:
    """Versions, machine, command line and git commit of this process, as plain values."""
    return {
        "time": timestamp(),
        "command": shlex.join(sys.orig_argv),
        "working_directory": os.getcwd(),
        "host": platform.node(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_quota": _cpu_quota(),
        "memory_mib": psutil.virtual_memory().total // 1024**2,
        "memory_limit_mib": _memory_limit_mib(),
        "git": git_state(Path.cwd()),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """CPUs that the container may use at a time; None without a limit."""
    quota, _, period = _read(file).partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _memory_limit_mib(file: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    limit = _read(file)
    return int(limit) // 1024**2 if limit.isdecimal() else None


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the repository that `folder` is in, and whether files differ from it; None where there is none."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain")
    return {"commit": commit, "dirty": None if changes is None else changes != ""}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
