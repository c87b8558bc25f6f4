"""Training metrics over all samples of all ranks, kept on the device and read once per log interval.

Losses are kept as one float64 per micro-batch and summed with `math.fsum`, which rounds once and so does not depend on
the order: the reported loss is the same number for every number of workers. Counts are integers, never in a
low-precision tensor (bf16 stops counting at 256).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from orchestrator.errors import NonFiniteError


@dataclass(frozen=True)
class StepFacts:
    """What the host knows of a step without asking the device. `samples` are those of all ranks."""

    epoch: int
    step: int
    samples: int
    lr: float
    scale: float
    applied: bool


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step as read back from the device. `loss` is the mean over its samples."""

    facts: StepFacts
    loss: float
    correct: int
    grad_norm: float


class StepMetrics:
    """Collects steps; `read` sums them over ranks and brings them to the host: one synchronisation for all of them."""

    def __init__(self, micro_batches_per_step: int, device: torch.device, world_size: int) -> None:
        self._slots = micro_batches_per_step
        self._device = device
        self._world_size = world_size
        self._losses: list[torch.Tensor] = []
        self._correct: list[torch.Tensor] = []
        self._grad_norms: list[torch.Tensor] = []
        self._facts: list[StepFacts] = []

    def begin_step(self) -> None:
        self._losses.append(torch.zeros(self._slots, dtype=torch.float64, device=self._device))
        self._correct.append(torch.zeros((), dtype=torch.int64, device=self._device))

    def add_micro_batch(self, index: int, loss_sum: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> None:
        """Note one micro-batch: its summed loss (a scalar), logits (n, classes) and targets (n,) int64."""
        self._losses[-1][index] = loss_sum.detach()
        self._correct[-1] += (logits.detach().argmax(1) == targets).sum()

    def end_step(self, facts: StepFacts, grad_norm: torch.Tensor) -> None:
        """Close the step; `grad_norm` is a scalar on the device, the same on every rank."""
        self._facts.append(facts)
        self._grad_norms.append(grad_norm)

    def __len__(self) -> int:
        return len(self._facts)

    def read(self) -> list[StepRecord]:
        """The steps since the last read. A collective.

        Raises NonFiniteError, on every rank alike, at the first step whose loss or applied gradient is not finite.
        """
        if not self._facts:
            return []
        losses, correct = torch.stack(self._losses), torch.stack(self._correct)
        if self._world_size > 1:
            dist.all_reduce(losses)
            dist.all_reduce(correct)
        norms = torch.stack(self._grad_norms).tolist()
        records = [
            StepRecord(facts, loss=exact_sum(slots) / facts.samples, correct=int(count), grad_norm=float(norm))
            for facts, slots, count, norm in zip(self._facts, losses.tolist(), correct.tolist(), norms, strict=True)
        ]
        self._losses, self._correct, self._grad_norms, self._facts = [], [], [], []
        for record in records:
            _check_finite(record)
        return records


def exact_sum(values: Iterable[float]) -> float:
    """The correctly rounded sum, whatever the order; NaN if any value is not finite."""
    numbers = list(values)
    # fsum raises on a mix of infinities of both signs, and on nothing else that a loss can be.
    return math.fsum(numbers) if all(map(math.isfinite, numbers)) else math.nan


def _check_finite(record: StepRecord) -> None:
    facts = record.facts
    where = f"in epoch {facts.epoch}, step {facts.step} (learning rate {facts.lr:.3g})"
    advice = "Lower --lr, set --max-grad-norm 1, or try --precision fp32."
    if not math.isfinite(record.loss):
        raise NonFiniteError(f"The training loss is {record.loss} {where}. {advice}")
    if facts.applied and not math.isfinite(record.grad_norm):
        raise NonFiniteError(f"The gradient norm is {record.grad_norm} {where}. {advice}")
