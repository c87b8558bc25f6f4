"""The optimizer of a run."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError


def build_optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    """The optimizer of `config.optimizer` over the parameters of `model` that are trained, in the model's order.

    Matrices and kernels get `config.weight_decay`; norms and biases, which have one dimension, get none. Raises
    `ConfigError` if nothing is trained.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError(f"--model {config.model} has no parameter that is trained: all have requires_grad=False")
    decayed = {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay}
    others = {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0}
    groups = [group for group in (decayed, others) if group["params"]]
    # Pinned because PyTorch's own choice among its kernels is by device and version, and they differ in the last bit.
    fused = all(parameter.device.type == "cuda" for parameter in trained)
    if config.optimizer == "sgd":
        return SGD(groups, lr=config.lr, momentum=config.momentum, foreach=False, fused=fused)
    if config.optimizer == "adamw":
        return AdamW(groups, lr=config.lr, foreach=False, fused=fused)
    return Adam(groups, lr=config.lr, foreach=False, fused=fused)
