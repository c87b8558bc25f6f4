"""Evaluation over each sample exactly once, with the same numbers for every number of workers.

The batches are cut from the whole split by `evaluation_batch_size` alone, and whole batches are dealt to the ranks:
each batch meets the same kernels in the same shape whoever computes it. No sample is padded or repeated, which is
what makes distributed samplers report an accuracy over more samples than there are (pytorch/pytorch#25162).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from orchestrator.config.batch import block, ceil_div
from orchestrator.training.images import ImageBatches
from orchestrator.training.metrics import exact_sum
from orchestrator.training.precision import Precision


@dataclass(frozen=True)
class Evaluation:
    """`confusion[t][p]` counts samples of class t that were taken for p; the loss is the mean cross entropy."""

    loss: float
    correct: int
    samples: int
    confusion: torch.Tensor

    @property
    def accuracy(self) -> float:
        return self.correct / self.samples


@dataclass(frozen=True)
class Evaluator:
    """What an evaluation needs besides the weights. `ids` (int64) are the samples to evaluate on."""

    batches: ImageBatches
    ids: torch.Tensor
    batch_size: int
    num_classes: int
    precision: Precision
    device: torch.device
    rank: int
    world_size: int

    @torch.inference_mode()
    def evaluate(self, model: nn.Module) -> Evaluation:
        """Evaluate the bare model in eval mode; its mode is as before afterwards. A collective, in no autograd graph."""
        training = {module: module.training for module in model.modules()}
        model.eval()
        try:
            losses, confusion = self._run(model)
        finally:
            for module, mode in training.items():
                module.training = mode
        if self.world_size > 1:
            dist.all_reduce(losses)
            dist.all_reduce(confusion)
        confusion = confusion.cpu()
        return Evaluation(
            loss=exact_sum(losses.tolist()) / len(self.ids),
            correct=int(confusion.diagonal().sum()),
            samples=int(confusion.sum()),
            confusion=confusion,
        )

    def _run(self, model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        count = ceil_div(len(self.ids), self.batch_size)
        losses = torch.zeros(count, dtype=torch.float64, device=self.device)
        confusion = torch.zeros(self.num_classes * self.num_classes, dtype=torch.int64, device=self.device)
        for index in block(count, self.world_size, self.rank):
            ids = self.ids[index * self.batch_size : (index + 1) * self.batch_size]
            images, targets = self.batches.fetch(ids)
            with self.precision.autocast():
                logits = model(images)
            losses[index] = functional.cross_entropy(logits.float(), targets, reduction="sum")
            pairs = targets * self.num_classes + logits.argmax(1)
            confusion += torch.bincount(pairs, minlength=self.num_classes**2)
        return losses, confusion.view(self.num_classes, self.num_classes)
