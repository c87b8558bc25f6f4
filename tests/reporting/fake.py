"""A run made up of events, and a clock that is turned by hand."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.reporting.closing import Ending


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool = False, width: int = 80) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=width, color_system=None, highlight=False), text


def start_event(**changes: Any) -> dict[str, Any]:
    return {
        "event": "start",
        "epochs": 2,
        "total_steps": 8,
        "steps_per_epoch": 4,
        "num_train": 1438,
        "num_validation": 359,
        "num_classes": 10,
        "model": "cnn",
        "parameters": 102634,
        "trainable_parameters": 102634,
        "precision": "fp32",
        "precision_reason": "no [bf16] kernels",
        "workers": [{"rank": rank, "host": f"node-{rank}", "device": "cpu"} for rank in range(2)],
        "plan": "global batch 64 = 2 micro-batches of 32 (2 workers x 1 accumulation step)",
        "resumed_from_step": None,
        **changes,
    }


def step_event(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "event": "step",
        "epoch": (step - 1) // 4 + 1,
        "step": step,
        "total_steps": 8,
        "train/loss": 1 / step,
        "train/accuracy": 0.871,
        "train/lr": 1e-3,
        "train/grad_norm": 1.25,
        "perf/images_per_second": 12345.6,
        "samples_seen": 64 * step,
        **changes,
    }


def epoch_event(epoch: int, accuracy: float = 0.9, **changes: Any) -> dict[str, Any]:
    return {
        "event": "epoch",
        "epoch": epoch,
        "step": 4 * epoch,
        "train/loss": 0.5 / epoch,
        "train/accuracy": 0.88,
        "validation/loss": 0.6 / epoch,
        "validation/accuracy": accuracy,
        "validation/samples": 359,
        "perf/images_per_second": 11111.0,
        "best": True,
        **changes,
    }


def events(last_step: int = 8) -> Iterator[dict[str, Any]]:
    yield start_event()
    for step in range(1, last_step + 1):
        yield {"event": "heartbeat", "epoch": (step - 1) // 4 + 1, "step": step}
        yield step_event(step)
        if step % 4 == 0:
            yield epoch_event(step // 4, accuracy=0.8 + step / 100)
            yield {"event": "checkpoint", "epoch": step // 4, "step": step, "path": f"epoch_{step // 4:04d}"}


def ending(path: Path, **changes: Any) -> Ending:
    fields: dict[str, Any] = {
        "state": "finished",
        "exit_code": 0,
        "run_name": path.name,
        "location": str(path),
        "path": path,
        "summary": {
            "epochs": 2,
            "steps": 8,
            "total_s": 3671.0,
            "time_to_first_step_s": 4.13,
            "best_validation_accuracy": 0.97214,
            "best_epoch": 2,
            "validation_accuracy": 0.96,
            "validation_loss": 0.11,
            "train_loss": 0.07,
            "images_per_second": 12345.6,
            "num_workers": 2,
            "precision": "bf16",
            "peak_memory_mib": 512.3,
        },
        **changes,
    }
    return Ending(**fields)
