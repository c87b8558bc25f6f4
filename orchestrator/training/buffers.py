"""Buffers that the forward pass changes (batch norm statistics), so that every rank ends a step with the same ones.

Each micro-batch starts from the values at the start of the step, as if it were a DDP rank of its own; the results are
averaged over all micro-batches of the step. Plain DDP takes rank 0's buffers and throws away what the others saw
(pytorch/pytorch#13711). Integer buffers, such as the number of batches tracked, advance once per step.

Across ranks each micro-batch has a row of its own, zero on all ranks but one: adding zeros is exact, and the rows are
then added in their order, so the average has the same bits for every number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


class StepBuffers:
    """The buffers of `model` through one optimizer step after another."""

    def __init__(self, model: nn.Module, world_size: int) -> None:
        buffers = list(model.buffers())
        self._floats = [b for b in buffers if b.is_floating_point()]
        self._integers = [b for b in buffers if not b.is_floating_point()]
        self._world_size = world_size
        self._start_floats: list[torch.Tensor] = []
        self._start_integers: list[torch.Tensor] = []
        self._rows = torch.empty(0)
        self._advanced = torch.empty(0)

    @torch.no_grad()
    def begin_step(self, micro_batch_count: int) -> None:
        self._start_floats = [b.clone() for b in self._floats]
        self._start_integers = [b.clone() for b in self._integers]
        size = sum(b.numel() for b in self._floats)
        device = self._floats[0].device if self._floats else None
        self._rows = torch.zeros(micro_batch_count, size, dtype=torch.float64, device=device)
        self._advanced = torch.zeros_like(_flatten(self._integers, torch.int64))

    @torch.no_grad()
    def before_micro_batch(self) -> None:
        _restore(self._floats, self._start_floats)
        _restore(self._integers, self._start_integers)

    @torch.no_grad()
    def after_micro_batch(self, index: int) -> None:
        """Take what the forward pass of micro-batch `index` left; the integers are those of micro-batch 0."""
        if self._floats:
            # Added to zero, so that -0.0 becomes 0.0 here as it does in a reduction.
            self._rows[index] += _flatten(self._floats, torch.float64)
        if self._integers and index == 0:
            self._advanced = _flatten(self._integers, torch.int64)

    @torch.no_grad()
    def end_step(self) -> None:
        """Set every rank's buffers to the mean over the step's micro-batches. A collective."""
        if self._floats:
            self._reduce(self._rows)
            total = self._rows[0]
            for row in self._rows[1:]:
                total = total + row
            _scatter(total / len(self._rows), self._floats)
        if self._integers:
            self._reduce(self._advanced)
            _scatter(self._advanced, self._integers)

    def _reduce(self, flat: torch.Tensor) -> None:
        if self._world_size > 1:
            dist.all_reduce(flat)


def _flatten(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([t.reshape(-1).to(dtype) for t in tensors]) if tensors else torch.empty(0, dtype=dtype)


def _scatter(flat: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    for part, target in zip(torch.split(flat, [t.numel() for t in targets]), targets, strict=True):
        target.copy_(part.view_as(target))


def _restore(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
