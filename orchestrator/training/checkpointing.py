"""A checkpoint: a folder from which training goes on as if it had never stopped.

    model.safetensors   weights under plain names
    trainer.pt          optimizer and loss scaler; only tensors and plain values, loaded with weights_only=True
    meta.json           where the run was, its contract, its class names

Nothing in it belongs to a rank, and there is no random state in it (see orchestrator.training.order), so it can be
read by any number of workers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from orchestrator.config.contract import differences
from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.training.precision import Precision
from orchestrator.training.session import CHECKPOINT_META
from orchestrator.training.weights import weights_of

WEIGHTS = "model.safetensors"
TRAINER = "trainer.pt"
FORMAT = 1


@dataclass
class TrainState:
    """How far a run is. Counts are of the whole run, over all its interruptions.

    `epoch` counts finished epochs and `step_in_epoch` the steps of the one under way. `updates` are the steps that
    changed the weights: an fp16 step that the loss scaler skipped is not one. The `epoch_` sums are of the epoch
    under way.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    updates: int = 0
    samples_seen: int = 0
    epoch_loss: float = 0.0
    epoch_correct: int = 0
    epoch_samples: int = 0
    train_loss: float | None = None
    train_accuracy: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    best_accuracy: float | None = None
    best_epoch: int | None = None
    epochs_since_best: int = 0

    def score(self) -> float:
        """Rank among checkpoints: the accuracy, the earlier of two equal ones first; -1 when not just evaluated."""
        if self.step_in_epoch or self.validation_accuracy is None:
            return -1.0
        return self.validation_accuracy - 1e-12 * self.epoch


@dataclass(frozen=True)
class Stateful:
    """The objects whose state a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision


def write_checkpoint(
    folder: Path, parts: Stateful, state: TrainState, contract: dict[str, Any], class_names: tuple[str, ...]
) -> None:
    """Fill an empty folder. meta.json comes last: a folder without it is not a checkpoint.

    Raises CheckpointError if the storage does not take it.
    """
    meta = {
        "format": FORMAT,
        "step": state.step,
        "score": state.score(),
        "state": asdict(state),
        "contract": contract,
        "class_names": list(class_names),
    }
    trainer = {"optimizer": parts.optimizer.state_dict(), "precision": parts.precision.state_dict()}
    try:
        save_file(weights_of(parts.model), folder / WEIGHTS)
        torch.save(trainer, folder / TRAINER)
        (folder / CHECKPOINT_META).write_text(json.dumps(meta, indent=1))
    except (OSError, SafetensorError, RuntimeError) as error:
        # A full disk is an OSError to Python, a SafetensorError to safetensors and a RuntimeError to torch.save.
        raise CheckpointError(
            f"The checkpoint after step {state.step} cannot be written to {folder}: {error}. Free some space; the "
            "checkpoints before it are whole."
        ) from error


def read_checkpoint(
    folder: Path, parts: Stateful, contract: dict[str, Any], class_names: tuple[str, ...]
) -> TrainState:
    """Load a checkpoint into `parts`, all of it or nothing that matters: the caller ends on an error.

    Raises CheckpointError if it is damaged or not ours, ConfigError if it belongs to another training.
    """
    meta = _read_meta(folder)
    changed = differences(meta["contract"], contract)
    if changed:
        raise ConfigError(f"The checkpoint {folder} is of another training:\n  " + "\n  ".join(changed))
    if tuple(meta["class_names"]) != class_names:
        raise ConfigError(
            f"The checkpoint {folder} was trained on the classes {', '.join(meta['class_names'])}; "
            f"the dataset now has {', '.join(class_names)}."
        )
    try:
        parts.model.load_state_dict(load_file(folder / WEIGHTS))
        trainer = torch.load(folder / TRAINER, map_location="cpu", weights_only=True)
        parts.optimizer.load_state_dict(trainer["optimizer"])
        parts.precision.load_state_dict(trainer["precision"])
        return TrainState(**meta["state"])
    except Exception as error:
        raise CheckpointError(
            f"The checkpoint {folder} cannot be loaded: {type(error).__name__}: {error}. "
            "Delete it to go on from the one before, or name another one with --resume."
        ) from error


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / CHECKPOINT_META
    try:
        meta = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is not a checkpoint: {path.name} cannot be read ({error}).") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise CheckpointError(f"{folder} is not a checkpoint of this version: {path.name} has no format {FORMAT}.")
    return meta
