"""How the gradients of a step's micro-batches become one gradient, the same on every rank.

The one file that knows how: each micro-batch's loss is already divided by the samples of the whole step, so the
gradient of the step is the plain sum over all micro-batches of all ranks, however many each rank has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.training.order import MicroBatch, StepBatch


class GradientReduction:
    """Sums gradients over ranks in DDP's own all-reduce, which overlaps with the last backward pass.

    `model` is what the session prepared: bare with one rank, else wrapped in DDP.
    """

    def __init__(self, model: nn.Module, world_size: int) -> None:
        self._world_size = world_size
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if self._ddp is not None:
            # DDP inspects a hook's annotations and knows none but its own; a lambda has none.
            self._ddp.register_comm_hook(None, lambda _state, bucket: _sum_bucket(bucket.buffer()))

    def run(self, step: StepBatch, forward_backward: Callable[[MicroBatch], None]) -> None:
        """Run every micro-batch of this rank and leave the summed gradient of the step in `.grad`. A collective."""
        # In a short last step some ranks may have nothing to do. DDP reduces inside a backward pass, which they do not
        # run, so in such a step every rank reduces afterwards instead.
        overlap = step.micro_batch_count >= self._world_size
        for position, micro_batch in enumerate(step.micro_batches, start=1):
            synchronise = overlap and position == len(step.micro_batches)
            with nullcontext() if synchronise or self._ddp is None else self._ddp.no_sync():
                forward_backward(micro_batch)
        if self._ddp is not None and not overlap:
            _sum_after_backward(self._parameters)


def _sum_bucket(gradients: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(gradients, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _sum_after_backward(parameters: Sequence[torch.nn.Parameter]) -> None:
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter).clone()
