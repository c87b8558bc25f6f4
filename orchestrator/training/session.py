"""The seam between the training loop and whatever runs it: `Session`, and `LocalSession`, which runs it right here.

Ray's implementation is `orchestrator.worker.RaySession`. Tests and `--num-workers 0` use LocalSession.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.errors import CheckpointError

Event = dict[str, Any]

DDP_OPTIONS: dict[str, Any] = {
    # The loop averages buffers itself, over all ranks (orchestrator.training.buffers); DDP would take rank 0's.
    "forward_sync_buffers": False,
    "gradient_as_bucket_view": True,
}


def ddp_options(has_unused: bool) -> dict[str, Any]:
    """Arguments for DistributedDataParallel. Looking for unused parameters costs a walk over the graph in each step."""
    return {**DDP_OPTIONS, "find_unused_parameters": has_unused}


CHECKPOINT_META = "meta.json"


class Session(Protocol):
    """What the loop may ask of its surroundings. Every method but the properties is called by every rank."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def prepare_model(self, model: nn.Module, *, has_unused: bool) -> nn.Module:
        """Move the model to the device and wrap it in DDP when there is more than one rank.

        `has_unused`: some parameters take no part in the loss, which DDP has to be told.
        """

    def emit(self, event: Event) -> None:
        """Tell the driver something; of all ranks only rank 0 is heard. Never waits."""

    def stop_requested(self) -> bool:
        """Whether this rank has heard of a request to stop. Ranks may hear of it at different steps."""

    def restore(self) -> Path | None:
        """Folder of the checkpoint to go on from, or None to begin."""

    def save_checkpoint(self, name: str, score: float, write: Callable[[Path], None]) -> None:
        """Have rank 0 write a checkpoint folder, complete or absent; the ones with the best score and the last stay.

        Raises CheckpointError when it cannot be stored.
        """


class LocalSession:
    """Runs the loop in this process; with a torch.distributed process group, as one of its ranks.

    `emitted` holds every event in order unless `on_event` takes them.
    """

    def __init__(
        self,
        *,
        device: torch.device | str = "cpu",
        checkpoints: Path | None = None,
        resume_from: Path | None = None,
        keep_checkpoints: int = 1,
        on_event: Callable[[Event], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.device = torch.device(device)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.emitted: list[Event] = []
        self._on_event = on_event or self.emitted.append
        self._checkpoints = checkpoints
        self._resume_from = resume_from
        self._keep = keep_checkpoints
        self._should_stop = should_stop

    def stop_requested(self) -> bool:
        return self._should_stop()

    def prepare_model(self, model: nn.Module, *, has_unused: bool) -> nn.Module:
        model = model.to(self.device)
        if self.world_size == 1:
            return model
        ids = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, **ddp_options(has_unused))

    def emit(self, event: Event) -> None:
        if self.rank == 0:
            self._on_event(event)

    def restore(self) -> Path | None:
        return self._resume_from

    def save_checkpoint(self, name: str, score: float, write: Callable[[Path], None]) -> None:
        if self._checkpoints is None:
            return
        if self.rank == 0:
            store_folder(self._checkpoints / name, write)
            prune_checkpoints(self._checkpoints, keep_best=self._keep)
        if self.world_size > 1:
            dist.barrier()


def store_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder aside, then make it visible under its name in one rename; an older one of that name goes.

    Raises CheckpointError; nothing half-written stays.
    """
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        aside.mkdir(parents=True)
        write(aside)
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {target} cannot be stored: {error}. Free some space.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def checkpoint_metas(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Complete checkpoints in `folder` with their meta.json, the one with most steps last."""
    found = []
    for meta in folder.glob(f"*/{CHECKPOINT_META}") if folder.is_dir() else []:
        if not meta.parent.name.startswith("."):
            found.append((meta.parent, json.loads(meta.read_text())))
    return sorted(found, key=lambda entry: entry[1]["step"])


def prune_checkpoints(folder: Path, keep_best: int) -> None:
    """Delete all checkpoints but the last and the `keep_best` with the highest score."""
    metas = checkpoint_metas(folder)
    best = sorted(metas, key=lambda entry: entry[1]["score"], reverse=True)[:keep_best]
    keep = {path for path, _ in [*best, *metas[-1:]]}
    for path, _ in metas:
        if path not in keep:
            shutil.rmtree(path)


def checkpoint_step(folder: Path) -> int:
    """Optimizer steps behind a checkpoint; -1 if the folder is none."""
    try:
        return int(json.loads((folder / CHECKPOINT_META).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1
