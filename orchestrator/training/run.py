"""Everything that the loop works with on one rank, built once from the config."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from orchestrator.config.batch import BatchPlan
from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import DatasetInfo
from orchestrator.models.build import build_model, has_unused_parameters
from orchestrator.models.pretrained import load_pretrained
from orchestrator.training.augmentation import Augmentation
from orchestrator.training.buffers import StepBuffers
from orchestrator.training.checkpointing import Stateful
from orchestrator.training.control import ControlGroup
from orchestrator.training.evaluation import Evaluator
from orchestrator.training.images import ImageBatches, build_augmentation
from orchestrator.training.metrics import StepMetrics
from orchestrator.training.optim import build_optimizer
from orchestrator.training.order import key, subset
from orchestrator.training.precision import Precision, build_precision, resolve_precision
from orchestrator.training.reduction import GradientReduction, build_reduction
from orchestrator.training.reproducibility import configure_torch, kernel_environment
from orchestrator.training.session import Session


@dataclass
class TrainingClock:
    """Time spent in training steps alone: evaluation and checkpoints are not in the images per second."""

    samples: int = 0
    seconds: float = 0.0
    _epoch_samples: int = 0
    _epoch_seconds: float = 0.0
    _since: float = field(default_factory=time.perf_counter)

    def resume(self) -> None:
        self._since = time.perf_counter()
        self._epoch_samples, self._epoch_seconds = 0, 0.0

    def images_per_second(self, samples: int) -> float:
        """Rate since the last call or `resume`, for the `samples` trained on in between."""
        now = time.perf_counter()
        elapsed, self._since = max(now - self._since, 1e-9), now
        self._epoch_samples += samples
        self._epoch_seconds += elapsed
        return samples / elapsed

    def pause(self) -> None:
        self.samples += self._epoch_samples
        self.seconds += self._epoch_seconds

    def epoch_images_per_second(self) -> float:
        return self._epoch_samples / max(self._epoch_seconds, 1e-9)

    def total_images_per_second(self) -> float | None:
        return self.samples / self.seconds if self.seconds else None


@dataclass(frozen=True)
class TrainingRun:
    """One rank's parts. `model` is what DDP wrapped, `bare_model` the network itself."""

    config: TrainConfig
    info: DatasetInfo
    plan: BatchPlan
    session: Session
    control: ControlGroup
    environment: dict[str, Any]
    train_batches: ImageBatches
    train_ids: torch.Tensor
    augmentation: Augmentation | None
    evaluator: Evaluator
    model: nn.Module
    bare_model: nn.Module
    parameters: list[nn.Parameter]
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    precision: Precision
    precision_reason: str
    reduction: GradientReduction
    buffers: StepBuffers
    metrics: StepMetrics
    clock: TrainingClock
    steps_per_epoch: int
    total_steps: int

    @property
    def stateful(self) -> Stateful:
        return Stateful(self.bare_model, self.optimizer, self.precision)


def total_steps_of(config: TrainConfig, steps_per_epoch: int) -> int:
    """Optimizer steps of the whole run."""
    return min(config.max_steps or config.epochs * steps_per_epoch, config.epochs * steps_per_epoch)


def build_run(config: TrainConfig, info: DatasetInfo, plan: BatchPlan, session: Session) -> TrainingRun:
    """Build the parts in the order in which they depend on each other."""
    configure_torch(config)
    device, world_size = session.device, session.world_size
    name, reason = resolve_precision(config.precision, device)
    precision = build_precision(name, device)
    train = ImageBatches(info.train_file, info, device, channels_last=config.channels_last)
    validation = ImageBatches(info.validation_file, info, device, channels_last=config.channels_last)
    train_ids = subset(len(train), config.limit_train_samples, config.seed, "train")
    bare_model = _build_weights(config, info)
    has_unused = world_size > 1 and has_unused_parameters(bare_model, config, info.channels, info.height, info.width)
    model = session.prepare_model(bare_model, has_unused=has_unused)
    steps_per_epoch = plan.steps_per_epoch(len(train_ids))
    return TrainingRun(
        config=config,
        info=info,
        plan=plan,
        session=session,
        control=ControlGroup(world_size),
        environment=kernel_environment(session.rank, device),
        train_batches=train,
        train_ids=train_ids,
        augmentation=build_augmentation(config, info),
        evaluator=Evaluator(
            batches=validation,
            ids=subset(len(validation), config.limit_validation_samples, config.seed, "validation"),
            batch_size=config.evaluation_batch_size,
            num_classes=len(info.class_names),
            precision=precision,
            device=device,
            rank=session.rank,
            world_size=world_size,
        ),
        model=model,
        bare_model=bare_model,
        parameters=[p for p in bare_model.parameters() if p.requires_grad],
        criterion=nn.CrossEntropyLoss(reduction="sum", label_smoothing=config.label_smoothing),
        optimizer=build_optimizer(config, bare_model),
        precision=precision,
        precision_reason=reason,
        reduction=build_reduction(model, rank=session.rank, world_size=world_size, deterministic=config.deterministic),
        buffers=StepBuffers(bare_model, world_size),
        metrics=StepMetrics(plan.micro_batches_per_step, device, world_size),
        clock=TrainingClock(),
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps_of(config, steps_per_epoch),
    )


def _build_weights(config: TrainConfig, info: DatasetInfo) -> nn.Module:
    torch.manual_seed(key(config.seed, "weights"))
    model = build_model(
        config, channels=info.channels, height=info.height, width=info.width, num_classes=len(info.class_names)
    )
    if config.pretrained is not None:
        load_pretrained(model, config.pretrained)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)
    return model
